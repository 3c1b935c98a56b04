// What the tools around the device (neuron-ls, neuron-monitor and others) see of this process:
// counters in a small file that is mapped into memory, private to the user. It is made when the
// device is first used and removed at exit; neuron_tools/registry reads it. Before, and in a forked
// child, counting goes to memory that nobody reads.
//
// To count an execution costs two readings of the clock and two additions.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace torch_neuronx::registry {

using Counter = std::atomic<uint64_t>;
inline void add(Counter& counter, uint64_t amount) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}
inline void subtract(Counter& counter, uint64_t amount) {
  counter.fetch_sub(amount, std::memory_order_relaxed);
}
inline void set(Counter& counter, uint64_t value) {
  counter.store(value, std::memory_order_relaxed);
}

struct Core {
#define CORE_NUMBER(name) Counter name;
#define CORE_SERIES(name, count) std::array<Counter, count> name;
#include "../../../neuron_tools/registry/layout.inc"
};

// Of this process, by index; always valid.
extern constinit std::atomic<Core*> g_cores;
inline Core& core(int index) { return g_cores.load(std::memory_order_relaxed)[index]; }

namespace detail {
extern const bool g_reads_tsc;  // the processor's counter runs at one rate, whatever happens
uint64_t nanoseconds();
}  // namespace detail

// A clock for durations; its rate is in the file's header.
inline uint64_t ticks() {
#if defined(__x86_64__)
  if (__builtin_expect(detail::g_reads_tsc, 1)) return __builtin_ia32_rdtsc();
#endif
  return detail::nanoseconds();
}

// The bucket of a latency: eight for each power of two, so a latency is known to within an eighth.
inline size_t bucket(uint64_t ticks) {
  if (ticks < 8) return ticks;
  const int power = 63 - __builtin_clzll(ticks);
  const size_t found = static_cast<size_t>(power - 2) * 8 + ((ticks >> (power - 3)) & 7);
  return found < REGISTRY_BUCKETS ? found : REGISTRY_BUCKETS - 1;
}

// What the calling thread is in the middle of.
struct Thread {
  int depth = 0;         // of executions; what one does by others is its own work
  int failure = 0;       // status of the error that was thrown, if who threw it said
  uint64_t issued = 0;   // when the work was enqueued that this thread does, or 0
  Core* core = nullptr;  // of the execution
};
extern constinit thread_local Thread t_thread;

// An execution on a core, from construction to destruction: of an operator, or of a program. It
// failed if an exception ends it.
class Execution {
 public:
  Execution() : thread_(t_thread) {
    if (thread_.depth++ != 0) return;
    thread_.failure = 0;
    start_ = ticks();
  }
  ~Execution() {
    if (--thread_.depth == 0 && thread_.core != nullptr) finish();
  }
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // Where it runs; without that, it is on no core and is not counted.
  void on(int index) {
    if (thread_.depth != 1) return;
    thread_.core = &registry::core(index);
    set(thread_.core->busy_since, start_);
  }

 private:
  void finish() {
    Core& core = *thread_.core;
    const uint64_t end = ticks();
    set(core.busy_since, 0);
    add(core.busy_ticks, end - start_);
    thread_.core = nullptr;
    if (__builtin_expect(std::uncaught_exceptions() > 0, 0)) return fail(core);
    if (__builtin_expect(thread_.issued != 0, 0)) {
      add(core.enqueued_running[bucket(end - start_)], 1);
      add(core.enqueued_total[bucket(end - thread_.issued)], 1);
    } else {
      add(core.at_call[bucket(end - start_)], 1);
    }
  }
  void fail(Core& core);

  Thread& thread_;
  uint64_t start_ = 0;
};

// While alive, this thread does work that was enqueued at `issued`.
class Enqueued {
 public:
  explicit Enqueued(uint64_t issued) { t_thread.issued = issued; }
  ~Enqueued() { t_thread.issued = 0; }
  Enqueued(const Enqueued&) = delete;
  Enqueued& operator=(const Enqueued&) = delete;
};

// Arithmetic of the execution that this thread is in the middle of.
inline void count_flops(double flops) {
  if (Core* core = t_thread.core) add(core->flops, static_cast<uint64_t>(flops));
}
// Says with what status the execution fails that this thread is in the middle of; who throws calls
// it. Without that it is EXEC_BAD_INPUT: operators throw when they refuse their arguments.
inline void set_failure(int status) { t_thread.failure = status; }
// An execution that failed, or one that succeeded and whose result is found to be wrong. A status
// that is not in the table counts as FAILURE.
void count_failure(int index, int status);
void count_collective(int index, uint64_t nanoseconds, uint64_t bytes,
                      const std::exception_ptr& error);
void set_pinned_bytes(uint64_t bytes);

// A program that is ready to run on a core, as long as this lives.
class LoadedProgram {
 public:
  LoadedProgram(const std::string& name, int index, uint64_t constant_bytes,
                uint64_t scratchpad_bytes);
  ~LoadedProgram();
  LoadedProgram(const LoadedProgram&) = delete;
  LoadedProgram& operator=(const LoadedProgram&) = delete;

 private:
  const int index_;
  const uint64_t constant_bytes_;
  int place_ = -1;  // in the table, which may be full
};

struct Description {
  std::string directory;  // "": no file is kept
  std::string tag, target, runtime_version;
  uint64_t lnc = 1, chips = 1;
  std::vector<uint64_t> cores;  // numbers of the machine's logical cores, by index
};
// What the file will say; before the device is used.
void describe(Description description);
// Makes the file. Called once, at the first use of the device; where it can't be made, a warning
// says why, and that the tools will not see this process.
void open();
// Removes it.
void close();
// In a forked child: the file is the parent's.
void forget();
// Where it is; "" if there is none.
std::string path();

}  // namespace torch_neuronx::registry
