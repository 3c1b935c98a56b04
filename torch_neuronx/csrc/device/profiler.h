// Device activity for torch.profiler: while a profile is recorded, every operator that runs on a
// NeuronCore leaves an interval, which appears on the core's own track and as device time.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/state.h"
#include "registry/registry.h"

namespace torch_neuronx {

extern std::atomic<bool> g_profiling;

// Nanoseconds since the epoch.
int64_t profile_time();

// One operator on a core, from construction to destruction: for profiles, at the cost of one load
// when nobody profiles, and for the tools (registry/registry.h).
class ActivityScope {
 public:
  explicit ActivityScope(const std::string& name) : name_(name) {
    if (C10_UNLIKELY(g_profiling.load(std::memory_order_relaxed))) start_ = profile_time();
  }
  ~ActivityScope() {
    if (C10_UNLIKELY(start_ != 0)) finish();
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;
  void on(c10::DeviceIndex index) {
    index_ = index;
    execution_.on(index >= 0 ? index : current_device());
  }

 private:
  void finish() const;

  const std::string& name_;
  int64_t start_ = 0;
  c10::DeviceIndex index_ = -1;
  registry::Execution execution_;
};

// The operator that this thread is in, as a profile numbers it, or 0; and, while a scope is alive,
// that of another thread, whose work this one does.
int32_t profile_correlation();
class CorrelationScope {
 public:
  explicit CorrelationScope(int32_t correlation);
  ~CorrelationScope();
  CorrelationScope(const CorrelationScope&) = delete;
  CorrelationScope& operator=(const CorrelationScope&) = delete;

 private:
  const bool active_;
};

// Work on another thread than the operators': a collective. It has a row of its own below the
// core's, so that what overlaps can be seen. Made by the thread that issues it, which PyTorch
// knows. For use while `g_profiling`.
class CommunicationActivity {
 public:
  using Facts = std::vector<std::pair<std::string, std::string>>;

  // `group` names the row.
  static std::unique_ptr<CommunicationActivity> start(std::string name, c10::DeviceIndex index,
                                                      const std::string& group, Facts facts);
  void begin();  // in the thread that does it
  void end();

 private:
  std::string name_;
  Facts facts_;
  c10::DeviceIndex index_ = 0;
  int32_t row_ = 0, correlation_ = 0;
  int64_t begin_ = 0;
};

}  // namespace torch_neuronx
