#include "queue/bindings_queue.h"

#include <torch/csrc/utils/pybind.h>

#include "queue/issue.h"
#include "queue/queue.h"

namespace py = pybind11;

namespace torch_neuronx::queue {

void bind_queue(py::module_& m) {
  m.def("eager_mode", [] { return static_cast<int>(mode()); });
  m.def("set_eager_mode", [](int value) {
    TORCH_CHECK(value == 0 || value == 1, "eager mode must be 0 or 1, but got ", value);
    set_mode(static_cast<Mode>(value));
  });
  m.def("direct_elements", &direct_elements);
  m.def("set_direct_elements", &set_direct_elements);
  m.def("queue_stats", [] {
    const Stats now = stats();
    py::dict result;
    result["enqueued"] = now.enqueued;
    result["waits"] = now.waits;
    result["settled"] = now.settled;
    result["full"] = now.full;
    py::dict at_the_call;
    for (const auto& each : here_counts()) {
      const py::str name(each.operator_name);
      if (!at_the_call.contains(name)) at_the_call[name] = py::dict();
      at_the_call[name][py::str(each.reason)] = each.calls;
    }
    result["at_the_call"] = at_the_call;
    return result;
  });
  m.def("reset_queue_stats", [] {
    reset_stats();
    reset_here_counts();
  });
  m.def("close_queues", &close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace torch_neuronx::queue
