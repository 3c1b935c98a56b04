#include "conv/by_aten.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include <algorithm>

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

// One dimension that a filter slides over.
struct Extent {
  int64_t input, filter, stride, padding, dilation;

  int64_t reach() const { return dilation * (filter - 1) + 1; }
  int64_t results() const { return (input + 2 * padding - reach()) / stride + 1; }
  // What is no size, or so large that sums could overflow, is ATen's to refuse.
  bool fits() const {
    constexpr int64_t most = int64_t{1} << 30;
    for (const int64_t n : {input, filter, stride, padding, dilation})
      if (n < 0 || n > most) return false;
    return input > 0 && filter > 0 && stride > 0 && dilation > 0 && input + 2 * padding >= reach();
  }
  bool sees_padding_alone() const {
    for (int64_t tap = 0; tap < filter; ++tap) {
      const int64_t missing = std::max<int64_t>(padding - tap * dilation, 0);
      const int64_t result = (missing + stride - 1) / stride;  // the first that is not before
      if (result < results() && result * stride - padding + tap * dilation < input) return false;
    }
    return true;
  }
};

// at::convolution but for what oneDNN does wrong in any type (PyTorch 2.13 to 2.14): it ends the
// process where all results along the columns see nothing but padding (1x1x5x2 by 1x1x1x1 with
// stride 3 and padding 4), and reads other memory where there is one column and a step to a next
// that never comes (1x1x8x6 by 1x1x3x4 with stride (1, 3)). In such a dimension the zeros are put
// around the input, and what no filter sees is cut off.
at::Tensor convolved(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                     at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                     at::IntArrayRef output_padding, int64_t groups) {
  const auto plain = [&](const at::Tensor& x, at::IntArrayRef steps, at::IntArrayRef pads) {
    return at::convolution(x, weight, bias, steps, pads, dilation, transposed, output_padding,
                           groups);
  };
  const int64_t dims = weight.dim() - 2;
  const auto one_each = [&](at::IntArrayRef list) {
    return static_cast<int64_t>(list.size()) == dims;
  };
  if (transposed || dims < 1 || input.dim() != weight.dim() || !one_each(stride) ||
      !one_each(padding) || !one_each(dilation))
    return plain(input, stride, padding);
  at::DimVector steps(stride), pads(padding), around(2 * dims, 0);
  bool changed = false;
  for (int64_t d = 0; d < dims; ++d) {
    const Extent e{input.size(2 + d), weight.size(2 + d), stride[d], padding[d], dilation[d]};
    if (!e.fits()) return plain(input, stride, padding);
    const bool one = e.results() == 1 && e.stride > 1;
    if (!one && !e.sees_padding_alone()) continue;
    // Amounts are listed from the last dimension on, before and after it.
    const int64_t at = 2 * (dims - 1 - d);
    around[at] = e.padding;
    around[at + 1] = one ? e.reach() - e.padding - e.input : e.padding;
    steps[d] = one ? 1 : e.stride;
    pads[d] = 0;
    changed = changed || around[at] != 0 || around[at + 1] != 0;
  }
  return plain(changed ? at::constant_pad_nd(input, around) : input, steps, pads);
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
    return convolved(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                     groups);
  const auto wide_bias = has_bias ? std::optional<at::Tensor>(wide(*bias)) : std::nullopt;
  const at::Tensor sums = convolved(wide(input), wide(weight), wide_bias, stride, padding, dilation,
                                    transposed, output_padding, groups);
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
