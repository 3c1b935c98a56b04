// Elementwise activations and arithmetic on contiguous float32, bfloat16 and float16 arrays.
//
// 16-bit inputs are computed in float32 and rounded to nearest even when stored. Outputs may be the
// same array as an input (in-place), but must not overlap one otherwise. Work is spread over ATen's
// threads; results do not depend on their number.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "kernels/isa.h"

namespace torch_neuronx::kernels {

/// Formulas as in torch.nn.functional; Gelu is the erf form, GeluTanh approximate="tanh".
enum class UnaryOp : uint8_t {
  Gelu,
  GeluTanh,
  Silu,
  Sigmoid,
  Tanh,
  Relu,
  Exp,
  Sqrt,
  Rsqrt,
  kCount
};

/// Gradients with respect to the input. Gelu, GeluTanh and Silu take the forward's input,
/// Sigmoid, Tanh and Relu (threshold 0) its result.
enum class UnaryGradOp : uint8_t { Gelu, GeluTanh, Silu, Sigmoid, Tanh, Relu, kCount };

enum class BinaryOp : uint8_t { Add, Sub, Mul, Div, kCount };

/// Whether the kernels of this file take arrays of `dtype`: Float, BFloat16, Half.
bool pointwise_supports(c10::ScalarType dtype);

/// out[i] = op(x[i]) for i < n.
void unary(UnaryOp op, c10::ScalarType dtype, const void* x, void* out, int64_t n);

/// out[i] = grad[i] * d op/dx, where `saved` is the input or the result (see UnaryGradOp).
void unary_grad(UnaryGradOp op, c10::ScalarType dtype, const void* grad, const void* saved,
                void* out, int64_t n);

/// out[i] = a[i] op b[i]; Add and Sub scale b by alpha first, with torch's rounding.
void binary(BinaryOp op, c10::ScalarType dtype, const void* a, const void* b, void* out, int64_t n,
            double alpha = 1.0);

/// out[i] = a[i] op scalar, or scalar op a[i] when `reverse` (alpha then scales a).
/// Rounding of the scalar as in torch: Mul and Div take it as float32 whatever the dtype of a, Add
/// and Sub round it (and alpha) to that dtype.
void binary_scalar(BinaryOp op, c10::ScalarType dtype, const void* a, double scalar, void* out,
                   int64_t n, double alpha = 1.0, bool reverse = false);

/// out[r][c] = a[r][c] op row[c] for a of rows x cols, or row[c] op a[r][c] when `reverse`.
void binary_row(BinaryOp op, c10::ScalarType dtype, const void* a, const void* row, void* out,
                int64_t rows, int64_t cols, double alpha = 1.0, bool reverse = false);

/// Serial functions over one range, one table per instruction set. The second index is
/// pointwise_dtype_index().
struct PointwiseTable {
  using Unary = void (*)(const void* x, void* out, int64_t n);
  using Grad = void (*)(const void* grad, const void* saved, void* out, int64_t n);
  using Binary = void (*)(const void* a, const void* b, void* out, int64_t n, float alpha);
  using Scalar = void (*)(const void* a, float b, void* out, int64_t n, float alpha);
  Unary unary[int(UnaryOp::kCount)][3];
  Grad grad[int(UnaryGradOp::kCount)][3];
  Binary binary[int(BinaryOp::kCount)][3];
  Scalar scalar[int(BinaryOp::kCount)][3];
  Scalar scalar_reverse[int(BinaryOp::kCount)][3];
};

/// 0 for Float, 1 for BFloat16, 2 for Half; throws c10::Error naming `what` for any other dtype.
int kernel_dtype_index(c10::ScalarType dtype, const char* what);

TN_DECLARE_TABLES(PointwiseTable, pointwise_table)

}  // namespace torch_neuronx::kernels
