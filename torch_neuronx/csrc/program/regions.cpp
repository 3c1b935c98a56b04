#include "program/regions.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/faults.h"
#include "device/profiler.h"
#include "dispatch/predicting.h"
#include "memory/allocator.h"
#include "program/collected.h"
#include "program/enqueued.h"
#include "program/program.h"
#include "program/region.h"
#include "registry/registry.h"

namespace torch_neuronx::program {
namespace {

using queue::QueuedCall;

using Clock = std::chrono::steady_clock;

constexpr size_t kMostCalls = 24;
// Less than this, of all results, stays in the caches between calls.
constexpr size_t kLeastBytes = 128 << 10;
// One that only ended because nothing more was enqueued may be longer the next time.
constexpr int kTimesBeforeCompiling = 2, kTimesIfIdle = 5;
// Compiling takes some 50 ms of a core. Calls are worth that when they have taken so many
// nanoseconds one by one, of which a program saves about half.
constexpr int64_t kWorth = 20'000'000;
// So often a program runs before its shortest time is compared with that of its calls, one by one,
// which mostly ran more often than twice: of few runs on a busy machine none may be undisturbed.
constexpr int kRunsBeforeJudged = 16;

// While the core has nothing else to do, it waits for a call that may join those that are there:
// for a microsecond for each 64 KiB of their results, which is a twentieth of what they take, and
// not longer than this. Python takes 2 to 20 microseconds from one call to the next.
constexpr size_t kBytesPerMicrosecond = 64 << 10;
constexpr std::chrono::nanoseconds kLongestWait = std::chrono::microseconds(30);
constexpr uint32_t kWaitsBeforeJudged = 4, kWaitsRemembered = 32;
constexpr size_t kMostWaits = 4096;

// How often waiting for one more call was worth it, by what was there. The last times count most.
struct Waits {
  uint32_t tried = 0, came = 0, left = 0;

  bool pay() {
    if (tried >= kWaitsRemembered) tried /= 2, came /= 2;
    return tried < kWaitsBeforeJudged || 2 * came >= tried || ++left % kWaitsRemembered == 0;
  }
};

std::unordered_map<uint64_t, Waits> g_waits;
std::atomic<size_t> g_low_threshold{0};
std::atomic<bool> g_skips_unread{true};
std::atomic<int64_t> g_worth{kWorth};

std::string ender(queue::Work& work) {
  const QueuedCall* call = work.as_call();
  return call == nullptr ? work.name() : c10::toString(call->op().operator_name());
}

// Writes the lines of this time down where an earlier time had none.
void keep_lines(Region& region, const Collected& found) {
  auto& calls = region.description.calls;
  for (size_t i = 0; i < calls.size(); ++i)
    if (calls[i].called_at.empty()) calls[i].called_at = found.members[i].call->called_at;
}

// The calls that can run as one program from the next on, and what is known of their beginnings.
struct Gathered {
  enum class End { kBoundary, kFull, kIdle, kRead };
  Collected found;
  End end = End::kBoundary;
  queue::Work* ender = nullptr;
  std::vector<Start*> starts;  // as long as the calls are known
};

class Gatherer {
 public:
  explicit Gatherer(queue::Ahead& ahead) : ahead_(ahead) {}

  Gathered gather() {
    Collected& found = made_.found;
    for (;;) {
      queue::Work* work = next();
      // A call that was issued after the last one says that the last one has returned, so that what
      // Python lets go of then is let go of.
      if (found.calls == kMostCalls) {
        made_.end = Gathered::End::kFull;
        return std::move(made_);
      }
      if (work == nullptr) {
        made_.end = ahead_.is_waited_for() ? Gathered::End::kRead : Gathered::End::kIdle;
        return std::move(made_);
      }
      const QueuedCall* call = work->as_call();
      if (call == nullptr || !found.add(*call)) {
        made_.ender = work;
        return std::move(made_);
      }
      follow();
    }
  }

 private:
  // The next piece of work, after waiting for it if that is worth it.
  queue::Work* next() {
    waits_ = nullptr;
    const size_t count = made_.found.calls;
    queue::Work* work = ahead_.at(count);
    if (work != nullptr || made_.found.bytes < kBytesPerMicrosecond || !waits_pay()) return work;
    const auto most = std::chrono::microseconds(made_.found.bytes / kBytesPerMicrosecond);
    return ahead_.await(count, std::min<std::chrono::nanoseconds>(most, kLongestWait));
  }

  bool waits_pay() {
    const std::lock_guard<std::mutex> lock(g_regions.mutex);
    const Start* start = known();
    if (start != nullptr && start->is_ready() && !start->leads_on) return false;
    if (g_waits.size() == kMostWaits && !g_waits.contains(hash_)) return false;
    Waits& waits = g_waits[hash_];
    if (!waits.pay()) return false;
    ++waits.tried;
    waits_ = &waits;
    return true;
  }

  Start* known() {
    return made_.starts.size() == made_.found.members.size() ? made_.starts.back() : nullptr;
  }

  // A step in the tree for each result of the last call.
  void follow() {
    const auto& members = made_.found.members;
    const std::lock_guard<std::mutex> lock(g_regions.mutex);
    if (waits_ != nullptr) ++waits_->came;
    for (size_t m = members.size() - 1 - members.back().result; m < members.size(); ++m) {
      const Member& member = members[m];
      for (const uint64_t word : member.words) hash_ = (hash_ ^ word) * 0xff51afd7ed558ccdULL;
      if (made_.starts.size() != m) continue;
      Start& from =
          made_.starts.empty() ? g_regions.starts[member.call->core()] : *made_.starts.back();
      const auto step = from.next.find(member.words);
      if (step != from.next.end()) made_.starts.push_back(step->second.get());
    }
  }

  queue::Ahead& ahead_;
  Gathered made_;
  uint64_t hash_ = 0x9e3779b97f4a7c15ULL;
  Waits* waits_ = nullptr;  // of the waiting in progress
};

std::vector<size_t> wanted_of(const std::vector<Fate>& fates) {
  std::vector<size_t> outputs;
  for (size_t m = 0; m < fates.size(); ++m)
    if (fates[m] == Fate::kWanted) outputs.push_back(m);
  return outputs;
}

// Whether a program that writes `outputs` writes all that is wanted, and nothing that must stay.
bool serves(const std::vector<size_t>& outputs, const std::vector<Fate>& fates) {
  size_t wanted = 0;
  for (const size_t output : outputs) {
    if (fates[output] == Fate::kPassed) return false;
    wanted += fates[output] == Fate::kWanted;
  }
  return wanted == static_cast<size_t>(std::count(fates.begin(), fates.end(), Fate::kWanted));
}

// The compiled region of just these calls that writes the fewest results; null if there is none.
Region* ready_region(const Start& start, const std::vector<Fate>& fates) {
  Region* best = nullptr;
  for (Region* region : start.regions) {
    const auto& outputs = region->description.outputs;
    if (region->state == Region::State::kReady && serves(outputs, fates) &&
        (best == nullptr || outputs.size() < best->description.outputs.size()))
      best = region;
  }
  return best;
}

// What programs work in on this thread, grown to what the largest one needs.
char* scratch_of(size_t bytes) {
  thread_local std::unique_ptr<char[]> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    memory = std::make_unique_for_overwrite<char[]>(bytes);
    size = bytes;
  }
  return memory.get();
}

void copy(void* to, const char* from, size_t bytes) {
  constexpr int64_t kGrain = 1 << 18;
  at::parallel_for(0, static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

void run(const Region& region, const Collected& found) {
  const Program& program = *region.program;
  constexpr size_t kAlignment = 64;
  const auto aligned = [](size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::vector<bool> written(found.inputs.size());
  size_t staged = 0;
  for (const size_t output : region.description.outputs) {
    const Member& member = found.members[output];
    if (member.replaces >= 0) written[static_cast<size_t>(member.replaces)] = true;
    if (member.staged) staged += aligned(member.bytes);
  }
  const size_t own = aligned(static_cast<size_t>(program.scratch_bytes));
  char* scratch = own + staged == 0 ? nullptr : scratch_of(own + staged + kAlignment);
  scratch = reinterpret_cast<char*>(aligned(reinterpret_cast<size_t>(scratch)));
  LentMemory memory;
  for (size_t i = 0; i < found.inputs.size(); ++i) {
    const Input& input = found.inputs[i];
    const auto& [start, bytes] = found.storages[static_cast<size_t>(input.storage)];
    memory.add_argument(input.data, start, bytes, written[i]);
  }
  char* stage = scratch + own;
  for (const size_t output : region.description.outputs) {
    const Member& member = found.members[output];
    if (member.replaces >= 0) continue;
    memory.add_result(member.staged ? stage : member.data, member.bytes, !member.staged);
    if (member.staged) stage += aligned(member.bytes);
  }
  if (program.scratch_bytes > 0) memory.scratch.push_back({scratch, own});
  found.members[0].call->enter_thread();
  for (const Drawn& each : found.drawn) each.draw();
  memory.run(program);
  stage = scratch + own;
  for (const size_t output : region.description.outputs) {
    const Member& member = found.members[output];
    if (!member.staged) continue;
    copy(member.data, stage, member.bytes);
    mark_written(member.data);
    stage += aligned(member.bytes);
  }
}

void give_up(Region& region) {
  region.state = Region::State::kGivenUp;
  ++g_regions.stats.given_up;
}

// Notes how long a program took. One that is not faster than its calls were is given up.
void judge(Region& region, int64_t took) {
  const std::lock_guard<std::mutex> lock(g_regions.mutex);
  region.shortest = std::min(region.shortest, took);
  if (++region.judged_runs == kRunsBeforeJudged &&
      region.shortest > region.calls->took->shortest.load(std::memory_order_relaxed))
    give_up(region);
}

// A NeuronCore would run the calls one by one; here they are one execution.
void count_predictions(const Collected& found) {
  uint64_t executions = 1;
  for (const Member& member : found.members) {
    if (member.result != 0) continue;
    const queue::QueuedCall& call = *member.call;
    registry::Prediction* prediction = predicting::known(call.op(), call.settled()->words);
    if (prediction != nullptr) prediction->count(call.core(), std::exchange(executions, 0));
  }
}

// Runs the calls as the program of a region. Where that fails, they have to be run one by one, or
// not at all: a program that writes in place may have written.
queue::RegionOutcome run_as_program(Region& region, const Collected& found) {
  const size_t count = found.calls;
  ActivityScope activity(region.activity);
  activity.on(found.members[0].call->core());
  try {
    const auto began = Clock::now();
    run(region, found);
    judge(region, std::chrono::nanoseconds(Clock::now() - began).count());
    if (predicting::asked()) count_predictions(found);
    return {count, 0};
  } catch (const std::exception& error) {
    const bool in_place =
        std::any_of(found.members.begin(), found.members.end(),
                    [](const Member& member) { return member.replaces >= 0 || member.staged; });
    {
      const std::lock_guard<std::mutex> lock(g_regions.mutex);
      give_up(region);
    }
    if (in_place) return {count, 0, nullptr, std::current_exception()};
    TORCH_WARN("a region of ", count, " operators is given up: ", error.what());
    return {0, count};
  }
}

// Notes what ended a region this time.
void note(Region& region, const Gathered& gathered) {
  keep_lines(region, gathered.found);
  static constexpr const char* names[] = {"", "full", "idle", "read"};
  const auto end = static_cast<size_t>(gathered.end);
  ++region.ended_by[end == 0 ? ender(*gathered.ender) : names[end]];
}

// Has a region compiled that came by often enough.
void see(Region& region, Gathered::End end) {
  const int enough = end == Gathered::End::kIdle ? kTimesIfIdle : kTimesBeforeCompiling;
  if (region.state != Region::State::kSeen || ++region.seen < enough) return;
  if (region.calls->took->total.load(std::memory_order_relaxed) < g_worth) return;
  region.state = Region::State::kWanted;
  g_regions.wanted.push_back(region.number);
  g_regions.changed.notify_all();
}

void count_run(Region& region, Gathered::End end) {
  region.used = ++g_regions.clock;
  const auto& results = region.description.calls;
  const auto calls = std::count_if(results.begin(), results.end(),
                                   [](const auto& each) { return each.result == 0; });
  ++region.runs;
  ++g_regions.stats.regions;
  g_regions.stats.calls += calls;
  g_regions.stats.unwritten +=
      static_cast<int64_t>(results.size() - region.description.outputs.size());
  switch (end) {
    case Gathered::End::kFull:
      ++g_regions.stats.ended_full;
      break;
    case Gathered::End::kIdle:
      ++g_regions.stats.ended_idle;
      break;
    case Gathered::End::kRead:
      ++g_regions.stats.ended_read;
      break;
    case Gathered::End::kBoundary:
      ++g_regions.stats.ended_boundary;
      break;
  }
}

// Runs a region that begins with the next piece of work; see queue::RegionRunner.
queue::RegionOutcome run_region(queue::Ahead& ahead) {
  if (faults::armed()) return {0, 1};  // each operator is to be reached
  const Reader reader;
  const size_t low = g_low_threshold.load(std::memory_order_relaxed);
  if (low > 0 && ahead.at(low) == nullptr) return {0, 1};
  Gathered gathered = Gatherer(ahead).gather();
  Collected& found = gathered.found;
  const size_t count = found.calls;
  if (count < 2 || found.bytes < kLeastBytes) return {0, count};
  const bool skips = g_skips_unread.load(std::memory_order_relaxed);
  auto fates = found.fates(ahead, skips);
  const auto outputs = wanted_of(fates);
  Region* ready = nullptr;
  Start* whole = nullptr;
  {
    const std::lock_guard<std::mutex> lock(g_regions.mutex);
    const int64_t forgotten = g_regions.stats.forgotten;
    Region* region = outputs.empty() ? nullptr : region_of(found, outputs);
    if (g_regions.stats.forgotten != forgotten) {
      gathered.starts.clear();  // may be gone
      if (g_waits.size() == kMostWaits) g_waits.clear();
    }
    if (region != nullptr) {
      whole = region->calls;
      ready = ready_region(*whole, fates);
      see(*region, gathered.end);
      note(ready == nullptr ? *region : *ready, gathered);
      if (ready == nullptr) ++region->separately;
    }
  }
  // Until all of it is compiled, the longest beginning that is.
  for (size_t first = std::min(gathered.starts.size(), found.members.size() - 1);
       ready == nullptr && first > 1; --first) {
    Start& start = *gathered.starts[first - 1];
    {
      const std::lock_guard<std::mutex> lock(g_regions.mutex);
      if (!start.is_ready()) continue;
    }
    Collected part = found;
    part.keep_first(first);
    fates = part.fates(ahead, skips);
    const std::lock_guard<std::mutex> lock(g_regions.mutex);
    ready = ready_region(start, fates);
    if (ready != nullptr) found = std::move(part);
  }
  if (ready == nullptr) return {0, count, whole == nullptr ? nullptr : whole->took};
  {
    const std::lock_guard<std::mutex> lock(g_regions.mutex);
    count_run(*ready, found.calls == count ? gathered.end : Gathered::End::kBoundary);
  }
  const bool in_parts = whole != nullptr && found.calls < count;
  const registry::Enqueued enqueued(found.members[0].call->issued);
  const auto began = Clock::now();
  const queue::RegionOutcome outcome = run_as_program(*ready, found);
  if (in_parts) whole->took->total += std::chrono::nanoseconds(Clock::now() - began).count();
  return outcome;
}

}  // namespace

void install_regions() { queue::set_region_runner(&run_region); }

RegionStats region_stats() {
  const std::lock_guard<std::mutex> lock(g_regions.mutex);
  return g_regions.stats;
}
void reset_region_stats() {
  const std::lock_guard<std::mutex> lock(g_regions.mutex);
  g_regions.stats = {};
  for (auto& [number, region] : g_regions.all) {
    region.runs = region.separately = 0;
    region.ended_by.clear();
  }
}
void set_low_threshold(size_t calls) { g_low_threshold = calls; }
void set_skips_unread(bool on) { g_skips_unread = on; }
int64_t worth() { return g_worth; }
void set_worth(int64_t nanoseconds) { g_worth = nanoseconds; }

}  // namespace torch_neuronx::program
