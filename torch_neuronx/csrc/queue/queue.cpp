#include "queue/queue.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>
#include <pthread.h>

#include <array>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "device/pending.h"
#include "device/profiler.h"
#include "device/python_lock.h"
#include "device/state.h"
#include "queue/failure.h"
#include "registry/registry.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace torch_neuronx::queue {
namespace detail {
std::atomic<uint32_t> g_mode{0};
std::atomic<int64_t> g_pending{0};
thread_local int t_inside = 0;
}  // namespace detail

namespace {

// How far Python may run ahead. What waits takes little memory: a freed block is free at once.
constexpr uint64_t kCapacity = 1024;
// Handing work to a thread that sleeps costs more than many an operator, so each side looks for
// some microseconds before it sleeps.
constexpr int kLooks = 2000;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

thread_local bool t_works = false;  // this is the thread of some core

RegionRunner g_region_runner = nullptr;

std::atomic<int64_t> g_enqueued{0}, g_waits{0}, g_settled{0}, g_full{0};

class Queue {
  using Clock = std::chrono::steady_clock;

 public:
  explicit Queue(c10::DeviceIndex core) : core_(core), thread_([this] { work(); }) {}

  // False, and `work` untouched, if the queue is closed.
  bool push(std::unique_ptr<Work>& work) {
    for (;;) {
      uint64_t position = 0;
      {
        const std::lock_guard<std::mutex> lock(issue_);
        if (closed_.load(std::memory_order_relaxed)) return false;
        position = issued_.load(std::memory_order_relaxed);
        if (position - done_.load(std::memory_order_acquire) < kCapacity) {
          ring_[position % kCapacity] = std::move(work);
          detail::g_pending.fetch_add(1, std::memory_order_relaxed);
          issued_.store(position + 1, std::memory_order_seq_cst);
          if (asleep_.load(std::memory_order_seq_cst)) issued_.notify_one();
          return true;
        }
      }
      g_full.fetch_add(1, std::memory_order_relaxed);
      const WithoutPythonLock released;
      wait_until(position - kCapacity + 1);
    }
  }

  bool busy() const {
    return done_.load(std::memory_order_acquire) != issued_.load(std::memory_order_acquire);
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  uint64_t issued() const { return issued_.load(std::memory_order_acquire); }
  bool done(uint64_t position) const { return done_.load(std::memory_order_acquire) >= position; }

  // Until `position` pieces of work are done.
  void wait_until(uint64_t position) {
    wanted_.fetch_add(1, std::memory_order_relaxed);
    for (int i = 0; i < kLooks && !done(position); ++i) relax();
    for (uint64_t now = done_.load(); now < position; now = done_.load()) {
      waiting_.fetch_add(1);
      if (done_.load() == now) done_.wait(now);
      waiting_.fetch_sub(1);
    }
    wanted_.fetch_sub(1, std::memory_order_relaxed);
  }

  // Throws what failed, and forgets it.
  void tell() {
    if (!failed_.load(std::memory_order_acquire)) return;
    std::exception_ptr failure;
    {
      const std::lock_guard<std::mutex> lock(failure_mutex_);
      std::swap(failure, failure_);
      if (failure == nullptr) return;  // another thread was told
      failed_.store(false, std::memory_order_release);
      detail::g_pending.fetch_sub(1, std::memory_order_release);
    }
    std::rethrow_exception(failure);
  }

  void close() {
    {
      const std::lock_guard<std::mutex> lock(issue_);
      if (closed_.load()) return;
      wait_until(issued());
      closed_.store(true);
      done_.fetch_add(1);  // for the position that only wakes the thread
      issued_.fetch_add(1);
      issued_.notify_one();
    }
    thread_.join();
  }

 private:
  void work() {
    c10::setThreadName("neuron:" + std::to_string(core_));
    set_current_device_unchecked(core_);
    const Inside inside;
    t_works = true;
    const c10::impl::ExcludeDispatchKeyGuard guard(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView |
        c10::DispatchKeySet(
            {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1}));
    RegionOutcome outcome{0, 0};
    Clock::time_point began;
    for (uint64_t position = 0;;) {
      sleep_until_issued(position);
      if (closed_.load()) return;
      if (outcome.alone == 0 && looks_for_regions()) {
        outcome = run_region(position);
        if (outcome.took != nullptr) began = Clock::now();
      }
      size_t ran = std::exchange(outcome.done, 0);
      if (ran == 0) {
        run(*ring_[position % kCapacity]);
        ran = 1;
        if (outcome.alone > 0 && --outcome.alone == 0) write_down(outcome.took, began);
      }
      for (size_t i = 0; i < ran; ++i) ring_[(position + i) % kCapacity].reset();
      position += ran;
      detail::g_pending.fetch_sub(static_cast<int64_t>(ran), std::memory_order_release);
      done_.store(position, std::memory_order_seq_cst);
      if (waiting_.load(std::memory_order_seq_cst) != 0) done_.notify_all();
    }
  }

  RegionOutcome run_region(uint64_t position) {
    // Deterministic modes join nothing, though the bits are the same.
    if (g_region_runner == nullptr || at::globalContext().deterministicAlgorithms() ||
        failed_.load(std::memory_order_acquire))
      return {};
    Front front(*this, position);
    RegionOutcome outcome = g_region_runner(front);
    if (outcome.done > 0) outcome.alone = 0;
    if (outcome.failure != nullptr) fail(std::exchange(outcome.failure, nullptr), *front.at(0));
    return outcome;
  }

  // The next pieces of work: see Ahead.
  class Front final : public Ahead {
   public:
    Front(Queue& queue, uint64_t position) : queue_(queue), position_(position) {}
    Work* at(size_t k) override {
      const uint64_t wanted = position_ + k;
      if (wanted >= queue_.issued_.load(std::memory_order_acquire)) return nullptr;
      return queue_.ring_[wanted % kCapacity].get();
    }
    Work* await(size_t k, std::chrono::nanoseconds most) override {
      const auto end = Clock::now() + most;
      while (at(k) == nullptr && !is_waited_for() && Clock::now() < end) relax();
      return at(k);
    }
    bool is_waited_for() override { return queue_.wanted_.load(std::memory_order_relaxed) != 0; }

   private:
    Queue& queue_;
    const uint64_t position_;
  };

  void write_down(Took* took, Clock::time_point began) const {
    if (took == nullptr || failed_.load(std::memory_order_relaxed)) return;
    const int64_t now = std::chrono::nanoseconds(Clock::now() - began).count();
    took->total.fetch_add(now, std::memory_order_relaxed);
    if (now < took->shortest.load(std::memory_order_relaxed)) took->shortest.store(now);
  }

  void sleep_until_issued(uint64_t position) {
    for (int i = 0; i < kLooks; ++i) {
      if (issued_.load(std::memory_order_acquire) != position) return;
      relax();
    }
    asleep_.store(true, std::memory_order_seq_cst);
    while (issued_.load(std::memory_order_seq_cst) == position) issued_.wait(position);
    asleep_.store(false, std::memory_order_relaxed);
  }

  void run(Work& work) {
    if (failed_.load(std::memory_order_acquire)) {
      work.skip();
      return;
    }
    try {
      const CorrelationScope correlation(work.correlation);
      const registry::Enqueued enqueued(work.issued);
      work.run();
    } catch (...) {
      fail(std::current_exception(), work);
    }
  }

  void fail(std::exception_ptr failure, const Work& work) {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    failure_ = with_name(std::move(failure), work.name(), work.called_at);
    failed_.store(true, std::memory_order_release);
    detail::g_pending.fetch_add(1, std::memory_order_relaxed);  // until somebody is told
  }

  const c10::DeviceIndex core_;
  std::mutex issue_;
  std::array<std::unique_ptr<Work>, kCapacity> ring_;
  // Positions: how many pieces of work were ever issued, and done. Of the latter many threads write
  // the first and one the second, so they stand apart.
  alignas(64) std::atomic<uint64_t> issued_{0};
  std::atomic<bool> asleep_{false};
  alignas(64) std::atomic<uint64_t> done_{0};
  std::atomic<int> waiting_{0};  // threads that sleep until work is done
  std::atomic<int> wanted_{0};   // the same, and those that look
  std::atomic<bool> closed_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
  std::thread thread_;  // last: it uses all of the above
};

std::array<std::atomic<Queue*>, kMaxDevices> g_queues{};
std::mutex g_start;

Queue* queue_of(c10::DeviceIndex core) {
  return g_queues[static_cast<size_t>(core)].load(std::memory_order_acquire);
}

template <class Fn>
void for_each_queue(Fn fn) {
  for (int core = 0; core < device_count(); ++core)
    if (Queue* queue = queue_of(static_cast<c10::DeviceIndex>(core))) fn(*queue);
}

// A child has none of the threads; what they would do is done before it exists.
void before_fork() { wait_holding_locks(); }

Queue& start(c10::DeviceIndex core) {
  if (Queue* ready = queue_of(core)) return *ready;
  const std::lock_guard<std::mutex> lock(g_start);
  if (Queue* ready = queue_of(core)) return *ready;
  static const int registered = pthread_atfork(before_fork, nullptr, nullptr);
  TORCH_CHECK(registered == 0, "pthread_atfork failed");
  auto* made = new Queue(core);  // lives as long as the process: a thread may still wait in it
  g_queues[static_cast<size_t>(core)].store(made, std::memory_order_release);
  return *made;
}

class Mark final : public Completion {
 public:
  explicit Mark(c10::DeviceIndex core) : core_(core) {}
  bool done() const noexcept override { return queue_of(core_)->done(position_.load()); }
  void wait() override {
    Queue& queue = *queue_of(core_);
    queue.wait_until(position_.load());
    queue.tell();
  }
  std::chrono::steady_clock::time_point finished_at() const noexcept override {
    return std::chrono::steady_clock::time_point(
        std::chrono::steady_clock::duration(finished_at_.load()));
  }
  void finish() { finished_at_.store(std::chrono::steady_clock::now().time_since_epoch().count()); }
  void stand_at(uint64_t position) { position_.store(position); }
  c10::DeviceIndex core() const { return core_; }

 private:
  const c10::DeviceIndex core_;
  std::atomic<uint64_t> position_{UINT64_MAX};  // done when so many pieces of work are
  std::atomic<std::chrono::steady_clock::rep> finished_at_{0};
};

class MarkWork final : public Work {
 public:
  explicit MarkWork(std::shared_ptr<Mark> mark) : mark_(std::move(mark)) {}
  void run() override { mark_->finish(); }
  void skip() override { mark_->finish(); }
  std::string name() const override { return "an event"; }

 private:
  const std::shared_ptr<Mark> mark_;
};

std::atomic<WatchWaits> g_watch{WatchWaits::kOff};
void set_bit(uint32_t bit, bool on) {
  if (on) {
    detail::g_mode.fetch_or(bit);
  } else {
    detail::g_mode.fetch_and(~bit);
  }
}
}  // namespace

Mode mode() {
  return looks_for_regions()                               ? Mode::kFused
         : (detail::g_mode.load() & detail::kAsynchronous) ? Mode::kStrict
                                                           : Mode::kDebug;
}
void set_mode(Mode mode) {
  wait_all();
  set_bit(detail::kAsynchronous, mode != Mode::kDebug);
  set_bit(detail::kLooksForRegions, mode == Mode::kFused);
}
void set_region_runner(RegionRunner runner) { g_region_runner = runner; }

WatchWaits watch_waits() { return g_watch.load(); }
void set_watch_waits(WatchWaits watch) {
  g_watch.store(watch);
  set_bit(detail::kWatchWaits, watch != WatchWaits::kOff);
}
void note_wait(const std::string& what) {
  const WatchWaits watch = g_watch.load(std::memory_order_relaxed);
  const std::string text = what + " makes the host wait for the NeuronCore's values";
  TORCH_CHECK(watch != WatchWaits::kError, text);
  TORCH_WARN(text);
}

void push(c10::DeviceIndex core, std::unique_ptr<Work> work) {
  work->called_at = users_line();
  if (profiling()) work->correlation = profile_correlation();
  g_enqueued.fetch_add(1, std::memory_order_relaxed);
  work->issued = registry::ticks();
  if (profiling()) {
    const std::string name = work->name();
    const int64_t began = profile_time();
    const bool pushed = start(core).push(work);
    note_issue(name, core, began);
    if (pushed) return;
  } else if (start(core).push(work)) {
    return;
  }
  const Inside inside;
  work->run();
}

bool busy(c10::DeviceIndex core) {
  const Queue* queue = queue_of(core);
  return queue != nullptr && queue->busy();
}

void wait(c10::DeviceIndex core) {
  Queue* queue = queue_of(core);
  if (queue == nullptr || detail::t_inside != 0) return;
  if (queue->busy()) {
    g_waits.fetch_add(1, std::memory_order_relaxed);
    const WithoutPythonLock released;
    queue->wait_until(queue->issued());
  }
  queue->tell();
}

namespace detail {
void wait_for_readers_slow(c10::DeviceIndex core) {
  Queue* queue = queue_of(core);
  // The thread of a core has its memory promised (memory/ledger.h).
  if (queue == nullptr || t_works || is_in_bad_fork()) return;
  const WithoutPythonLock released;
  queue->wait_until(queue->issued());
}

void wait_all_slow() {
  if (is_in_bad_fork()) return;
  for (int core = 0; core < device_count(); ++core) wait(static_cast<c10::DeviceIndex>(core));
}
}  // namespace detail

void wait_holding_locks() noexcept {
  if (!busy() || detail::t_inside != 0 || is_in_bad_fork()) return;
  for_each_queue([](Queue& queue) { queue.wait_until(queue.issued()); });
}

namespace {
// `as_work`: the mark is the last piece of work, and else behind it.
std::shared_ptr<Completion> make_mark(c10::DeviceIndex core, bool as_work) {
  Queue* queue = queue_of(core);
  if (queue == nullptr || !(queue->busy() || queue->failed())) return nullptr;
  auto made = std::make_shared<Mark>(core);
  if (as_work) {
    std::unique_ptr<Work> work = std::make_unique<MarkWork>(made);
    if (!queue->push(work)) return nullptr;
  }
  // Others may have enqueued more meanwhile: then it is done a little later.
  made->stand_at(queue->issued());
  return made;
}
}  // namespace

std::shared_ptr<Completion> end_of(c10::DeviceIndex core) { return make_mark(core, false); }
std::shared_ptr<Completion> mark(c10::DeviceIndex core) { return make_mark(core, true); }

bool is_mark_of(const Completion& completion, c10::DeviceIndex core) {
  const auto* mark = dynamic_cast<const Mark*>(&completion);
  return mark != nullptr && mark->core() == core;
}

Stats stats() { return {g_enqueued.load(), g_waits.load(), g_settled.load(), g_full.load()}; }
void count_settled() { g_settled.fetch_add(1, std::memory_order_relaxed); }
void reset_stats() {
  for (auto* each : {&g_enqueued, &g_waits, &g_settled, &g_full}) each->store(0);
}

void close() {
  if (is_in_bad_fork()) return;
  for_each_queue([](Queue& queue) { queue.close(); });
  for_each_queue([](Queue& queue) { queue.tell(); });
}

}  // namespace torch_neuronx::queue
