// Runs the instructions of a tape.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "device/profiler.h"
#include "gemm/scratch.h"
#include "program/tape.h"
#include "program/team.h"
#include "registry/registry.h"

namespace torch_neuronx::program {

// What a native function found wrong: the first place of the tape where one did.
struct TapeStep::Failed {
  std::mutex mutex;
  std::atomic<bool> any{false};
  int64_t position = 0, chunk = 0;
  nki::Failure failure;

  void note(int64_t at, int64_t of_chunk, nki::Failure&& what) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!any || at < position || (at == position && of_chunk < chunk)) {
      position = at;
      chunk = of_chunk;
      failure = std::move(what);
      any = true;
    }
  }
};

class TapeStep::Run {
 public:
  Run(const TapeStep& tape, const Frame& frame) : tape_(tape), frame_(frame) {}

  void all(Team* team) {
    const int64_t* const code = tape_.code;
    size_t group = 0;
    for (int64_t at = 0; at < tape_.words; ++group) {
      first_ = at + 2;
      count_ = code[at];
      chunks_ = code[at + 1];
      const bool together = team != nullptr && tape_.parallel[group];
      if (chunks_ == 0) {
        at = whole(together ? team : nullptr);
      } else if (together) {
        threads_ = team->size();
        team->run([](void* run, int64_t thread) { static_cast<Run*>(run)->share(thread); }, this);
        at = end_;
      } else {
        threads_ = 1;
        share(0);
        at = end_;
      }
      if (C10_UNLIKELY(failed_.any.load(std::memory_order_relaxed))) raise();
    }
  }

 private:
  // One thread's share of a group that works lane by lane. The first thread always has one.
  void share(int64_t thread) {
    const int64_t begin = (chunks_ * thread + threads_ - 1) / threads_;
    const int64_t end = (chunks_ * (thread + 1) + threads_ - 1) / threads_;
    int64_t at = first_;
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      at = first_;
      for (int64_t i = 0; i < count_; ++i) {
        const TapeFunction& f = tape_.functions[tape_.code[at]];
        if (!call(f, at, chunk, 0, f.items)) return;
        at += f.words();
      }
    }
    if (thread == 0) end_ = at;
  }

  // Items [begin, end) of a function on one chunk.
  bool call(const TapeFunction& f, int64_t at, int64_t chunk, int64_t begin, int64_t end) {
    void* pointers[kMostTapeSlots];
    const int64_t* place = tape_.code + at + 2;
    if (f.lanes) {
      for (int64_t s = 0; s < f.slots; ++s, place += 2) {
        pointers[s] =
            frame_.at(static_cast<int32_t>(place[0]), place[1] + chunk * f.advance[size_t(s)]);
      }
    } else {
      for (int64_t s = 0; s < f.slots; ++s, place += 2) {
        pointers[s] = frame_.at(static_cast<int32_t>(place[0]), place[1]);
      }
    }
    void* const memory = f.scratch_bytes == 0 ? nullptr
                                              : gemm::scratch(gemm::Slot::kLoopKernel,
                                                              static_cast<size_t>(f.scratch_bytes));
    if (f.kind == TapeFunction::Kind::kLoop) {
      f.loop(pointers, begin, end, memory);
      return true;
    }
    if (f.kind == TapeFunction::Kind::kProduct) {
      nki::run_product(f.product, static_cast<char*>(pointers[0]), static_cast<char*>(pointers[1]),
                       static_cast<char*>(pointers[2]), begin, end);
      return true;
    }
    nki::Failure failure;
    if (f.native->run({pointers, f.params.data(), begin, end, memory, &failure})) return true;
    failed_.note(at, chunk, std::move(failure));
    return false;
  }

  // The instructions of a group that do not work lane by lane. Returns where the next group begins.
  int64_t whole(Team* team) {
    int64_t at = first_;
    for (int64_t i = 0; i < count_; ++i) {
      const TapeFunction& f = tape_.functions[tape_.code[at]];
      if (f.kind == TapeFunction::Kind::kProduct) {
        registry::count_flops(2 * f.product.multiplications());
        split(team, at, [](void* run, int64_t thread) {
          Run& r = *static_cast<Run*>(run);
          const TapeFunction& f = r.tape_.functions[r.tape_.code[r.at_]];
          r.call(f, r.at_, 0, thread, r.threads_);
        });
      } else if (team == nullptr || f.items <= f.grain) {
        call(f, at, 0, 0, f.items);
      } else {
        next_ = 0;
        split(team, at, [](void* run, int64_t) { static_cast<Run*>(run)->ranges(); });
      }
      at += f.words();
      if (failed_.any.load(std::memory_order_relaxed)) break;
    }
    return at;
  }

  void split(Team* team, int64_t at, Team::Function function) {
    at_ = at;
    threads_ = team == nullptr ? 1 : team->size();
    team == nullptr ? function(this, 0) : team->run(function, this);
  }

  // Ranges of items, taken as threads become free.
  void ranges() {
    const TapeFunction& f = tape_.functions[tape_.code[at_]];
    for (int64_t begin; (begin = next_.fetch_add(f.grain, std::memory_order_relaxed)) < f.items;) {
      if (!call(f, at_, 0, begin, std::min(begin + f.grain, f.items))) return;
    }
  }

  [[noreturn]] void raise() {
    const nki::Failure& f = failed_.failure;
    const std::string& place = tape_.locations[size_t(tape_.code[failed_.position + 1])];
    TORCH_CHECK_INDEX(false, f.what, "; ", place, "; ", f.remedy, " [", f.code, "]");
    std::terminate();  // not reached, which the compiler cannot see
  }

  const TapeStep& tape_;
  const Frame& frame_;
  // Of the group in work.
  int64_t first_ = 0, count_ = 0, chunks_ = 0, end_ = 0, threads_ = 1;
  int64_t at_ = 0;  // of the instruction in work, if it is split
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) Failed failed_;
};

namespace {

// The lines of a kernel's instructions, for profiles: "kernel.py:10-42", by file.
std::string lines_of(const std::vector<std::string>& locations) {
  std::map<std::string, std::pair<long, long>> files;
  for (const std::string& location : locations) {
    const auto colon = location.rfind(':');
    if (colon == std::string::npos) continue;
    const long line = std::strtol(location.c_str() + colon + 1, nullptr, 10);
    const auto [known, fresh] = files.try_emplace(location.substr(0, colon), line, line);
    if (fresh) continue;
    known->second.first = std::min(known->second.first, line);
    known->second.second = std::max(known->second.second, line);
  }
  std::string text;
  for (const auto& [file, lines] : files) {
    text += (text.empty() ? "" : ", ") + file + ":" + std::to_string(lines.first);
    if (lines.second != lines.first) text += "-" + std::to_string(lines.second);
  }
  return text;
}

}  // namespace

void TapeStep::run(Frame& frame) const {
  if (profiling()) ActivityScope::note({{"source", lines_of(locations)}});
  for (const int32_t output : outputs) frame.ensure(output);
  Team* const team = Team::current();
  if (team != nullptr || !any_parallel) {
    Run(*this, frame).all(team);
  } else {
    Team::lead([&] { Run(*this, frame).all(Team::current()); });
  }
}

}  // namespace torch_neuronx::program
