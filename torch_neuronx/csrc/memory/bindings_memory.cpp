// Python's view of device memory: snapshots, who holds what, limits.
#include "memory/bindings_memory.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/state.h"
#include "memory/allocator.h"
#include "memory/fraction.h"
#include "memory/history.h"
#include "memory/host_limits.h"
#include "memory/overlap.h"
#include "memory/shared.h"

namespace py = pybind11;

namespace torch_neuronx {
namespace {

// Lists of frames for many contexts at once: looking them up together costs least.
class Frames {
 public:
  // The list is filled by fill().
  void want(py::dict into, const history::Context& context) {
    py::list frames;
    into["frames"] = frames;
    if (context == nullptr) return;
    contexts_.push_back(torch::getCapturedTracebackFromContext(context));
    kept_.push_back(context);
    into_.push_back(std::move(into));
  }
  void fill() {
    // What has the same lines shares the list of them, which keeps files of snapshots small.
    std::unordered_map<torch::CapturedTraceback*, size_t> numbers;
    std::vector<torch::CapturedTraceback*> distinct;
    for (torch::CapturedTraceback* context : contexts_)
      if (numbers.try_emplace(context, distinct.size()).second) distinct.push_back(context);
    const torch::SymbolizedTracebacks found = torch::symbolize(distinct);
    std::vector<py::dict> frames;
    for (const auto& frame : found.all_frames)
      frames.push_back(py::dict(py::arg("name") = frame.funcname,
                                py::arg("filename") = frame.filename,
                                py::arg("line") = frame.lineno));
    std::vector<py::list> lists;
    for (const auto& traceback : found.tracebacks) {
      py::list& lines = lists.emplace_back();
      for (const uint64_t number : traceback) lines.append(frames[number]);
    }
    for (size_t i = 0; i < into_.size(); ++i) into_[i]["frames"] = lists[numbers[contexts_[i]]];
  }

 private:
  std::vector<torch::CapturedTraceback*> contexts_;
  std::vector<history::Context> kept_;
  std::vector<py::dict> into_;
};

py::list segments_of(int device, const history::Record& record, Frames* frames) {
  py::list segments;
  for (const auto& view : arena(static_cast<c10::DeviceIndex>(device)).segments()) {
    py::list items;
    size_t in_use = 0, requested = 0;
    for (const auto& b : view.blocks) {
      py::dict item;
      item["address"] = b.address;
      item["size"] = b.size;
      item["requested_size"] = b.requested;
      item["state"] = b.in_use ? "active_allocated" : "inactive";
      item["category"] = category_name(b.category);
      if (frames != nullptr) {
        const auto live = b.in_use ? record.live.find(b.address) : record.live.end();
        frames->want(item, live == record.live.end() ? nullptr : live->second.context);
      }
      items.append(item);
      in_use += b.in_use ? b.size : 0;
      requested += b.requested;
    }
    py::dict segment;
    segment["device"] = device;
    segment["address"] = view.address;
    segment["total_size"] = view.size;
    segment["allocated_size"] = in_use;
    segment["active_size"] = in_use;
    segment["requested_size"] = requested;
    segment["stream"] = 0;
    segment["segment_type"] = "large";
    segment["segment_pool_id"] = py::make_tuple(0, 0);
    segment["is_expandable"] = true;
    if (frames != nullptr) segment["frames"] = py::list();
    segment["blocks"] = items;
    segments.append(segment);
  }
  return segments;
}

const char* name_of(history::Action action) {
  using history::Action;
  switch (action) {
    case Action::ALLOC:
      return "alloc";
    case Action::FREE_REQUESTED:
      return "free_requested";
    case Action::FREE_COMPLETED:
      return "free_completed";
    case Action::SEGMENT_ALLOC:
      return "segment_alloc";
    case Action::SEGMENT_FREE:
      return "segment_free";
    case Action::SEGMENT_MAP:
      return "segment_map";
    case Action::SEGMENT_UNMAP:
      return "segment_unmap";
    case Action::SNAPSHOT:
      return "snapshot";
    case Action::OOM:
      return "oom";
  }
  return "";
}

py::list events_of(const history::Record& record, Frames* frames) {
  py::list events;
  for (const history::Event& e : record.events) {
    py::dict item;
    item["action"] = name_of(e.action);
    item[e.action == history::Action::OOM ? "device_free" : "addr"] = e.address;
    item["size"] = e.bytes;
    item["stream"] = 0;
    item["time_us"] = e.time;
    item["compile_context"] = "N/A";
    item["user_metadata"] = "";
    item["segment_pool_id"] = py::make_tuple(0, 0);
    frames->want(item, e.context);
    events.append(item);
  }
  return events;
}

// Segments of all cores, without lines.
py::list plain_segments() {
  py::list segments;
  for (int device = 0; is_initialized() && device < device_count(); ++device)
    for (const auto segment : segments_of(device, {}, nullptr)) segments.append(segment);
  return segments;
}

// Everything, as `torch.cuda.memory._snapshot` has it.
py::dict snapshot() {
  py::list segments, traces;
  Frames frames;
  for (int device = 0; device < device_count(); ++device) {
    py::list events;
    if (is_initialized()) {
      const history::Record record = history::record_of(device);
      for (const auto segment : segments_of(device, record, &frames)) segments.append(segment);
      events = events_of(record, &frames);
    }
    traces.append(events);
  }
  frames.fill();
  py::dict settings;
  settings["expandable_segments"] = true;  // one range of addresses, of which chunks are in use
  settings["max_split_size"] = -1;
  settings["garbage_collection_threshold"] = 0.0;
  return py::dict(py::arg("segments") = segments, py::arg("device_traces") = traces,
                  py::arg("allocator_settings") = settings,
                  py::arg("external_annotations") = py::list());
}

// Blocks in use whose lines are known: bytes, frames.
py::list holdings(int device) {
  const history::Record record = history::record_of(device);
  py::list rows;
  Frames frames;
  for (const auto& [address, live] : record.live) {
    py::dict row;
    row["bytes"] = live.bytes;
    frames.want(row, live.context);
    rows.append(row);
  }
  frames.fill();
  return rows;
}

std::map<std::string, size_t> categories(c10::DeviceIndex index) {
  check_device_index(index);
  std::map<std::string, size_t> result;
  const auto bytes = arena(index).bytes_by_category();
  for (size_t i = 0; i < bytes.size(); ++i)
    result[category_name(static_cast<Category>(i))] = bytes[i];
  return result;
}

void start_history(bool events, int context, bool native_frames, size_t most_events,
                   const std::vector<std::string>& skipped, bool clear) {
  TORCH_CHECK_VALUE(context >= 0 && context <= 3, "context must be in [0, 3], but got ", context);
  history::Settings settings{events, static_cast<history::RecordContext>(context), native_frames,
                             most_events, 0};
  for (const std::string& name : skipped)
    settings.skipped |= 1U << c10::CachingDeviceAllocator::parseTraceEntryAction(name);
  history::start(settings, clear);
}

void set_holders_writer(py::object writer) {
  if (writer.is_none()) return history::set_holders_writer(nullptr);
  auto* held = new py::object(std::move(writer));  // never destroyed: outlives the interpreter
  history::set_holders_writer([held](int core) {
    const py::gil_scoped_acquire gil;
    return (*held)(core).cast<std::string>();
  });
}

}  // namespace

void bind_memory(py::module& m) {
  m.def(
      "set_host_limits",
      [](const std::vector<std::array<std::string, 4>>& memory, size_t processors) {
        std::vector<MemoryLimit> limits;
        for (const auto& [limit, usage, stat, reclaimable] : memory)
          limits.push_back({limit, usage, stat, reclaimable});
        set_host_limits(std::move(limits), processors);
      },
      py::arg("memory"), py::arg("processors"));
  m.def("host_available_bytes", &host_available_bytes);
  m.def("host_processors", &host_processors);
  m.def("memory_snapshot", &plain_segments);
  m.def("memory_record", &snapshot);
  m.def("memory_holdings", [](int i) {
    check_device_index(i);
    return holdings(i);
  });
  m.def("start_memory_history", &start_history, py::arg("events"), py::arg("context"),
        py::arg("native_frames"), py::arg("most_events"), py::arg("skipped"), py::arg("clear"));
  m.def("stop_memory_history", &history::stop);
  m.def("memory_history_runs", [] { return history::recording(); });
  m.def("set_holders_writer", &set_holders_writer);
  m.def("overlapping", [](const py::tuple& values) {
    std::vector<at::Tensor> tensors(values.size());  // undefined where there is none
    for (size_t i = 0; i < values.size(); ++i) {
      PyObject* value = PyTuple_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i));
      if (THPVariable_Check(value)) tensors[i] = THPVariable_Unpack(value);
    }
    return overlapping(tensors);
  });
  m.def("memory_categories", [](int i) { return categories(static_cast<c10::DeviceIndex>(i)); });
  m.def("memory_fraction", [](int i) {
    check_device_index(i);
    return memory_fraction(i);
  });
  m.def("set_memory_fraction", [](int i, double fraction) {
    check_device_index(i);
    set_memory_fraction(i, fraction);
  });
  m.def(
      "share_arena",
      [](int i) {
        check_device_index(i);
        const SharedArena shared = share_arena(static_cast<c10::DeviceIndex>(i));
        return std::make_tuple(shared.fd, shared.bytes, reinterpret_cast<size_t>(shared.base));
      },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace torch_neuronx
