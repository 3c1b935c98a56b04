#include "conv/by_aten.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include "kernels/isa.h"

namespace torch_neuronx::conv {
namespace {

at::Tensor wide(const at::Tensor& t) { return t.to(at::kFloat); }

at::Tensor rounded(const at::Tensor& t, at::ScalarType dtype) {
  return t.defined() ? t.to(dtype) : t;
}

// Operands of several types are ATen's to refuse.
bool are_widened(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && is_widened(a.scalar_type());
}

}  // namespace

bool is_widened(at::ScalarType dtype) {
#if defined(__x86_64__)
  return (dtype == at::kBFloat16 && kernels::may_use_amx()) ||
         (dtype == at::kHalf && kernels::may_use_avx512fp16());
#else
  // Not all of ATen's methods for other processors round once.
  return dtype == at::kBFloat16 || dtype == at::kHalf;
#endif
}

at::Tensor convolve_by_aten(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups) {
  const bool has_bias = bias && bias->defined();
  if (!are_widened(input, weight) || (has_bias && bias->scalar_type() != input.scalar_type()))
    return at::convolution(input, weight, bias, stride, padding, dilation, transposed,
                           output_padding, groups);
  const auto wide_bias = has_bias ? std::optional<at::Tensor>(wide(*bias)) : std::nullopt;
  const at::Tensor sums = at::convolution(wide(input), wide(weight), wide_bias, stride, padding,
                                          dilation, transposed, output_padding, groups);
  return rounded(sums, input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients_by_aten(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> mask) {
  const auto dtype = input.scalar_type();
  if (!are_widened(input, weight) || grad.scalar_type() != dtype)
    return at::convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation,
                                    transposed, output_padding, groups, mask);
  const auto [of_input, of_weight, of_bias] =
      at::convolution_backward(wide(grad), wide(input), wide(weight), bias_sizes, stride, padding,
                               dilation, transposed, output_padding, groups, mask);
  return {rounded(of_input, dtype), rounded(of_weight, dtype), rounded(of_bias, dtype)};
}

}  // namespace torch_neuronx::conv
