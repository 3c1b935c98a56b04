// PyTorch's own convolution of tensors on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace torch_neuronx::conv {

// Whether all convolutions of this type are computed in float32, and rounded once: oneDNN's kernels
// for matrix tiles give wrong values for some of them without a word (PyTorch 2.13: bfloat16
// 2x4x10x3 by 4x2x3x3 with stride 2, padding (1, 0) and 2 groups), and those for tiles and
// for AVX-512 FP16 end the process for others, where outputs see nothing but padding. Where oneDNN
// has no kernel for the type (float16 without AVX-512 FP16, both without AVX-512), ATen's round
// every sum of a gradient.
bool is_widened(at::ScalarType dtype);

// at::convolution and its gradients; results have the type of the operands.
at::Tensor convolve_by_aten(const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                            at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                            at::IntArrayRef output_padding, int64_t groups);
std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients_by_aten(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> mask);

}  // namespace torch_neuronx::conv
