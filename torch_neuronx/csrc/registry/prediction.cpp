#include "registry/prediction.h"

#include <algorithm>

#include "device/state.h"
#include "registry/tallies.h"

namespace torch_neuronx::registry {

void Prediction::count(int core, uint64_t executions) {
  if (!known_.load(std::memory_order_acquire)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!known_.load(std::memory_order_relaxed)) {
      Waiting& waiting = waiting_[core];
      ++waiting.calls;
      waiting.executions += executions;
      return;
    }
  }
  add(core, {1, executions});
}

void Prediction::know(const Counters& counters, const Places& call) {
  settle(counters.stride, call, {{counters.executions, 1}});
}

void Prediction::give_up(const Counters& counters) {
  settle(counters.stride, {{counters.unpredicted, 1}}, {});
}

void Prediction::settle(uint64_t stride, Places call, Places execution) {
  const uint64_t last = stride * static_cast<uint64_t>(std::max(device_count() - 1, 0));
  for (const Places& places : {call, execution})
    for (const auto& [place, amount] : places) (void)tally_at(place + last);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (known_.load(std::memory_order_relaxed)) return;
  stride_ = stride;
  call_ = std::move(call);
  execution_ = std::move(execution);
  for (const auto& [core, waiting] : waiting_) add(core, waiting);
  waiting_.clear();
  known_.store(true, std::memory_order_release);
}

void Prediction::add(int core, const Waiting& counted) const {
  const uint64_t shift = stride_ * static_cast<uint64_t>(core);
  const auto add = [shift](const Places& places, uint64_t times) {
    for (const auto& [place, amount] : places)
      std::atomic_ref<uint64_t>(tally_at(place + shift))
          .fetch_add(amount * times, std::memory_order_relaxed);
  };
  add(call_, counted.calls);
  if (counted.executions != 0) add(execution_, counted.executions);
}

}  // namespace torch_neuronx::registry
