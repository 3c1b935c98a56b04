#include "conv/by_aten.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "kernels/isa.h"

namespace torch_neuronx::conv {
namespace {

at::Tensor wide(const at::Tensor& t) { return t.to(at::kFloat); }

at::Tensor rounded(const at::Tensor& t, at::ScalarType dtype) {
  return t.defined() ? t.to(dtype) : t;
}

// Whether no result's filter has more of itself in the padding than half, as models have it.
bool mostly_inside(const at::Tensor& weight, at::IntArrayRef padding, at::IntArrayRef dilation) {
  const auto of = [](at::IntArrayRef list, size_t d) { return list[list.size() == 1 ? 0 : d]; };
  for (int64_t d = 0; d < weight.dim() - 2; ++d) {
    const auto at = static_cast<size_t>(d);
    const bool has = (padding.size() == 1 || at < padding.size()) &&
                     (dilation.size() == 1 || at < dilation.size());
    if (has && of(padding, at) > of(dilation, at) * (weight.size(2 + d) - 1) / 2) return false;
  }
  return true;
}

enum class Wanted : uint8_t { kResult, kGradients };

// Whether ATen's kernels for a type, which round once, are right for such a convolution. oneDNN's
// gradients of bfloat16 are wrong now and then, other memory read for numbers, with much padding
// (PyTorch 2.13, no matrix tiles: 1x16x2 by 32x16x3 with stride 3 and padding 2), and in three
// dimensions with little, too (the weights of 2x16x2x7x10, transposed, by 16x1x4x3x4 with stride
// (1, 1, 3), padding (1, 2, 1) and dilation (1, 2, 1)).
bool are_right(Wanted wanted, at::ScalarType dtype, const at::Tensor& weight,
               at::IntArrayRef padding, at::IntArrayRef dilation) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return true;
  return !is_widened(dtype) && mostly_inside(weight, padding, dilation) &&
         (wanted == Wanted::kResult || weight.dim() < 5);
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

// How a filter moves, where the zeros that ATen would think of are put around the input.
struct Moves {
  at::DimVector stride, padding;
  at::DimVector around;  // amounts as constant_pad_nd takes them; negative ones cut off

  at::Tensor put(const at::Tensor& input) const { return padded(input, 1); }
  // The gradient of the input from that of what was `put`, if there is one.
  at::Tensor taken(const at::Tensor& grad) const {
    return grad.defined() ? padded(grad, -1) : grad;
  }

 private:
  // By the amounts times `sign`; zeros first, since more may be cut off than there was.
  at::Tensor padded(at::Tensor t, int64_t sign) const {
    for (const bool cuts : {false, true}) {
      at::DimVector amounts(around);
      bool any = false;
      for (int64_t& n : amounts) {
        n *= sign;
        if ((n < 0) != cuts) n = 0;
        any = any || n != 0;
      }
      if (any) t = at::constant_pad_nd(t, amounts);
    }
    return t;
  }
};

// Nothing where ATen may do it on its own, or has to say what is wrong; `out` are the sizes of the
// result where there is one. What oneDNN does wrong in any type (PyTorch 2.13 to 2.14):
// - it ends the process where all results along the columns see nothing but padding (1x1x5x2 by
//   1x1x1x1 with stride 3 and padding 4);
// - it reads other memory where there is one column and a step to a next that never comes (1x1x8x6
//   by 1x1x3x4 with stride (1, 3));
// - the weight's gradient in three dimensions is wrong, and other memory is written to, where
//   planes are padded by more than a step of several (1x1x9x5x2 by 4x1x5x3x2 with stride (2, 1, 1)
//   and padding (3, 1, 0)).
std::optional<Moves> moves_of(Wanted wanted, const at::Tensor& input, const at::Tensor& weight,
                              at::IntArrayRef stride, at::IntArrayRef padding,
                              at::IntArrayRef dilation, const at::Tensor& out = {}) {
  const int64_t dims = weight.dim() - 2;
  const auto one_each = [&](at::IntArrayRef list) {
    return static_cast<int64_t>(list.size()) == dims;
  };
  if (dims < 1 || input.dim() != weight.dim() || !one_each(stride) || !one_each(padding) ||
      !one_each(dilation) || (out.defined() && out.dim() != weight.dim()))
    return {};
  Moves moves{at::DimVector(stride), at::DimVector(padding), at::DimVector(2 * dims, 0)};
  bool any = false;
  for (int64_t d = 0; d < dims; ++d) {
    const Extent e{input.size(2 + d), weight.size(2 + d), stride[d], padding[d], dilation[d]};
    if (!e.fits() || (out.defined() && out.size(2 + d) != e.results())) return {};
    const bool one = e.results() == 1 && e.stride > 1;
    const bool planes =
        wanted == Wanted::kGradients && dims == 3 && d == 0 && e.stride > 1 && e.padding > e.stride;
    if (!one && !planes && !e.sees_padding_alone()) continue;
    any = true;
    // Amounts are listed from the last dimension on, before and after it.
    const int64_t at = 2 * (dims - 1 - d);
    moves.around[at] = e.padding;
    moves.around[at + 1] = one ? e.reach() - e.padding - e.input : e.padding;
    moves.stride[d] = one ? 1 : e.stride;
    moves.padding[d] = 0;
  }
  return any ? std::optional(moves) : std::nullopt;
}

// at::convolution but for what oneDNN does wrong.
at::Tensor convolved(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                     at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                     at::IntArrayRef output_padding, int64_t groups) {
  const auto moves = transposed
                         ? std::nullopt
                         : moves_of(Wanted::kResult, input, weight, stride, padding, dilation);
  if (!moves)
    return at::convolution(input, weight, bias, stride, padding, dilation, transposed,
                           output_padding, groups);
  return at::convolution(moves->put(input), weight, bias, moves->stride, moves->padding, dilation,
                         false, output_padding, groups);
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// at::convolution_backward but for what oneDNN does wrong.
Gradients gradients(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride,
                    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  // A transposed convolution takes its results to its input as another one does the opposite.
  const at::Tensor &from = transposed ? grad : input, &to = transposed ? input : grad;
  const auto moves = moves_of(Wanted::kGradients, from, weight, stride, padding, dilation, to);
  if (!moves)
    return at::convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation,
                                    transposed, output_padding, groups, mask);
  const std::array<bool, 3> asked{mask[0] && !transposed, mask[1], mask[2] && !transposed};
  auto [of_input, of_weight, of_bias] =
      at::convolution_backward(to, moves->put(from), weight, bias_sizes, moves->stride,
                               moves->padding, dilation, false, output_padding, groups, asked);
  if (!transposed) return {moves->taken(of_input), of_weight, of_bias};
  if (mask[0])
    of_input = at::convolution(moves->put(grad), weight, {}, moves->stride, moves->padding,
                               dilation, false, output_padding, groups);
  if (mask[2]) {
    at::DimVector others{0};
    for (int64_t d = 2; d < grad.dim(); ++d) others.push_back(d);
    of_bias = grad.sum(others);
  }
  return {of_input, of_weight, of_bias};
}

}  // namespace

bool is_widened(at::ScalarType dtype) {
  const bool rounds_once = kernels::best_isa() == kernels::Isa::Avx512 && !kernels::may_use_amx();
  return dtype == at::kHalf || (dtype == at::kBFloat16 && !rounds_once);
}

at::Tensor convolve_by_aten(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups) {
  const bool has_bias = bias && bias->defined();
  const auto dtype = input.scalar_type();
  // Operands of several types are ATen's to refuse.
  if (are_right(Wanted::kResult, dtype, weight, padding, dilation) ||
      weight.scalar_type() != dtype || (has_bias && bias->scalar_type() != dtype))
    return convolved(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                     groups);
  const auto wide_bias = has_bias ? std::optional<at::Tensor>(wide(*bias)) : std::nullopt;
  const at::Tensor sums = convolved(wide(input), wide(weight), wide_bias, stride, padding, dilation,
                                    transposed, output_padding, groups);
  return rounded(sums, dtype);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients_by_aten(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> mask) {
  const auto dtype = input.scalar_type();
  if (are_right(Wanted::kGradients, dtype, weight, padding, dilation) ||
      weight.scalar_type() != dtype || grad.scalar_type() != dtype)
    return gradients(grad, input, weight, bias_sizes, stride, padding, dilation, transposed,
                     output_padding, groups, mask);
  const auto [of_input, of_weight, of_bias] =
      gradients(wide(grad), wide(input), wide(weight), bias_sizes, stride, padding, dilation,
                transposed, output_padding, groups, mask);
  return {rounded(of_input, dtype), rounded(of_weight, dtype), rounded(of_bias, dtype)};
}

}  // namespace torch_neuronx::conv
