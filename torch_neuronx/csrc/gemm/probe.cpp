#include "gemm/probe.h"

#include <c10/util/hash.h>

#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "gemm/methods.h"

namespace torch_neuronx::gemm {
namespace {

using Clock = std::chrono::steady_clock;
// The rule is given up only for something clearly faster: equal times should not flip between two
// runs. On a busy machine, where times say little, only for something faster by far.
constexpr double kMargin = 0.97, kBusyMargin = 0.75;

double margin() {
  double load = 0;
  const bool known = ::getloadavg(&load, 1) == 1;
  return known && load > std::thread::hardware_concurrency() ? kBusyMargin : kMargin;
}

class Book {
 public:
  static Book& instance() {
    static Book* book = new Book();  // outlives every thread
    return *book;
  }

  Method decide(const Problem& p, const ShapeClass& shape) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!loaded_) load();
    const auto found = known_.find(shape);
    if (found != known_.end()) {
      const Method method = found->second.method;
      if (method == Method::kAten || applicable(p, method)) return method;
    }
    const Decision decision = measure_class(p);
    known_[shape] = decision;
    unsaved_ = true;
    if (Clock::now() - saved_at_ > std::chrono::seconds(2)) save();
    return decision.method;
  }

  Decisions copy() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!loaded_) load();
    return known_;
  }

  void forget() {
    const std::lock_guard<std::mutex> lock(mutex_);
    known_.clear();
    loaded_ = unsaved_ = false;
  }

  void save_now() {
    const std::lock_guard<std::mutex> lock(mutex_);
    save();
  }

 private:
  Book() {
    std::atexit([] { Book::instance().save_at_exit(); });
  }

  void save_at_exit() {
    // A thread killed in the middle of a measurement must not make the exit hang.
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) save();
  }

  void load() {
    loaded_ = true;
    saved_at_ = Clock::now();
    const std::string path = probe_file_path();
    if (path.empty()) return;
    if (auto stored = read_decisions(path)) known_ = std::move(*stored);
  }

  void save() {
    if (!unsaved_) return;
    unsaved_ = false;
    saved_at_ = Clock::now();
    const std::string path = probe_file_path();
    if (path.empty()) return;
    // Another process may have measured other classes meanwhile. An unwritable place costs the next
    // process its measurements and nothing else, so the result is not looked at.
    Decisions all = read_decisions(path).value_or(Decisions{});
    for (const auto& [shape, decision] : known_) all[shape] = decision;
    (void)write_decisions(path, all);
  }

  static Decision measure_class(const Problem& p) {
    std::vector<Method> methods;
    for (const Method method : {Method::kPanel, Method::kDot, Method::kStream}) {
      if (applicable(p, method)) methods.push_back(method);
    }
    methods.push_back(Method::kAten);
    const std::vector<Timing> timings = measure(p, methods);
    // The rule's method is given up only for a clearly faster one, ours for ATen likewise.
    const double factor = margin();
    Decision decision{choose_by_rule(p), 0, 0};
    double best = 0;
    for (const Timing& timing : timings) {
      if (timing.method == decision.method) best = timing.microseconds;
    }
    for (const Timing& timing : timings) {
      if (timing.method == Method::kAten) decision.aten_us = float(timing.microseconds);
      if (timing.microseconds < factor * best) {
        best = timing.microseconds;
        decision.method = timing.method;
      }
    }
    decision.ours_us = decision.aten_us;
    for (const Timing& timing : timings) {
      if (timing.method != Method::kAten) {
        const bool first = decision.ours_us == decision.aten_us;
        const auto us = float(timing.microseconds);
        decision.ours_us = first ? us : std::min(decision.ours_us, us);
      }
    }
    return decision;
  }

  std::mutex mutex_;
  Decisions known_;
  bool loaded_ = false, unsaved_ = false;
  Clock::time_point saved_at_{};
};

// The last decisions of this thread, so that a repeated shape takes no lock. Entries are thrown
// away together when forget_decisions() moves the epoch.
struct Recent {
  ShapeClass shape{};
  uint64_t epoch = 0;
  Method method = Method::kPanel;
};
std::atomic<uint64_t> epoch{1};
constexpr size_t kRecent = 64;
thread_local Recent recent[kRecent];

Layout layout_of(const Matrix& x, bool k_is_column) {
  const bool row_runs = contiguous(x.cols, x.col_stride);
  const bool column_runs = contiguous(x.rows, x.row_stride);
  if (row_runs) return k_is_column ? Layout::kAlongK : Layout::kAcrossK;
  if (column_runs) return k_is_column ? Layout::kAcrossK : Layout::kAlongK;
  return Layout::kOther;
}

}  // namespace

uint8_t size_bucket(int64_t size) {
  if (size <= 4) return uint8_t(size);
  const int exponent = std::bit_width(uint64_t(size)) - 1;  // 2^exponent <= size
  const bool upper = size >= (int64_t(3) << exponent) / 2;
  return uint8_t(2 * exponent + upper);
}

ShapeClass class_of(const Problem& p) {
  const int threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  return {p.dtype,          size_bucket(p.batch), size_bucket(p.m),      size_bucket(p.n),
          size_bucket(p.k), layout_of(p.a, true), layout_of(p.b, false), uint16_t(threads)};
}

size_t ShapeClassHash::operator()(const ShapeClass& c) const {
  const uint64_t sizes = uint64_t(c.batch) << 48 | uint64_t(c.m) << 40 | uint64_t(c.n) << 32 |
                         uint64_t(c.k) << 24 | uint64_t(c.a) << 20 | uint64_t(c.b) << 16 |
                         uint64_t(c.dtype) << 8;
  // Fibonacci hashing: the high bits of the product depend on all bits of the sizes.
  return size_t(((sizes ^ c.threads) * 0x9E3779B97F4A7C15ULL) >> 17);
}

Method choose_by_rule(const Problem& p) {
  if (applicable(p, Method::kDot)) return Method::kDot;
  // Streaming multiplies in float32 and goes over its sums for every few rows: with more rows on
  // the small side, rearranging pays, and sooner where pairs of bfloat16 are multiplied.
  const int64_t few = engine_for(p.dtype).panel->unit == 2 ? 4 : 8;
  const bool thin = std::min(p.m, p.n) <= few;
  return thin && applicable(p, Method::kStream) ? Method::kStream : Method::kPanel;
}

bool probe_enabled() {
  static const bool enabled = [] {
    const char* text = std::getenv("TORCH_NEURONX_GEMM_PROBE");
    if (text == nullptr || *text == '\0' || std::strcmp(text, "1") == 0) return true;
    TORCH_CHECK(std::strcmp(text, "0") == 0, "TORCH_NEURONX_GEMM_PROBE must be 0 or 1, got \"",
                text, "\"");
    return false;
  }();
  return enabled;
}

Method choose(const Problem& p) {
  // Inside a parallel region the neighbours' work would be measured, not the method.
  if (!probe_enabled() || at::in_parallel_region()) return choose_by_rule(p);
  const ShapeClass shape = class_of(p);
  const uint64_t now = epoch.load(std::memory_order_acquire);
  Recent& slot = recent[ShapeClassHash{}(shape) % kRecent];
  if (slot.epoch == now && slot.shape == shape &&
      (slot.method == Method::kAten || applicable(p, slot.method))) {
    return slot.method;
  }
  slot.method = Book::instance().decide(p, shape);
  slot.shape = shape;
  slot.epoch = now;
  return slot.method;
}

Method choose_ours(const Problem& p) {
  const Method method = choose(p);
  return method == Method::kAten ? choose_by_rule(p) : method;
}

Decisions decisions() { return Book::instance().copy(); }

void forget_decisions() {
  Book::instance().forget();
  epoch.fetch_add(1, std::memory_order_release);
}

void save_decisions() { Book::instance().save_now(); }

}  // namespace torch_neuronx::gemm
