// The queues of the NeuronCores, one for each stream (queue/stream_queue.h): work in the order in
// which it was issued.
//
// A call that is enqueued returns at once; whoever reads what it wrote waits first. Streams run
// independently of each other, but where an event orders them. Memory that is freed goes to the
// next call of its stream that asks for it, because that one runs later; memory/stream_order.h
// says when another stream may have it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace torch_neuronx {

class Completion;

namespace queue {

// What an operator's call does. `kDebug`: all of its work. `kStrict`: settles shapes and memory,
// and enqueues the work. `kFused`: the same, and joins what waits (program/regions.h).
enum class Mode : int { kDebug = 0, kStrict = 1, kFused = 2 };

namespace detail {
extern std::atomic<uint32_t> g_mode;  // of these bits
inline constexpr uint32_t kAsynchronous = 1, kWatchWaits = 2, kLooksForRegions = 4;
extern std::atomic<int64_t> g_pending;  // of all cores
extern thread_local int t_inside;
void wait_all_slow();
void wait_current_slow();
void wait_for_readers_slow(c10::DeviceIndex core);
}  // namespace detail

Mode mode();
// Waits for what is enqueued, then changes what later calls do.
void set_mode(Mode mode);

// Whether calls of this thread are to be enqueued where that pays. Not within another call: what
// one operator does by calling others belongs to its own work.
inline bool asynchronous() {
  return C10_UNLIKELY(detail::g_mode.load(std::memory_order_relaxed) & detail::kAsynchronous) &&
         detail::t_inside == 0;
}
inline bool looks_for_regions() {
  return (detail::g_mode.load(std::memory_order_relaxed) & detail::kLooksForRegions) != 0;
}
// Whether calls of this thread that wait for values are to be told: see note_wait().
inline bool watches_waits() {
  return C10_UNLIKELY(detail::g_mode.load(std::memory_order_relaxed) & detail::kWatchWaits) &&
         detail::t_inside == 0;
}

// While alive, this thread is within an operator's work.
class Inside {
 public:
  Inside() { ++detail::t_inside; }
  ~Inside() { --detail::t_inside; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

class QueuedCall;

// A piece of work. Destroyed on any thread, without Python's lock: it must hold no Python object.
class Work {
 public:
  virtual ~Work() = default;
  virtual void run() = 0;
  // The operator and its operands, for the error that run() may throw.
  virtual std::string name() const = 0;
  // Itself, if it is a call of an operator that is known in all parts.
  virtual QueuedCall* as_call() { return nullptr; }
  // Whether it waits for others, so that the core may do work of other streams meanwhile.
  virtual bool waits() const { return false; }
  // Of the call, written down by push(): the user's line, if somebody wants it in errors, and the
  // operator that the calling thread was in, if somebody profiles.
  std::string called_at;
  int32_t correlation = 0;
  uint64_t issued = 0;  // when, in ticks of registry/registry.h
  // Called instead of run() where earlier work failed and nobody was told yet.
  virtual void skip() {}
};

// Work that is a function and a name.
class FunctionWork final : public Work {
 public:
  FunctionWork(std::string name, std::function<void()> function)
      : name_(std::move(name)), function_(std::move(function)) {}
  void run() override { function_(); }
  std::string name() const override { return name_; }

 private:
  const std::string name_;
  const std::function<void()> function_;
};

// What stands in a queue, from the next piece of work on, for the thread that works there. It stays
// where it is meanwhile.
class Ahead {
 public:
  // The k-th piece of work, or null behind the last.
  virtual Work* at(size_t k) = 0;
  // The same, but it waits for the k-th: so long at most, and not while somebody waits for what was
  // enqueued before.
  virtual Work* await(size_t k, std::chrono::nanoseconds most) = 0;
  // Whether somebody waits for what is enqueued.
  virtual bool is_waited_for() = 0;

 protected:
  ~Ahead() = default;
};

// What pieces of work took that were run one by one, in nanoseconds: the shortest time, and all.
struct Took {
  std::atomic<int64_t> shortest{INT64_MAX}, total{0};
};

// Runs several pieces of work at once, from the next on, if it can.
struct RegionOutcome {
  size_t done = 0;   // so many were run
  size_t alone = 1;  // else: so many are to be run one by one before it is asked again
  std::shared_ptr<Took> took = nullptr;  // where to write down how long these take
  std::exception_ptr failure = nullptr;  // of those that were run
};
using RegionRunner = RegionOutcome (*)(Ahead& ahead);
void set_region_runner(RegionRunner runner);

// Adds work at the end of the queue of a stream, or of the stream of a core that is current; waits
// while that is full.
void push(c10::Stream stream, std::unique_ptr<Work> work);
void push(c10::DeviceIndex core, std::unique_ptr<Work> work);

// Whether a stream, any of a core, or any at all has work that is not done.
bool busy(c10::Stream stream);
bool busy(c10::DeviceIndex core);
inline bool busy() { return detail::g_pending.load(std::memory_order_acquire) != 0; }

// How many pieces of work were ever enqueued on a stream, by its slot (device/stream.h), and
// whether so many are done.
uint64_t issued(c10::DeviceIndex core, int slot);
bool done(c10::DeviceIndex core, int slot, uint64_t position);

// Waits until everything is done that was enqueued on a stream, on any of a core, on this thread's
// current ones, or on any at all; then throws what failed on its core, once: calls that were
// enqueued behind the one that failed, and those of other streams, did not run.
void wait(c10::Stream stream);
void wait(c10::DeviceIndex core);
inline void wait_current() {
  if (C10_UNLIKELY(busy())) detail::wait_current_slow();
}
inline void wait_all() {
  if (C10_UNLIKELY(busy())) detail::wait_all_slow();
}
// As the last, without throwing, for a thread that holds locks: failures are kept for the next to
// wait.
void wait_holding_locks() noexcept;
// To be called before memory is used that was just allocated for work that this thread does now:
// calls of other threads may be enqueued that read it, and whose tensors were freed since.
inline void wait_for_readers(c10::DeviceIndex core) {
  if (C10_UNLIKELY(busy()) && detail::t_inside != 0) detail::wait_for_readers_slow(core);
}

// To be called by a thread that works for the device, as those of collectives: what failed before
// is thrown there, but stays to be told to a thread of the user's.
void serve_on_this_thread();

// The end of a stream's queue as it is now; null if that is empty and nothing failed. A mark is
// work itself, and knows when it was done.
std::shared_ptr<Completion> end_of(c10::Stream stream);
std::shared_ptr<Completion> mark(c10::Stream stream);
// Whether `completion` is a mark in the queue of `stream`, behind which all its later work stands.
bool is_mark_of(const Completion& completion, c10::Stream stream);

// Work that talks to other ranks when its turn comes. All ranks must do so in one order, which is
// that of issue. So whoever is about to enqueue such work on a stream, or (none) to talk to others
// at the call, waits until what was enqueued on other streams is done; and notes what he enqueued.
void order_exchange(std::optional<c10::Stream> stream);
void note_exchange(c10::Stream stream);

// What a call does that makes the host wait for values of a core, in any mode: nothing, warn,
// throw.
enum class WatchWaits : int { kOff = 0, kWarn = 1, kError = 2 };
WatchWaits watch_waits();
void set_watch_waits(WatchWaits watch);
// To be called where `what` waits and watches_waits(); does what is asked for.
void note_wait(const std::string& what);

struct Stats {
  int64_t enqueued = 0;  // calls
  int64_t waits = 0;     // times that a thread waited for a queue that was busy
  int64_t settled = 0;   // kinds of calls whose results are known from a first call
  int64_t ruled = 0;     // and from PyTorch's shape function
  int64_t full = 0;      // times that a queue was full
};
Stats stats();
void count_settled();
void count_ruled();
void count_full();
void reset_stats();

// Ends the threads when all work is done, then throws what failed and nobody was told. Work that is
// enqueued later runs at once.
void close();

}  // namespace queue
}  // namespace torch_neuronx
