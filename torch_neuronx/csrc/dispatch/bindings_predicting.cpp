#include "dispatch/bindings_predicting.h"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "device/state.h"
#include "dispatch/predicting.h"

namespace py = pybind11;

namespace torch_neuronx::predicting {
namespace {

py::object next_operator() {
  std::optional<Wanted> kind;
  {
    const py::gil_scoped_release released;
    kind = next_wanted();
  }
  if (!kind) return py::none();
  if (!kind->failure.empty()) return py::make_tuple(kind->number, kind->name, kind->failure);
  if (kind->exchange) {
    const Exchange& exchange = *kind->exchange;
    return py::make_tuple(kind->number, kind->name,
                          py::make_tuple(exchange.read, exchange.written, exchange.ranks));
  }
  py::list arguments;
  for (c10::IValue& value : kind->arguments)
    arguments.append(torch::jit::toPyObject(std::move(value)));
  return py::make_tuple(kind->number, kind->name, arguments);
}

void predict_operator(size_t number,
                      const std::optional<std::vector<std::pair<uint64_t, uint64_t>>>& places) {
  registry::Prediction& prediction = wanted(number);
  TORCH_CHECK_VALUE(!prediction.known(), "kind ", number, " has its prediction");
  if (places) {
    prediction.know(counters(), *places);
  } else {
    prediction.give_up(counters());
  }
  settled();
}

}  // namespace

void bind_predicting(py::module& m) {
  m.def(
      "predict_operators",
      [](uint64_t executions, uint64_t unpredicted, uint64_t stride) {
        ask({executions, unpredicted, stride});
      },
      py::kw_only(), py::arg("executions"), py::arg("unpredicted"), py::arg("stride"));
  m.def("next_operator", &next_operator);
  m.def("predict_operator", &predict_operator);
  m.def("stop_predicting", &stop);
  m.def("unpredicted_operators", &unsettled);
}

}  // namespace torch_neuronx::predicting
