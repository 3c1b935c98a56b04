#include "gemm/aten_gemm.h"

#include <ATen/ATen.h>

#include "gemm/methods.h"
#include "gemm/packed_b.h"
#include "gemm/probe.h"

namespace torch_neuronx::gemm {
namespace {

// With more rows than this, rearranging B anew costs next to nothing.
constexpr int64_t kMaxRowsForCache = 1024;

bool readable(const at::Tensor& t, at::ScalarType dtype) {
  return t.layout() == at::kStrided && t.scalar_type() == dtype && !t.is_neg() && t.has_storage();
}

// First and one past the last byte that the tensor reaches.
std::pair<uintptr_t, uintptr_t> range_of(const at::Tensor& t) {
  const auto base = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  if (t.numel() == 0) return {base, base};
  uintptr_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += uintptr_t((t.size(d) - 1) * t.stride(d));
  return {base, base + (last + 1) * t.element_size()};
}

bool overlap(const at::Tensor& x, const at::Tensor& y) {
  const auto [x0, x1] = range_of(x);
  const auto [y0, y1] = range_of(y);
  return x0 < y1 && y0 < x1;
}

bool same_place(const at::Tensor& x, const at::Tensor& y) {
  return x.const_data_ptr() == y.const_data_ptr() && x.sizes() == y.sizes() &&
         x.strides() == y.strides();
}

// Strides of `self` as if expanded to `out`; false if it cannot be.
bool expanded_strides(const at::Tensor& self, const at::Tensor& out, int64_t strides[3]) {
  const int64_t dims = out.dim(), missing = dims - self.dim();
  if (missing < 0) return false;
  for (int64_t d = 0; d < 3; ++d) strides[d] = 0;
  for (int64_t d = 0; d < self.dim(); ++d) {
    const int64_t size = self.size(d), wanted = out.size(d + missing);
    if (size != wanted && size != 1) return false;
    strides[d + missing + 3 - dims] = size == 1 ? 0 : self.stride(d);
  }
  return true;
}

Matrix last_two(const at::Tensor& t) {
  return {t.const_data_ptr(), t.size(-2), t.size(-1), t.stride(-2), t.stride(-1)};
}

Matrix transposed(const Matrix& x) { return {x.data, x.cols, x.rows, x.col_stride, x.row_stride}; }

}  // namespace

bool run_if_faster(const Problem& original, uint64_t generation) {
  if (!has_kernels(original.dtype)) return false;
  if (original.batch == 0 || original.m == 0 || original.n == 0) return true;
  Problem p = normalised(original);
  if (is_empty_sum(p)) {
    run_empty(p);
    return true;
  }
  const bool fused = p.epilogue.function != nullptr;
  const Method method = makes_operand(p) ? Method::kPanel : fused ? choose_ours(p) : choose(p);
  if (method == Method::kAten) return false;
  const bool same_b = p.b.data == original.b.data && p.n == original.n;
  if (generation != 0 && same_b && method == Method::kPanel && p.batch == 1 &&
      p.m <= kMaxRowsForCache) {
    p.packed_b = PackedCache::instance().find(p, generation);
  }
  run_normalised(p, method);
  return true;
}

std::optional<Problem> problem_of(const at::Tensor& out, const at::Tensor& self,
                                  const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                                  const at::Scalar& alpha) {
  const at::ScalarType dtype = out.scalar_type();
  const bool floating = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  const int64_t dims = out.dim();
  if (!floating || (dims != 2 && dims != 3) || a.dim() != dims || b.dim() != dims) return {};
  if (!readable(out, dtype) || !readable(a, dtype) || !readable(b, dtype)) return {};
  if (beta.isComplex() || alpha.isComplex()) return {};
  Problem p;
  p.dtype = dtype;
  p.m = out.size(-2);
  p.n = out.size(-1);
  p.k = a.size(-1);
  p.batch = dims == 3 ? out.size(0) : 1;
  if (a.size(-2) != p.m || b.size(-2) != p.k || b.size(-1) != p.n) return {};
  if (dims == 3 && (a.size(0) != p.batch || b.size(0) != p.batch)) return {};
  if (out.numel() != 0 && (overlap(out, a) || overlap(out, b))) return {};
  p.a = last_two(a);
  p.b = last_two(b);
  p.out = out.mutable_data_ptr();
  p.out_row_stride = out.stride(-2);
  if (dims == 3) {
    p.a_batch_stride = a.stride(0);
    p.b_batch_stride = b.stride(0);
    p.out_batch_stride = out.stride(0);
  }
  p.alpha = float(alpha.toDouble());
  p.beta = float(beta.toDouble());
  if (self.defined() && p.beta != 0.0F) {
    int64_t strides[3];
    if (!readable(self, dtype) || !expanded_strides(self, out, strides)) return {};
    if (overlap(out, self) && !same_place(out, self)) return {};
    p.c0 = self.const_data_ptr();
    p.c0_batch_stride = strides[0];
    p.c0_row_stride = strides[1];
    p.c0_col_stride = strides[2];
  }
  if (contiguous(p.n, out.stride(-1))) {
    // A single row may carry any stride; ours must not make rows overlap.
    if (p.m > 1 && p.out_row_stride < p.n) return {};
  } else if (contiguous(p.m, out.stride(-2)) && out.stride(-1) >= p.m) {
    // out^T = B^T A^T
    const Matrix a_transposed = transposed(p.a);
    p.a = transposed(p.b);
    p.b = a_transposed;
    std::swap(p.m, p.n);
    std::swap(p.a_batch_stride, p.b_batch_stride);
    std::swap(p.c0_row_stride, p.c0_col_stride);
    p.out_row_stride = out.stride(-1);
  } else {
    return {};
  }
  if (p.batch > 1 && p.out_batch_stride < (p.m - 1) * p.out_row_stride + p.n) return {};
  return p;
}

bool try_addmm(const at::Tensor& out, const at::Tensor& self, const at::Tensor& mat1,
               const at::Tensor& mat2, const at::Scalar& beta, const at::Scalar& alpha,
               uint64_t generation) {
  if (out.dim() != 2) return false;
  const std::optional<Problem> p = problem_of(out, self, mat1, mat2, beta, alpha);
  const bool b_is_weight = p && p->b.data == mat2.const_data_ptr();
  return p && run_if_faster(*p, b_is_weight ? generation : 0);
}

bool try_baddbmm(const at::Tensor& out, const at::Tensor& self, const at::Tensor& batch1,
                 const at::Tensor& batch2, const at::Scalar& beta, const at::Scalar& alpha) {
  if (out.dim() != 3) return false;
  const std::optional<Problem> p = problem_of(out, self, batch1, batch2, beta, alpha);
  return p && run_if_faster(*p, 0);
}

bool try_bmm(const at::Tensor& out, const at::Tensor& batch1, const at::Tensor& batch2) {
  return try_baddbmm(out, at::Tensor(), batch1, batch2, 0, 1);
}

bool try_linear(const at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                const at::Tensor& bias, uint64_t generation) {
  if (weight.dim() != 2 || input.dim() < 1 || out.dim() != input.dim()) return false;
  if (!out.is_contiguous() || !input.is_contiguous()) return false;
  const int64_t n = weight.size(0), k = weight.size(1);
  if (out.size(-1) != n || input.size(-1) != k || n == 0 || k == 0) return false;
  if (out.numel() / n != input.numel() / k) return false;
  const at::Tensor out2 = out.view({-1, n}), input2 = input.view({-1, k});
  return try_addmm(out2, bias, input2, weight.t(), 1, 1, generation);
}

}  // namespace torch_neuronx::gemm
