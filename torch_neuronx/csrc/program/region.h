// What is known of regions. For regions.cpp, which runs them, and region_programs.cpp, which has
// them compiled and tells Python of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "program/collected.h"
#include "program/program.h"
#include "program/regions.h"

namespace torch_neuronx::program {

// A region without the addresses of its first call.
struct Description {
  c10::DeviceIndex core = 0;
  std::vector<Input> inputs;
  struct Call {
    std::string name, overload;
    std::vector<Given> arguments;
    at::ScalarType dtype;
    c10::DimVector sizes, strides;
    int replaces;
    std::string called_at;  // the user's line, where lines are kept
  };
  std::vector<Call> calls;
  std::vector<size_t> outputs;
};

struct Region;

// Calls by which a region may begin, as a tree: the root has none, and each other one more than the
// one before. Nodes and regions live as long as the process.
struct Start {
  std::map<std::vector<uint64_t>, std::unique_ptr<Start>> next;  // by what the next call is
  std::vector<Region*> regions;                                  // of just these calls
  bool leads_on = false;  // a longer region that begins so is compiled
  queue::Took took;       // one by one

  bool is_ready() const;  // some region of just these calls is compiled
};

// What is known of a region.
struct Region {
  enum class State { kSeen, kWanted, kReady, kGivenUp };
  size_t number = 0;
  State state = State::kSeen;
  int seen = 0;
  Description description;
  std::vector<queue::SettledPtr> kinds;  // so that their addresses stay theirs
  Start* calls = nullptr;
  std::vector<Start*> beginnings;  // from behind the root to the one before `calls`
  std::shared_ptr<const Program> program;
  std::string activity;  // for profiles: the operators
  int judged_runs = 0;
  int64_t shortest = INT64_MAX;  // nanoseconds of the program
  // Since reset_region_stats().
  int64_t runs = 0, separately = 0;
  std::map<std::string, int64_t> ended_by;
};

// All of a process. `mutex` guards the rest, and what is not atomic in regions and their starts.
struct Regions {
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  std::map<c10::DeviceIndex, Start> starts;  // the roots
  std::deque<Region> all;                    // by number; addresses are stable
  std::deque<size_t> wanted;                 // numbers
  RegionStats stats;
};
Regions& known_regions();
inline Regions& g_regions = known_regions();

}  // namespace torch_neuronx::program
