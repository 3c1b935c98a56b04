// Python's hold on faults on demand; torch_neuronx/testing has the table of them.
#include "device/bindings_faults.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include "device/faults.h"

namespace py = pybind11;

namespace torch_neuronx {
namespace {

template <class Enum>
Enum chosen(int value, Enum last, const char* name) {
  TORCH_CHECK_VALUE(value >= 0 && value <= static_cast<int>(last), name, " must be in [0, ",
                    static_cast<int>(last), "], but got ", value);
  return static_cast<Enum>(value);
}

int64_t add_fault(int point, int action, int core, std::string match, std::vector<int64_t> at,
                  int64_t every, double probability, uint64_t seed, int64_t most, bool lasting,
                  int32_t status, std::string text, double seconds, double bytes_per_second,
                  double value) {
  using faults::Action;
  using faults::Point;
  return faults::add({chosen(point, Point::kFileWrite, "point"),
                      chosen(action, Action::kElsewhere, "action"), core, std::move(match),
                      std::move(at), every, probability, seed, most, lasting, status,
                      std::move(text), seconds, bytes_per_second, value});
}

std::pair<int64_t, int64_t> pair_of(const faults::Counts& counts) {
  return {counts.reached, counts.acted};
}

}  // namespace

void bind_faults(py::module& m) {
  m.def("add_fault", &add_fault, py::kw_only(), py::arg("point"), py::arg("action"),
        py::arg("core"), py::arg("match"), py::arg("at"), py::arg("every"), py::arg("probability"),
        py::arg("seed"), py::arg("most"), py::arg("lasting"), py::arg("status"), py::arg("text"),
        py::arg("seconds"), py::arg("bytes_per_second"), py::arg("value"));
  m.def("due_faults", [](int point, const std::string& name) {
    return faults::due(chosen(point, faults::Point::kFileWrite, "point"), name, -1);
  });
  m.def("remove_fault", [](int64_t number) { return pair_of(faults::remove(number)); });
  m.def("fault_counts", [](int64_t number) { return pair_of(faults::counts(number)); });
}

}  // namespace torch_neuronx
