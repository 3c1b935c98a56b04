// Attention between tensors whose memory the host can read (see gemm/aten_gemm.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "attention/attention.h"

namespace torch_neuronx::attention {

// The problem of 4-d tensors [batch, heads, length, width]; nothing if our kernels do not take it.
// `mask`: boolean or added, broadcast to [batch, heads, queries, keys]; undefined: none. The
// default scale is 1 / sqrt(width).
std::optional<Problem> problem_of(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& mask, bool causal,
                                  std::optional<double> scale);

// The same of one sequence without a mask, with `keys` rows of key and value in pages [pages,
// heads, page size, width], in the order of `table`: int32, contiguous and checked by the caller.
std::optional<Problem> paged_problem_of(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value, const int32_t* table, int64_t keys,
                                        bool causal, std::optional<double> scale);

// The tensor, or a copy whose rows (the last dimension) are contiguous. All kernels need that: ours
// refuse other operands, and ATen's flash kernel reads them as if they were contiguous.
at::Tensor with_contiguous_rows(const at::Tensor& t);

// False for the problems that ATen's flash kernel solves sooner (and does take).
bool faster_than_aten(const Problem& p);

// The result, in memory laid out as that of `query`, and its contiguous log-sum-exp.
std::tuple<at::Tensor, at::Tensor> forward(const Problem& p, const at::Tensor& query);

// Gradients of query, key and value, each laid out as its tensor.
std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(
    const Problem& p, const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp);

// ATen's flash kernel for CPUs, which does not compare its operands: here it is asked only about
// those that fit together, anything else throws c10::Error. `mask` as for problem_of.
std::tuple<at::Tensor, at::Tensor> aten_forward(const at::Tensor& query, const at::Tensor& key,
                                                const at::Tensor& value, bool causal,
                                                const std::optional<at::Tensor>& mask,
                                                std::optional<double> scale);
std::tuple<at::Tensor, at::Tensor, at::Tensor> aten_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& logsumexp, bool causal,
    const std::optional<at::Tensor>& mask, std::optional<double> scale);

}  // namespace torch_neuronx::attention
