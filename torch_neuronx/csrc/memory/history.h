// Who asked for memory: for every block in use the lines that allocated it, and the latest events,
// for snapshots in PyTorch's form and for the error of a core that is full. Costs one load while
// nobody records.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

namespace torch_neuronx::history {

using c10::CachingDeviceAllocator::RecordContext;
using Action = c10::CachingDeviceAllocator::TraceEntry::Action;
using Context = std::shared_ptr<c10::GatheredContext>;

struct Settings {
  bool events = false;  // keep the latest events, too
  RecordContext context = RecordContext::NEVER;
  bool native_frames = false;  // lines of C++ beside those of Python
  size_t most_events = 0;      // of a core
  uint32_t skipped = 0;        // bits of Action
};

// Starts to record, or goes on with other settings; `clear` forgets the events so far.
void start(const Settings& settings, bool clear);
void stop();

extern std::atomic<bool> g_recording;
inline bool recording() { return C10_UNLIKELY(g_recording.load(std::memory_order_relaxed)); }

// The lines that the calling thread is at, if those are wanted for what needs `least`, or null. It
// may wait for Python's lock, so it must be called without holding one.
Context lines(RecordContext least);

// For the arena of `core`, which calls them while it is locked: events are in its order.
void allocated(int core, const void* start, size_t bytes, Context context);
void freed(int core, const void* start, size_t bytes, Context context);
void mapped(int core, const void* start, size_t bytes, bool up);
// `room` bytes are free, `bytes` were wanted.
void out_of_memory(int core, size_t room, size_t bytes, Context context);

struct Event {
  Action action;
  size_t address, bytes;  // for Action::OOM, `address` is what is free
  int64_t time;           // microseconds since the epoch
  Context context;
};
struct Live {
  size_t bytes;
  Context context;
};
// A copy of what is known about a core: blocks in use by address, and events, oldest first.
struct Record {
  std::unordered_map<size_t, Live> live;
  std::deque<Event> events;
};
Record record_of(int core);

// Says which lines hold the memory of a core, for an error: "" while nobody records. It may wait
// for Python's lock.
std::string holders(int core);
// What writes that; null: nobody.
void set_holders_writer(std::function<std::string(int core)> writer);

}  // namespace torch_neuronx::history
