#include "memory/history.h"

#include <Python.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <array>
#include <chrono>
#include <mutex>
#include <utility>

#include "device/state.h"

namespace torch_neuronx::history {

std::atomic<bool> g_recording{false};

namespace {

struct Core {
  std::mutex mutex;
  Record record;
};

// Never destroyed: blocks are freed until the process ends.
std::array<Core, kMaxDevices>& cores() {
  static auto* made = new std::array<Core, kMaxDevices>;
  return *made;
}

std::mutex g_mutex;
Settings g_settings;
std::atomic<int> g_context{0};  // RecordContext, for lines()
std::atomic<bool> g_native_frames{false};

Settings settings() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  return g_settings;
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// A thread that Python does not know has no lines, and must not wait for Python's lock: somebody
// may wait, with that lock, for what it does.
bool has_python() {
  return Py_IsInitialized() && !is_finalizing() && PyGILState_GetThisThreadState() != nullptr;
}

void add(Record& record, const Settings& now_set, Event event, RecordContext least) {
  if (!now_set.events || (now_set.skipped & (1U << event.action)) != 0) return;
  if (now_set.context < least) event.context = nullptr;
  event.time = now();
  record.events.push_back(std::move(event));
  while (record.events.size() > now_set.most_events) record.events.pop_front();
}

}  // namespace

void start(const Settings& wanted, bool clear) {
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    g_settings = wanted;
  }
  g_context.store(static_cast<int>(wanted.context));
  g_native_frames.store(wanted.native_frames);
  if (clear) {
    for (Core& core : cores()) {
      std::deque<Event> old;  // destroyed without the lock
      const std::lock_guard<std::mutex> lock(core.mutex);
      old.swap(core.record.events);
    }
  }
  g_recording.store(true);
}

void stop() {
  g_recording.store(false);
  g_context.store(0);
  for (Core& core : cores()) {
    Record old;
    const std::lock_guard<std::mutex> lock(core.mutex);
    std::swap(old, core.record);
  }
}

Context lines(RecordContext least) {
  if (g_context.load(std::memory_order_relaxed) < static_cast<int>(least)) return nullptr;
  const bool native = g_native_frames.load(std::memory_order_relaxed);
  const bool python = has_python();
  if (!python && !native) return nullptr;
  return torch::CapturedTraceback::gather(python, /*script=*/true, native);
}

void allocated(int core, const void* start, size_t bytes, Context context) {
  const Settings now_set = settings();
  const auto address = reinterpret_cast<size_t>(start);
  Core& its = cores()[static_cast<size_t>(core)];
  const std::lock_guard<std::mutex> lock(its.mutex);
  add(its.record, now_set, {Action::ALLOC, address, bytes, 0, context}, RecordContext::ALLOC);
  its.record.live[address] = {bytes, std::move(context)};
}

void freed(int core, const void* start, size_t bytes, Context context) {
  const Settings now_set = settings();
  const auto address = reinterpret_cast<size_t>(start);
  Core& its = cores()[static_cast<size_t>(core)];
  const std::lock_guard<std::mutex> lock(its.mutex);
  // One at once: operators run in the order of issue, so nothing has to be waited for.
  for (const Action action : {Action::FREE_REQUESTED, Action::FREE_COMPLETED})
    add(its.record, now_set, {action, address, bytes, 0, context}, RecordContext::ALL);
  its.record.live.erase(address);
}

void mapped(int core, const void* start, size_t bytes, bool up) {
  const Settings now_set = settings();
  Core& its = cores()[static_cast<size_t>(core)];
  const std::lock_guard<std::mutex> lock(its.mutex);
  add(its.record, now_set,
      {up ? Action::SEGMENT_MAP : Action::SEGMENT_UNMAP, reinterpret_cast<size_t>(start), bytes, 0,
       nullptr},
      RecordContext::ALL);
}

void out_of_memory(int core, size_t room, size_t bytes, Context context) {
  const Settings now_set = settings();
  Core& its = cores()[static_cast<size_t>(core)];
  const std::lock_guard<std::mutex> lock(its.mutex);
  add(its.record, now_set, {Action::OOM, room, bytes, 0, std::move(context)}, RecordContext::STATE);
}

Record record_of(int core) {
  Core& its = cores()[static_cast<size_t>(core)];
  const std::lock_guard<std::mutex> lock(its.mutex);
  return its.record;
}

namespace {
std::function<std::string(int)>& holders_writer() {
  static auto* made = new std::function<std::string(int)>;  // never destroyed: it may hold Python's
  return *made;
}
}  // namespace

void set_holders_writer(std::function<std::string(int core)> writer) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  holders_writer() = std::move(writer);
}

std::string holders(int core) {
  if (!recording() || !has_python()) return "";
  std::function<std::string(int)> write;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    write = holders_writer();
  }
  return write ? write(core) : "";
}

}  // namespace torch_neuronx::history
