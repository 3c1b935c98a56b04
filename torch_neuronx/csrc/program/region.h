// What is known of regions. For regions.cpp, which runs them, region_table.cpp, which keeps them,
// and region_programs.cpp, which has them compiled and tells Python of them.
#pragma once

#include <Python.h>

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
  struct Call {  // a result of one, as Member is
    std::string name, overload;
    size_t result;
    std::vector<Given> arguments;  // none but of the first result
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
// one before.
struct Start {
  std::map<std::vector<uint64_t>, std::unique_ptr<Start>> next;  // by what the next call is
  std::vector<Region*> regions;                                  // of just these calls
  bool leads_on = false;  // a longer region that begins so is compiled
  // Of the calls, one by one. A queue may write it down after this node is forgotten.
  std::shared_ptr<queue::Took> took = std::make_shared<queue::Took>();

  bool is_ready() const;  // some region of just these calls is compiled
};

// What is known of a region.
struct Region {
  enum class State { kSeen, kWanted, kReady, kGivenUp };
  size_t number = 0;
  State state = State::kSeen;
  int seen = 0;
  uint64_t used = 0;  // the clock of all regions when it came by last
  Description description;
  std::vector<queue::SettledPtr> kinds;  // so that their addresses stay theirs
  Start* calls = nullptr;
  std::vector<Start*> beginnings;  // from behind the root to the one before `calls`
  std::shared_ptr<const Program> program;
  PyObject* program_object = nullptr;  // owns the machine code
  std::string activity;                // for profiles: the operators
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
  std::map<size_t, Region> all;              // by number; addresses are stable
  size_t next_number = 0;
  uint64_t clock = 0;
  std::deque<size_t> wanted;  // numbers
  RegionStats stats;
  // Threads of queues that may hold regions and starts without the lock; see Reader.
  std::atomic<int> readers{0};
  // Whether no region that was forgotten last had come a second time, and new ones since.
  bool fruitless = false;
  size_t since_fruitless = 0;
  std::vector<PyObject*> unneeded;  // programs to let go of, by a thread that has Python's lock
};
Regions& known_regions();
inline Regions& g_regions = known_regions();

// While one exists, its thread may hold regions and starts without the lock: only that thread
// itself forgets any, by calling region_of().
class Reader {
 public:
  Reader() { g_regions.readers.fetch_add(1); }
  ~Reader() { g_regions.readers.fetch_sub(1); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

// The region of these calls and results, made where there is none; null where none is to be tried.
// The caller holds the lock and is the thread of a Reader. Regions may be forgotten to make room,
// and all starts and regions that the caller holds with them.
Region* region_of(const Collected& found, const std::vector<size_t>& outputs);

}  // namespace torch_neuronx::program
