// Executions on NeuronCores, for whoever watches them: torch.profiler, which shows every operator,
// copy, collective and program as an interval of its core, and faults on demand (device/faults.h).
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/state.h"
#include "registry/registry.h"

namespace torch_neuronx {

// Why executions are watched; 0 while nobody does, which is all that they cost then.
inline constexpr uint32_t kProfiled = 1, kFaulty = 2;
extern std::atomic<uint32_t> g_watched;  // of these bits
inline bool watched() { return C10_UNLIKELY(g_watched.load(std::memory_order_relaxed) != 0); }
inline bool profiling() {
  return C10_UNLIKELY((g_watched.load(std::memory_order_relaxed) & kProfiled) != 0);
}

// Nanoseconds since the epoch.
int64_t profile_time();

enum class ActivityKind : uint8_t { kKernel, kCopy, kProgram, kCommunication, kIssue };
// What a profile says about an activity beside its name.
using Facts = std::vector<std::pair<std::string, std::string>>;

// One operator, step or program on a core, from construction to destruction: for profiles, at the
// cost of one load when nobody profiles, and for the tools (registry/registry.h).
class ActivityScope {
 public:
  explicit ActivityScope(const std::string& name, ActivityKind kind = ActivityKind::kKernel)
      : name_(name), kind_(kind) {
    if (watched()) begin();
  }
  ~ActivityScope() {
    if (C10_UNLIKELY(seen_ != nullptr)) finish();
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;
  // To be called before the work begins. Throws what a fault on demand raises.
  void on(c10::DeviceIndex index) {
    index_ = index;
    execution_.on(index >= 0 ? index : current_device());
    if (C10_UNLIKELY(seen_ != nullptr)) reach();
  }
  // Adds to what a profile says about the innermost scope of this thread that is watched.
  static void note(Facts facts);
  // The same, for one that copies: between "HtoD", "DtoH" or "DtoD".
  static void note_copy(const char* direction, size_t bytes);
  // What a fault on demand wants the result to be spoilt with, for faults::spoil(); else 0.
  double spoilt_by() const { return C10_LIKELY(seen_ == nullptr) ? 0 : seen_spoilt_by(); }

 private:
  struct Seen;
  void begin();
  void reach();
  void finish();
  double seen_spoilt_by() const;

  const std::string& name_;
  Seen* seen_ = nullptr;  // while watched
  c10::DeviceIndex index_ = -1;
  ActivityKind kind_;
  registry::Execution execution_;
};

// The runtime's own recording, for whoever wants activities without torch.profiler: one at a time,
// beside torch.profiler's. Of each core the latest `most` are kept; `cores`: a bit for each.
void start_recording(size_t most, uint64_t cores);
struct RecordedActivity {
  const std::string& name;
  const char* kind;  // "kernel", "copy", "program", "communication", "issue"
  int64_t start, end;
  int core;
  int32_t row;  // stream; of communication, the group's; of an issue, the thread
  Facts facts;
};
// Ends it and shows what it has, by core and oldest first; returns how many were dropped.
int64_t take_recording(const std::function<void(const RecordedActivity&)>& see);

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
// knows. For use while profiling().
class CommunicationActivity {
 public:
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

// The call by which the host issued work to a core's queue, from `start` to now. For use while
// profiling().
void note_issue(const std::string& name, c10::DeviceIndex index, int64_t start);

}  // namespace torch_neuronx
