#include "dispatch/bindings_trusting.h"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "dispatch/trusting.h"

namespace py = pybind11;

namespace torch_neuronx {
namespace {

bool meet_demands(const std::string& name, const std::string& overload, const py::tuple& args,
                  const py::dict& kwargs) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  const Demands* demands = op ? demands_of(*op) : nullptr;
  if (demands == nullptr) return false;
  torch::jit::Stack stack;
  try {
    stack = torch::jit::createStackForSchema(op->schema(), args, py::kwargs(kwargs), std::nullopt);
  } catch (const std::exception&) {  // of another overload; PyTorch's parser says so to the caller
    return false;
  }
  (void)meet(*demands, *op, stack);  // the caller's arguments stay as they are
  return true;
}

}  // namespace

void bind_trusting(py::module& m) { m.def("meet_demands", &meet_demands); }

}  // namespace torch_neuronx
