// Softmax, normalisations and sums over the last, contiguous dimension of a rows x cols array.
//
// dtypes: float32, bfloat16, float16; 16-bit rows are computed in float32 and rounded once. Sums
// are kept per vector lane over blocks and added in double, the variance takes a second pass over
// the row (in cache), so rows of any length and any mean are summed well. Results do not depend on
// the number of threads. Outputs may be the same array as the input they have the shape of.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "kernels/isa.h"

namespace torch_neuronx::kernels {

/// out = softmax(x) or log_softmax(x) per row. A row of only -inf, or with a NaN or +inf, gives NaN
/// as in torch.
void softmax(c10::ScalarType dtype, const void* x, void* out, int64_t rows, int64_t cols, bool log);

/// grad_in from grad_out and the forward's result y.
void softmax_backward(c10::ScalarType dtype, const void* grad_out, const void* y, void* grad_in,
                      int64_t rows, int64_t cols, bool log);

/// aten::native_layer_norm: out = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps)
/// with the population variance. `weight` and `bias` (cols elements, may be nullptr) have
/// `weight_dtype`: dtype or Float. mean and rstd: rows float32 values.
void layer_norm(c10::ScalarType dtype, c10::ScalarType weight_dtype, const void* x,
                const void* weight, const void* bias, double eps, void* out, float* mean,
                float* rstd, int64_t rows, int64_t cols);

/// aten::native_layer_norm_backward. grad_in, grad_weight, grad_bias may be nullptr (not wanted);
/// the latter two have weight_dtype.
void layer_norm_backward(c10::ScalarType dtype, c10::ScalarType weight_dtype, const void* grad_out,
                         const void* x, const float* mean, const float* rstd, const void* weight,
                         void* grad_in, void* grad_weight, void* grad_bias, int64_t rows,
                         int64_t cols);

/// aten::_fused_rms_norm: out = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), rows float32.
void rms_norm(c10::ScalarType dtype, c10::ScalarType weight_dtype, const void* x,
              const void* weight, double eps, void* out, float* rstd, int64_t rows, int64_t cols);

/// aten::_fused_rms_norm_backward; grad_in and grad_weight may be nullptr.
void rms_norm_backward(c10::ScalarType dtype, c10::ScalarType weight_dtype, const void* grad_out,
                       const void* x, const float* rstd, const void* weight, void* grad_in,
                       void* grad_weight, int64_t rows, int64_t cols);

/// out[row] = the sum, or the mean, of the row, of `dtype`. Added in float32 in the order in which
/// compiled code adds up a row (neuronxcc/codegen/llvm/reduction.py), so both give equal bits.
void sum_rows(c10::ScalarType dtype, const void* x, void* out, int64_t rows, int64_t cols,
              bool mean);
/// The longest row that sum_rows() takes, and that layer_norm() adds up in that order.
int64_t longest_summed_row();

/// Serial functions over one row (`scratch`: cols floats), one table per instruction set. The index
/// is kernel_dtype_index(); [3][2] adds whether weights are float32 (1) or of the row's dtype (0).
struct NormTable {
  using Softmax = void (*)(const void* x, void* out, int64_t cols, float* scratch);
  using SoftmaxGrad = void (*)(const void* grad, const void* y, void* out, int64_t cols);
  using Norm = void (*)(const void* x, const void* weight, const void* bias, float eps, void* out,
                        float* mean, float* rstd, int64_t cols, float* scratch);
  /// Adds the row's share to grad_weight and grad_bias (float32 accumulators, may be nullptr).
  using NormGrad = void (*)(const void* grad, const void* x, float mean, float rstd,
                            const void* weight, void* grad_in, float* grad_weight, float* grad_bias,
                            int64_t cols);
  using FromFloat = void (*)(const float* x, void* out, int64_t n);
  Softmax softmax[3], log_softmax[3];
  SoftmaxGrad softmax_grad[3], log_softmax_grad[3];
  Norm layer_norm[3][2], rms_norm[3][2];
  NormGrad layer_norm_grad[3][2], rms_norm_grad[3][2];
  FromFloat from_float[3];
  using Sum = void (*)(const void* x, void* out, int64_t cols, bool mean);
  Sum sum[3];
  int64_t sum_lanes;    // partial sums of a row
  int64_t longest_row;  // that is summed in the order of compiled code
};

TN_DECLARE_TABLES(NormTable, norm_table)

}  // namespace torch_neuronx::kernels
