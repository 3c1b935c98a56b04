// The gradient of attention with the scores in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace torch_neuronx {

// Gradients of softmax(scale * Q K^T [+ causal mask]) V with respect to Q, K and V, all on the CPU
// side: [batch, heads, length, width], bfloat16 or float16, equal numbers of heads. Computes in
// float32 with batched products. Nothing if the case isn't taken: ATen's flash kernel, which never
// stores the scores, is as fast for float32 and for long sequences; for short 16-bit ones its many
// small products make it several times slower.
std::optional<std::tuple<at::Tensor, at::Tensor, at::Tensor>> attention_backward_by_scores(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    bool causal, std::optional<double> scale);

}  // namespace torch_neuronx
