#include "queue/queue.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <mutex>
#include <utility>

#include "device/pending.h"
#include "device/profiler.h"
#include "device/python_lock.h"
#include "device/state.h"
#include "queue/failure.h"
#include "queue/stream_queue.h"
#include "registry/registry.h"

namespace torch_neuronx::queue {
namespace detail {
std::atomic<uint32_t> g_mode{0};
std::atomic<int64_t> g_pending{0};
thread_local int t_inside = 0;
}  // namespace detail

namespace {

RegionRunner g_region_runner = nullptr;

std::atomic<int64_t> g_enqueued{0}, g_waits{0}, g_settled{0}, g_ruled{0}, g_full{0};

Core& core_of(c10::DeviceIndex index) {
  static auto& cores = *[] {  // to the end of the process, as the queues are
    auto* made = new std::array<Core, kMaxDevices>;
    for (size_t i = 0; i < made->size(); ++i)
      (*made)[i].set_index(static_cast<c10::DeviceIndex>(i));
    return made;
  }();
  return cores[static_cast<size_t>(index)];
}

// Null if nothing was ever enqueued there.
StreamQueue* queue_of(c10::DeviceIndex core, int slot) { return core_of(core).queue(slot); }
StreamQueue* queue_of(c10::Stream stream) {
  return queue_of(stream.device_index(), slot_of(stream.id()));
}

template <class Fn>
void for_each_core(Fn fn) {
  for (int core = 0; core < device_count(); ++core)
    fn(core_of(static_cast<c10::DeviceIndex>(core)));
}

// A child has none of the threads; what they would do is done before it exists.
void before_fork() { wait_holding_locks(); }

std::atomic<bool> g_closed{false};

void push_on(c10::DeviceIndex core, int slot, std::unique_ptr<Work> work) {
  work->called_at = users_line();
  work->issued = registry::ticks();
  g_enqueued.fetch_add(1, std::memory_order_relaxed);
  StreamQueue* queue = queue_of(core, slot);
  if (queue == nullptr && !g_closed.load()) {
    static const int registered = pthread_atfork(before_fork, nullptr, nullptr);
    TORCH_CHECK(registered == 0, "pthread_atfork failed");
    queue = &core_of(core).start(slot);
  }
  if (profiling()) {
    work->correlation = profile_correlation();
    const std::string name = work->name();
    const int64_t began = profile_time();
    const bool pushed = queue != nullptr && queue->push(work);
    note_issue(name, core, began);
    if (pushed) return;
  } else if (queue != nullptr && queue->push(work)) {
    return;
  }
  const Inside inside;
  work->run();
}

thread_local bool t_serves = false;

class Mark final : public Completion {
 public:
  explicit Mark(StreamQueue& queue) : queue_(queue) {}
  bool done() const noexcept override { return queue_.done(position_.load()); }
  void wait() override {
    queue_.wait_until(position_.load());
    Core& core = queue_.core();
    // Another stream of the core doesn't run either while somebody is to be told.
    if (core_of_thread() == &core) return;
    if (core_of_thread() == nullptr && !t_serves) return core.tell();
    core.throw_failure();
    // Somebody was told meanwhile.
    TORCH_CHECK(!skipped_.load(), "did not begin: earlier work of neuron:", core.index(),
                " failed, and what it was to give is not there");
  }
  bool went_well() noexcept override { return !skipped_.load() && !queue_.core().failed(); }
  std::chrono::steady_clock::time_point finished_at() const noexcept override {
    return std::chrono::steady_clock::time_point(
        std::chrono::steady_clock::duration(finished_at_.load()));
  }
  void skip() {
    skipped_.store(true);
    finish();
  }
  void finish() { finished_at_.store(std::chrono::steady_clock::now().time_since_epoch().count()); }
  void stand_at(uint64_t position) { position_.store(position); }
  const StreamQueue& queue() const { return queue_; }

 private:
  StreamQueue& queue_;
  std::atomic<uint64_t> position_{UINT64_MAX};  // done when so many pieces of work are
  std::atomic<bool> skipped_{false};            // if it is work itself
  std::atomic<std::chrono::steady_clock::rep> finished_at_{0};
};

class MarkWork final : public Work {
 public:
  explicit MarkWork(std::shared_ptr<Mark> mark) : mark_(std::move(mark)) {}
  void run() override { mark_->finish(); }
  void skip() override { mark_->skip(); }
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
RegionRunner region_runner() { return g_region_runner; }

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

void push(c10::Stream stream, std::unique_ptr<Work> work) {
  push_on(stream.device_index(), slot_of(stream.id()), std::move(work));
}
void push(c10::DeviceIndex core, std::unique_ptr<Work> work) {
  push_on(core, current_slot(core), std::move(work));
}

bool busy(c10::Stream stream) {
  const StreamQueue* queue = queue_of(stream);
  return queue != nullptr && queue->busy();
}
bool busy(c10::DeviceIndex core) { return core_of(core).busy(); }

uint64_t issued(c10::DeviceIndex core, int slot) {
  const StreamQueue* queue = queue_of(core, slot);
  return queue == nullptr ? 0 : queue->issued();
}
bool done(c10::DeviceIndex core, int slot, uint64_t position) {
  const StreamQueue* queue = queue_of(core, slot);
  return queue == nullptr || queue->done(position);
}

namespace {
void wait_for_queue(StreamQueue& queue) {
  if (!queue.busy()) return;
  g_waits.fetch_add(1, std::memory_order_relaxed);
  const WithoutPythonLock released;
  queue.wait_until(queue.issued());
}
void wait_for_stream(c10::DeviceIndex core, int slot) {
  if (detail::t_inside != 0) return;
  if (StreamQueue* queue = queue_of(core, slot)) wait_for_queue(*queue);
  core_of(core).tell();
}
}  // namespace

void wait(c10::Stream stream) { wait_for_stream(stream.device_index(), slot_of(stream.id())); }
void wait(c10::DeviceIndex core) {
  if (detail::t_inside != 0) return;
  core_of(core).for_each_queue(wait_for_queue);
  core_of(core).tell();
}

namespace detail {
void wait_for_readers_slow(c10::DeviceIndex core) {
  // The thread of a core has its memory promised (memory/ledger.h). What other streams still use
  // was not allocated.
  if (core_of_thread() != nullptr || is_in_bad_fork()) return;
  StreamQueue* queue = queue_of(core, current_slot(core));
  if (queue == nullptr) return;
  const WithoutPythonLock released;
  queue->wait_until(queue->issued());
}

void wait_current_slow() {
  if (is_in_bad_fork()) return;
  for (int i = 0; i < device_count(); ++i) {
    const auto core = static_cast<c10::DeviceIndex>(i);
    wait_for_stream(core, current_slot(core));
  }
}
void wait_all_slow() {
  if (is_in_bad_fork()) return;
  for_each_core([](Core& core) { wait(core.index()); });
}
}  // namespace detail

void wait_holding_locks() noexcept {
  if (!busy() || detail::t_inside != 0 || is_in_bad_fork()) return;
  for_each_core([](Core& core) {
    core.for_each_queue([](StreamQueue& queue) { queue.wait_until(queue.issued()); });
  });
}

namespace {
// `as_work`: the mark is the last piece of work, and else behind it.
std::shared_ptr<Completion> make_mark(c10::Stream stream, bool as_work) {
  StreamQueue* queue = queue_of(stream);
  if (queue == nullptr || !(queue->busy() || queue->core().failed())) return nullptr;
  auto made = std::make_shared<Mark>(*queue);
  if (as_work) {
    std::unique_ptr<Work> work = std::make_unique<MarkWork>(made);
    if (!queue->push(work)) return nullptr;
  }
  // Others may have enqueued more meanwhile: then it is done a little later.
  made->stand_at(queue->issued());
  return made;
}
}  // namespace

void serve_on_this_thread() { t_serves = true; }

std::shared_ptr<Completion> end_of(c10::Stream stream) { return make_mark(stream, false); }
std::shared_ptr<Completion> mark(c10::Stream stream) { return make_mark(stream, true); }

bool is_mark_of(const Completion& completion, c10::Stream stream) {
  const auto* mark = dynamic_cast<const Mark*>(&completion);
  return mark != nullptr && &mark->queue() == queue_of(stream);
}

namespace {
std::mutex g_exchange_mutex;
std::shared_ptr<Completion>& last_exchange() {
  static auto* last = new std::shared_ptr<Completion>;  // outlives the threads
  return *last;
}
}  // namespace

void order_exchange(std::optional<c10::Stream> stream) {
  if (C10_LIKELY(!busy()) || detail::t_inside != 0) return;
  std::shared_ptr<Completion> last;
  {
    const std::lock_guard<std::mutex> lock(g_exchange_mutex);
    last = last_exchange();
  }
  if (last == nullptr || last->done() || (stream && is_mark_of(*last, *stream))) return;
  const WithoutPythonLock released;
  last->wait();
}
void note_exchange(c10::Stream stream) {
  std::shared_ptr<Completion> last = end_of(stream);
  const std::lock_guard<std::mutex> lock(g_exchange_mutex);
  last_exchange() = std::move(last);
}

Stats stats() {
  return {g_enqueued.load(), g_waits.load(), g_settled.load(), g_ruled.load(), g_full.load()};
}
void count_settled() { g_settled.fetch_add(1, std::memory_order_relaxed); }
void count_ruled() { g_ruled.fetch_add(1, std::memory_order_relaxed); }
void count_full() { g_full.fetch_add(1, std::memory_order_relaxed); }
void reset_stats() {
  for (auto* each : {&g_enqueued, &g_waits, &g_settled, &g_ruled, &g_full}) each->store(0);
}

void close() {
  if (is_in_bad_fork()) return;
  g_closed.store(true);
  for_each_core([](Core& core) { core.for_each_queue([](StreamQueue& each) { each.close(); }); });
  for_each_core([](Core& core) { core.tell(); });
}

}  // namespace torch_neuronx::queue
