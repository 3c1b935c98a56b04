// Matrix products between tensors whose memory the host can read: CPU tensors, and device tensors
// aliased as such. Every function returns false, having touched nothing, when our kernels do not
// take the case (dtype, layout, overlap, a shape that ATen is faster for): the caller then runs
// ATen's operator, which also raises the errors for operands that do not fit together.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <optional>

#include "gemm/gemm.h"

namespace torch_neuronx::gemm {

// `generation`: zero if mat2 (weight) is not known to be used again; else a number that changes
// whenever the memory of mat2 was written or given to another tensor. It allows the packed form of
// mat2 to be kept between calls.

// False if ATen's operator is the faster one for `p`, or there are no kernels for its dtype here. A
// product with an epilogue is always ours if there are kernels. `generation` is that of p.b.
bool run_if_faster(const Problem& p, uint64_t generation);

// out[m,n] = beta * self + alpha * mat1[m,k] @ mat2[k,n]; self undefined, or expandable to out.
bool try_addmm(const at::Tensor& out, const at::Tensor& self, const at::Tensor& mat1,
               const at::Tensor& mat2, const at::Scalar& beta, const at::Scalar& alpha,
               uint64_t generation);

// out[b,m,n] = beta * self + alpha * batch1[b,m,k] @ batch2[b,k,n]
bool try_baddbmm(const at::Tensor& out, const at::Tensor& self, const at::Tensor& batch1,
                 const at::Tensor& batch2, const at::Scalar& beta, const at::Scalar& alpha);
bool try_bmm(const at::Tensor& out, const at::Tensor& batch1, const at::Tensor& batch2);

// out[..., n] = input[..., k] @ weight[n,k]^T + bias; out and input contiguous.
bool try_linear(const at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                const at::Tensor& bias, uint64_t generation);

// The Problem of the above, or nothing if its operands are not for us. Shapes: 2-d or 3-d.
std::optional<Problem> problem_of(const at::Tensor& out, const at::Tensor& self,
                                  const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                                  const at::Scalar& alpha);

}  // namespace torch_neuronx::gemm
