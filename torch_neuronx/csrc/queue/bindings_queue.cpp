#include "queue/bindings_queue.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "queue/failure.h"
#include "queue/issue.h"
#include "queue/queue.h"

namespace py = pybind11;

namespace torch_neuronx::queue {

void bind_queue(py::module_& m) {
  m.def("eager_mode", [] { return static_cast<int>(mode()); });
  m.def("set_eager_mode", [](int value) {
    TORCH_CHECK(value >= 0 && value <= 2, "eager mode must be 0, 1 or 2, but got ", value);
    set_mode(static_cast<Mode>(value));
  });
  m.def("direct_elements", &direct_elements);
  m.def("set_direct_elements", &set_direct_elements);
  m.def("queue_stats", [] {
    const Stats now = stats();
    py::dict at_the_call;
    for (const auto& each : here_counts()) {
      const py::str name(each.operator_name);
      if (!at_the_call.contains(name)) at_the_call[name] = py::dict();
      at_the_call[name][py::str(each.reason)] = each.calls;
    }
    return py::dict(py::arg("enqueued") = now.enqueued, py::arg("waits") = now.waits,
                    py::arg("settled") = now.settled, py::arg("ruled") = now.ruled,
                    py::arg("full") = now.full, py::arg("at_the_call") = at_the_call);
  });
  m.def("reset_queue_stats", [] {
    reset_stats();
    reset_here_counts();
  });
  m.def("watch_waits", [] { return static_cast<int>(watch_waits()); });
  m.def("set_watch_waits", [](int value) {
    TORCH_CHECK(value >= 0 && value <= 2, "must be 0, 1 or 2, but got ", value);
    set_watch_waits(static_cast<WatchWaits>(value));
  });
  m.def("finds_lines", &finds_lines);
  m.def("set_line_finder", [](const std::optional<py::function>& finder) {
    if (!finder.has_value()) return set_line_finder(nullptr);
    // Never freed: a thread may still call it.
    auto* kept = new py::function(*finder);
    set_line_finder([kept] {
      const py::gil_scoped_acquire gil;
      return (*kept)().cast<std::string>();
    });
  });
  m.def("queue_busy", [] { return busy(); });
  m.def("drain_queues", &wait_holding_locks, py::call_guard<py::gil_scoped_release>());
  m.def("close_queues", &close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace torch_neuronx::queue
