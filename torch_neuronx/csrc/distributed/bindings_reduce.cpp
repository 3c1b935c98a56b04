#include "distributed/bindings_reduce.h"

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "distributed/reduce.h"

namespace torch_neuronx::distributed {
namespace {

namespace py = pybind11;
using at::Tensor;

void check_host(const Tensor& t) {
  TORCH_CHECK((t.device().is_cpu() || t.device().is_privateuseone()) && t.is_contiguous(),
              "expected contiguous tensors on cpu or neuron");
}

void reduce_tensors(const std::string& op, const std::vector<Tensor>& inputs,
                    const std::vector<Tensor>& outputs, double prescale, double postscale) {
  TORCH_CHECK(!inputs.empty(), "a reduction needs at least one input");
  const Tensor& first = inputs[0];
  std::vector<const void*> from;
  std::vector<void*> to;
  const auto check = [&](const Tensor& t) {
    check_host(t);
    TORCH_CHECK(t.scalar_type() == first.scalar_type() && t.numel() == first.numel(),
                "expected tensors of ", first.numel(), " elements of ", first.scalar_type());
  };
  for (const Tensor& t : inputs) {
    check(t);
    from.push_back(t.const_data_ptr());
  }
  for (const Tensor& t : outputs) {
    check(t);
    to.push_back(t.mutable_data_ptr());
  }
  py::gil_scoped_release release;
  reduce(reduction_of(op), first.scalar_type(), from.data(), from.size(), to.data(), to.size(),
         first.numel(), prescale, postscale);
}

}  // namespace

void bind_reduce(py::module_& m) {
  m.def("distributed_reduce", &reduce_tensors, py::arg("op"), py::arg("inputs"), py::arg("outputs"),
        py::arg("prescale") = 1.0, py::arg("postscale") = 1.0);
  m.def(
      "distributed_copy",
      [](const Tensor& destination, const Tensor& source) {
        check_host(destination);
        check_host(source);
        TORCH_CHECK(destination.nbytes() == source.nbytes(), "expected tensors of ",
                    source.nbytes(), " bytes, got ", destination.nbytes());
        py::gil_scoped_release release;
        copy_bytes(destination.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
      },
      py::arg("destination"), py::arg("source"));
}

}  // namespace torch_neuronx::distributed
