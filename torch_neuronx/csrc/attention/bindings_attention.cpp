#include "attention/bindings_attention.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "attention/aten_attention.h"

namespace torch_neuronx::attention {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // "name"_a
using at::Tensor;

Problem problem_of_cpu(const Tensor& query, const Tensor& key, const Tensor& value,
                       const std::optional<Tensor>& mask, bool causal,
                       std::optional<double> scale) {
  for (const Tensor& t : {query, key, value, mask.value_or(Tensor())}) {
    TORCH_CHECK(!t.defined() || t.device().is_cpu(), "expected CPU tensors, got one on ",
                t.device());
  }
  const auto p = problem_of(query, key, value, mask.value_or(Tensor()), causal, scale);
  TORCH_CHECK_VALUE(p, "our attention kernels do not take these operands");
  return *p;
}

std::tuple<Tensor, Tensor> attention_forward(const Tensor& query, const Tensor& key,
                                             const Tensor& value, const std::optional<Tensor>& mask,
                                             bool causal, std::optional<double> scale) {
  const py::gil_scoped_release nogil;
  return forward(problem_of_cpu(query, key, value, mask, causal, scale), query);
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& grad, const Tensor& query,
                                                      const Tensor& key, const Tensor& value,
                                                      const Tensor& out, const Tensor& logsumexp,
                                                      const std::optional<Tensor>& mask,
                                                      bool causal, std::optional<double> scale) {
  const py::gil_scoped_release nogil;
  return backward(problem_of_cpu(query, key, value, mask, causal, scale), grad, query, key, value,
                  out, logsumexp);
}

}  // namespace

void bind_attention(py::module& m) {
  m.def("attention_forward", &attention_forward, "query"_a, "key"_a, "value"_a,
        "mask"_a = py::none(), "causal"_a = false, "scale"_a = py::none(),
        "softmax(scale * query @ key.mT + mask) @ value of CPU tensors [batch, heads, length, "
        "width], and the log-sum-exp; ValueError if the kernels do not take them");
  m.def("attention_backward", &attention_backward, "grad"_a, "query"_a, "key"_a, "value"_a, "out"_a,
        "logsumexp"_a, "mask"_a = py::none(), "causal"_a = false, "scale"_a = py::none(),
        "Gradients of query, key and value");
}

}  // namespace torch_neuronx::attention
