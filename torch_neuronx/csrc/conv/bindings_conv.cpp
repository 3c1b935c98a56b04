#include "conv/bindings_conv.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "conv/by_aten.h"
#include "conv/conv.h"
#include "gemm/methods.h"

namespace torch_neuronx::conv {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // "name"_a
using Pair = std::array<int64_t, 2>;
using OptionalTensor = std::optional<at::Tensor>;

at::Tensor checked(const OptionalTensor& t, const char* name) {
  TORCH_CHECK(!t || t->is_cpu(), name, " must be a CPU tensor, but is on ", t->device());
  return t ? *t : at::Tensor();
}

bool conv_run(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out,
              const OptionalTensor& bias, const Pair& stride, const Pair& padding,
              const Pair& dilation, int64_t groups, const OptionalTensor& scale,
              const OptionalTensor& residual, bool relu, uintptr_t function, uint64_t generation,
              const std::string& method) {
  Epilogue epilogue{checked(scale, "scale"), checked(residual, "residual"), relu,
                    reinterpret_cast<StoreFunction>(function), nullptr};
  epilogue.last = out.dim() == 4 && out.size(3) > 1 && out.stride(3) != 1;
  const at::Tensor b = checked(bias, "bias");
  (void)checked(x, "x"), (void)checked(weight, "weight"), (void)checked(out, "out");
  const py::gil_scoped_release nogil;
  if (method == "auto") {
    return try_conv2d(out, x, weight, b, stride, padding, dilation, groups, epilogue, generation);
  }
  for (const Method m : {Method::kWinograd, Method::kProduct}) {
    if (method == method_name(m)) {
      return conv2d_with(m, out, x, weight, b, stride, padding, dilation, groups, epilogue,
                         generation);
    }
  }
  TORCH_CHECK_VALUE(false, "method must be auto, winograd or product, got \"", method, "\"");
}

std::string conv_method(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out,
                        const Pair& stride, const Pair& padding, const Pair& dilation,
                        int64_t groups) {
  const py::gil_scoped_release nogil;
  return method_name(
      choose_conv2d(out, x, weight, {}, stride, padding, dilation, groups, Epilogue{}));
}

// By name, as gemm_kernels().
py::dict conv_widened() {
  py::dict widened;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    widened[c10::toString(dtype)] = is_widened(dtype);
  return widened;
}

}  // namespace

void bind_conv(py::module& m) {
  constexpr Pair one{1, 1}, zero{0, 0};
  m.def("conv_widened", &conv_widened,
        "Whether ATen's convolutions of a type are computed in float32, see conv/by_aten.h.");
  m.def("conv_run", &conv_run, "x"_a, "weight"_a, "out"_a, "bias"_a = py::none(), "stride"_a = one,
        "padding"_a = zero, "dilation"_a = one, "groups"_a = 1, "scale"_a = py::none(),
        "residual"_a = py::none(), "relu"_a = false, "function"_a = 0, "generation"_a = 0,
        "method"_a = "auto", "A convolution on CPU tensors; False if ATen should do it");
  m.def("conv_method", &conv_method, "x"_a, "weight"_a, "out"_a, "stride"_a = one,
        "padding"_a = zero, "dilation"_a = one, "groups"_a = 1,
        "The method that conv_run would take: aten, winograd or product");
}

}  // namespace torch_neuronx::conv
