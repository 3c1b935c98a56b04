#include "distributed/bindings_planning.h"

#include <torch/csrc/jit/python/pybind.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace py = pybind11;

namespace torch_neuronx::distributed {
namespace {

std::string reduction_name_of(const torch::jit::Object& boxed) {
  const auto reduction = c10::IValue(boxed._ivalue()).toCustomClass<c10d::ReduceOp>();
  switch (reduction->op_) {
    case c10d::ReduceOp::SUM:
      return "sum";
    case c10d::ReduceOp::AVG:
      return "avg";
    case c10d::ReduceOp::PRODUCT:
      return "product";
    case c10d::ReduceOp::MIN:
      return "min";
    case c10d::ReduceOp::MAX:
      return "max";
    case c10d::ReduceOp::BAND:
      return "band";
    case c10d::ReduceOp::BOR:
      return "bor";
    case c10d::ReduceOp::BXOR:
      return "bxor";
    case c10d::ReduceOp::PREMUL_SUM:
      return "premul_sum";
    default:
      return "unused";
  }
}

}  // namespace

void bind_planning(py::module_& m) {
  m.def("reduction_name", &reduction_name_of, py::arg("boxed"));
}

}  // namespace torch_neuronx::distributed
