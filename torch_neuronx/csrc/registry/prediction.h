// What calls of one kind are predicted to take, counted as they succeed. A prediction comes from
// Python, in a thread that no call waits for: calls until then are kept and added when it is there.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_neuronx::registry {

// Where executions are counted among the tallies, by core: those of core i are `stride * i` behind
// those of core 0.
struct Counters {
  uint64_t executions = 0;   // that a predicted time is of
  uint64_t unpredicted = 0;  // those that have none
  uint64_t stride = 0;
};

class Prediction {
 public:
  bool known() const { return known_.load(std::memory_order_acquire); }
  // A call on a core has succeeded. `executions`: as the process' own file counts it; calls that
  // run as one are one execution, and a collective is none.
  void count(int core, uint64_t executions = 1);
  // What a call adds to the tallies: places (of core 0), and by how much. Throws ValueError if
  // there is no such place, on any core.
  void know(const Counters& counters, const std::vector<std::pair<uint64_t, uint64_t>>& call);
  // There is none.
  void give_up(const Counters& counters);

 private:
  struct Waiting {
    uint64_t calls = 0, executions = 0;
  };
  using Places = std::vector<std::pair<uint64_t, uint64_t>>;
  void settle(uint64_t stride, Places call, Places execution);
  void add(int core, const Waiting& counted) const;

  std::atomic<bool> known_{false};
  // Written before that, with the mutex held.
  uint64_t stride_ = 0;
  Places call_, execution_;
  std::mutex mutex_;
  std::unordered_map<int, Waiting> waiting_;  // by core
};

}  // namespace torch_neuronx::registry
