#include "queue/stream_queue.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/thread_name.h>

#include <utility>

#include "device/profiler.h"
#include "device/python_lock.h"
#include "device/relax.h"
#include "device/state.h"
#include "queue/failure.h"
#include "registry/registry.h"

namespace torch_neuronx::queue {
namespace {

// Handing work to a thread that sleeps costs more than many an operator, so each side looks for
// some microseconds before it sleeps.
constexpr int kLooks = 2000;

thread_local Core* t_core = nullptr;

}  // namespace

Core* core_of_thread() { return t_core; }

StreamQueue::StreamQueue(Core& core, int slot)
    : core_(core), slot_(slot), thread_([this] { work(); }) {}

bool StreamQueue::push(std::unique_ptr<Work>& work) {
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
    count_full();
    const WithoutPythonLock released;
    wait_until(position - kCapacity + 1);
  }
}

void StreamQueue::wait_until(uint64_t position) {
  if (done(position)) return;
  core_.wanted.fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; i < kLooks && !done(position); ++i) relax();
  for (uint64_t now = done_.load(); now < position; now = done_.load()) {
    waiting_.fetch_add(1);
    if (done_.load() == now) done_.wait(now);
    waiting_.fetch_sub(1);
  }
  core_.wanted.fetch_sub(1, std::memory_order_relaxed);
}

void StreamQueue::close() {
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

void StreamQueue::work() {
  const std::string name = c10::str("neuron:", static_cast<int>(core_.index()));
  c10::setThreadName(slot_ == 0 ? name : c10::str(name, "/", slot_));
  set_current_device_unchecked(core_.index());
  (void)exchange_stream(
      c10::Stream(c10::Stream::UNSAFE, c10::Device(kNeuron, core_.index()), slot_));
  const Inside inside;
  t_core = &core_;
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1}));
  RegionOutcome region{0, 0};
  Clock::duration took{};  // by what is to be run alone
  for (uint64_t position = 0;;) {
    sleep_until_issued(position);
    if (closed_.load()) return;
    size_t ran = 1;
    if (Work& next = *ring_[position % kCapacity]; next.waits()) {
      run(next, position);
    } else {
      ran = run_in_turn(position, region, took);
    }
    for (size_t i = 0; i < ran; ++i) ring_[(position + i) % kCapacity].reset();
    position += ran;
    detail::g_pending.fetch_sub(static_cast<int64_t>(ran), std::memory_order_release);
    done_.store(position, std::memory_order_seq_cst);
    if (waiting_.load(std::memory_order_seq_cst) != 0) done_.notify_all();
  }
}

// Runs a region or one piece of work; returns how many pieces that were.
size_t StreamQueue::run_in_turn(uint64_t position, RegionOutcome& region, Clock::duration& took) {
  const std::lock_guard<std::mutex> turn(core_.turn);
  if (region.alone == 0 && looks_for_regions()) {
    region = run_region(position);
    took = {};
    if (region.done > 0) return region.done;
  }
  const auto began = region.took == nullptr ? Clock::time_point() : Clock::now();
  run(*ring_[position % kCapacity], position);
  if (region.took != nullptr) took += Clock::now() - began;
  if (region.alone > 0 && --region.alone == 0) write_down(region.took, took);
  return 1;
}

// The next pieces of work: see Ahead.
class StreamQueue::Front final : public Ahead {
 public:
  Front(StreamQueue& queue, uint64_t position) : queue_(queue), position_(position) {}
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
  bool is_waited_for() override { return queue_.core_.wanted.load(std::memory_order_relaxed) != 0; }

 private:
  StreamQueue& queue_;
  const uint64_t position_;
};

RegionOutcome StreamQueue::run_region(uint64_t position) {
  // Deterministic modes join nothing, though the bits are the same.
  const RegionRunner runner = region_runner();
  if (runner == nullptr || at::globalContext().deterministicAlgorithms() || skips(position))
    return {};
  Front front(*this, position);
  RegionOutcome outcome = runner(front);
  if (outcome.done > 0) outcome.alone = 0;
  if (outcome.failure != nullptr) fail(std::exchange(outcome.failure, nullptr), *front.at(0));
  return outcome;
}

void StreamQueue::write_down(const std::shared_ptr<Took>& where, Clock::duration took) const {
  if (where == nullptr || core_.failed()) return;
  const int64_t now = std::chrono::nanoseconds(took).count();
  where->total.fetch_add(now, std::memory_order_relaxed);
  if (now < where->shortest.load(std::memory_order_relaxed)) where->shortest.store(now);
}

void StreamQueue::sleep_until_issued(uint64_t position) {
  for (int i = 0; i < kLooks; ++i) {
    if (issued_.load(std::memory_order_acquire) != position) return;
    relax();
  }
  asleep_.store(true, std::memory_order_seq_cst);
  while (issued_.load(std::memory_order_seq_cst) == position) issued_.wait(position);
  asleep_.store(false, std::memory_order_relaxed);
}

bool StreamQueue::skips(uint64_t position) const {
  return core_.failed() || position < skipped_.load(std::memory_order_acquire);
}

void StreamQueue::run(Work& work, uint64_t position) {
  if (skips(position)) {
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

void StreamQueue::fail(std::exception_ptr failure, const Work& work) {
  core_.fail(with_name(std::move(failure), work.name(), work.called_at));
}

StreamQueue& Core::start(int slot) {
  auto& place = queues_[static_cast<size_t>(slot)];
  const std::lock_guard<std::mutex> lock(start_);
  if (StreamQueue* ready = place.load(std::memory_order_acquire)) return *ready;
  auto* made = new StreamQueue(*this, slot);  // to the end of the process: somebody may wait in it
  place.store(made, std::memory_order_release);
  return *made;
}

bool Core::busy() const {
  bool any = false;
  for_each_queue([&](const StreamQueue& queue) { any = any || queue.busy(); });
  return any;
}

void Core::fail(std::exception_ptr failure) {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (failure_ != nullptr) return;  // the first is told
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
  detail::g_pending.fetch_add(1, std::memory_order_relaxed);  // until somebody is told
}

void Core::throw_failure() {
  std::exception_ptr failure;
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    failure = failure_;
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void Core::tell() {
  if (!failed()) return;
  std::exception_ptr failure;
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    std::swap(failure, failure_);
    if (failure == nullptr) return;  // another thread was told
    for_each_queue([](StreamQueue& queue) { queue.skip_issued(); });
    failed_.store(false, std::memory_order_release);
    detail::g_pending.fetch_sub(1, std::memory_order_release);
  }
  leave_printing();
  std::rethrow_exception(failure);
}

}  // namespace torch_neuronx::queue
