#include "gemm/probe.h"

#include <c10/util/hash.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include "gemm/methods.h"
#include "memory/host_limits.h"

namespace torch_neuronx::gemm {
namespace {

// The rule is given up only for something clearly faster: equal times should not flip between two
// runs. On a busy machine, where times say little, only for something faster by far.
constexpr double kMargin = 0.97, kBusyMargin = 0.75;

double margin() {
  double load = 0;
  const bool known = ::getloadavg(&load, 1) == 1;
  return known && load > double(host_processors()) ? kBusyMargin : kMargin;
}

class Book {
 public:
  static Book& instance() {
    static Book* book = new Book();  // outlives every thread
    return *book;
  }

  Method decide(const Problem& p, const ShapeClass& shape) {
    if (const auto known = find(shape)) return *known;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto known = find(shape)) return *known;
    // Without a file a measurement could not count, so none is made.
    const Decision rule{choose_by_rule(p), 0, 0};
    if (!read()) return keep(shape, rule);
    if (const auto known = find(shape)) return *known;
    return settle(shape, measure_class(p), rule);
  }

  // `proposal`, what another process proposed before, or `rule` if nobody can.
  Method settle(const ShapeClass& shape, const Decision& proposal, const Decision& rule) {
    // The second time in case that a line cut off by a full disk has spoilt the first.
    for (int attempt = 0; attempt < 2; ++attempt) {
      if (!file_.propose(shape, proposal) || !read()) break;
      if (const auto known = find(shape)) return *known;
    }
    return keep(shape, rule);
  }

  Method propose(const ShapeClass& shape, const Decision& proposal, const Decision& rule) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return settle(shape, proposal, rule);
  }

  Decisions copy() {
    const std::shared_lock<std::shared_mutex> reading(known_mutex_);
    return known_;
  }

  void forget() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::lock_guard<std::shared_mutex> writing(known_mutex_);
    known_.clear();
    file_ = {};
  }

  std::string name() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return file_.name();
  }

 private:
  std::optional<Method> find(const ShapeClass& shape) {
    const std::shared_lock<std::shared_mutex> reading(known_mutex_);
    const auto known = known_.find(shape);
    return known == known_.end() ? std::nullopt : std::optional<Method>(known->second.method);
  }

  // The file's new lines; what is known already counts. False if there is no file.
  bool read() {
    Decisions fresh;
    if (!file_.read(&fresh)) return false;
    const std::lock_guard<std::shared_mutex> writing(known_mutex_);
    known_.merge(fresh);
    return true;
  }

  Method keep(const ShapeClass& shape, const Decision& decision) {
    const std::lock_guard<std::shared_mutex> writing(known_mutex_);
    return known_.try_emplace(shape, decision).first->second.method;
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

  // Every product asks what is known, on every thread: readers don't wait for each other, nor for a
  // measurement, which is made under the first of these.
  std::mutex mutex_;
  DecisionFile file_;
  std::shared_mutex known_mutex_;
  Decisions known_;
};

std::atomic<bool> disagreed{false};

// Which of our methods apply: a class where one does not is another class, for the sizes of one
// bucket may lie on both sides of a method's limit.
uint8_t methods_of(const Problem& p) {
  uint8_t methods = 0;
  for (const Method method : {Method::kPanel, Method::kDot, Method::kStream}) {
    if (applicable(p, method)) methods |= uint8_t(1U << unsigned(method));
  }
  return methods;
}

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
          size_bucket(p.k), layout_of(p.a, true), layout_of(p.b, false), methods_of(p),
          uint16_t(threads)};
}

size_t ShapeClassHash::operator()(const ShapeClass& c) const {
  const uint64_t sizes = uint64_t(c.batch) << 48 | uint64_t(c.m) << 40 | uint64_t(c.n) << 32 |
                         uint64_t(c.k) << 24 | uint64_t(c.a) << 20 | uint64_t(c.b) << 16 |
                         uint64_t(c.methods) << 12 | uint64_t(c.dtype) << 6;
  // Fibonacci hashing: the high bits of the product depend on all bits of the sizes.
  return size_t(((sizes ^ c.threads) * 0x9E3779B97F4A7C15ULL) >> 17);
}

Method choose_by_rule(const Problem& p) {
  if (applicable(p, Method::kDot)) return Method::kDot;
  // Streaming in vectors multiplies in float32: with more rows on the small side, rearranging pays,
  // and sooner where pairs of bfloat16 are multiplied.
  const Kernels& kernels = *kernels_for(p.dtype);
  const int64_t most = kernels.stream_pairs != nullptr ? kSmallSide : kernels.unit == 2 ? 4 : 8;
  const bool few = std::min(p.m, p.n) <= most;
  return few && applicable(p, Method::kStream) ? Method::kStream : Method::kPanel;
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
  if (keeps_rule() || at::in_parallel_region()) return choose_by_rule(p);
  const ShapeClass shape = class_of(p);
  const uint64_t now = epoch.load(std::memory_order_acquire);
  Recent& slot = recent[ShapeClassHash{}(shape) % kRecent];
  if (slot.epoch == now && slot.shape == shape) return slot.method;
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

bool keeps_rule() { return disagreed.load(std::memory_order_relaxed) || !probe_enabled(); }

std::string agreement() {
  const std::string name = keeps_rule() ? "" : Book::instance().name();
  return name.empty() ? "rule" : name;
}

void agree_with(const std::vector<std::string>& agreements) {
  const auto& first = agreements.at(0);
  for (const auto& other : agreements) {
    if (other != first) disagreed = true;
  }
  // What is remembered may be of a file that has been deleted.
  forget_decisions();
}

Method propose_decision(const Problem& p, Method method) {
  return Book::instance().propose(class_of(p), {method, 0, 0}, {choose_by_rule(p), 0, 0});
}

}  // namespace torch_neuronx::gemm
