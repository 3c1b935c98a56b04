// The runtime's own recording of activities, for Python.
#include "device/bindings_profiler.h"

#include <pybind11/stl.h>

#include "device/profiler.h"

namespace py = pybind11;

namespace torch_neuronx {

void bind_profiler(py::module& m) {
  m.def("start_recording", &start_recording, py::arg("most"), py::arg("cores"));
  m.def("take_recording", [] {
    py::list rows;
    const int64_t dropped = take_recording([&](const RecordedActivity& a) {
      py::dict facts;
      for (const auto& [key, value] : a.facts) facts[py::str(key)] = value;
      rows.append(py::make_tuple(a.name, a.kind, a.start, a.end, a.core, a.row, facts));
    });
    return std::make_pair(rows, dropped);
  });
}

}  // namespace torch_neuronx
