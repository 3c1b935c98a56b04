#include "device/event.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace torch_neuronx {

void Event::record(c10::DeviceIndex core, bool timing, Completions pending) {
  std::lock_guard<std::mutex> lock(mutex_);
  core_ = core;
  timing_ = timing;
  ++records_;
  when_ = Clock::now();
  settled_ = pending.empty();
  pending_.swap(pending);  // the old ones are destroyed by the caller, after the lock is released
}

Completions Event::pending() {
  std::lock_guard<std::mutex> lock(mutex_);
  return pending_;
}

bool Event::done() {
  Completions open;
  uint64_t records = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (settled_) return true;
    open = pending_;
    records = records_;
  }
  Clock::time_point finished{};
  for (const auto& completion : open) {
    if (!completion->done()) return false;
    const auto at = completion->finished_at();  // at an unknown time: before now
    finished = std::max(finished, at == Clock::time_point{} ? Clock::now() : at);
  }
  const Completions released = take_settled(&open);  // an event needn't keep their memory
  std::lock_guard<std::mutex> lock(mutex_);
  if (!settled_ && records_ == records) {
    settled_ = true;
    when_ = std::max(when_, finished);
    pending_.swap(open);
  }
  return records_ == records;  // recorded anew meanwhile: not for us to say
}

void Event::wait() {
  wait_for(pending());
  (void)done();
}

Event::Clock::time_point Event::time() {
  TORCH_CHECK(done(), "Both events must be completed before calculating elapsed time.");
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(timing_, "Both events must be created with argument 'enable_timing=True'.");
  return when_;
}

c10::DeviceIndex Event::core() {
  std::lock_guard<std::mutex> lock(mutex_);
  return core_;
}

}  // namespace torch_neuronx
