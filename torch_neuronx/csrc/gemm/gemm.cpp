// Normal forms, engines, and the parts that every method shares.
#include "gemm/gemm.h"

#include <cstdlib>
#include <cstring>

#include "gemm/methods.h"
#include "gemm/probe.h"

namespace torch_neuronx::gemm {
namespace {

enum class EngineChoice : uint8_t { kAuto, kAvx512, kBrgemm, kNone };

EngineChoice engine_choice() {
  static const EngineChoice choice = [] {
    const char* text = std::getenv("TORCH_NEURONX_GEMM_KERNELS");
    if (text == nullptr || *text == '\0' || std::strcmp(text, "auto") == 0) {
      return EngineChoice::kAuto;
    }
    if (std::strcmp(text, "avx512") == 0) return EngineChoice::kAvx512;
    if (std::strcmp(text, "brgemm") == 0) return EngineChoice::kBrgemm;
    TORCH_CHECK(std::strcmp(text, "none") == 0,
                "TORCH_NEURONX_GEMM_KERNELS must be auto, avx512, brgemm or none, got \"", text,
                "\"");
    return EngineChoice::kNone;
  }();
  return choice;
}

}  // namespace

const char* method_name(Method method) {
  switch (method) {
    case Method::kAten:
      return "aten";
    case Method::kPanel:
      return "panel";
    case Method::kDot:
      return "dot";
    case Method::kStream:
      return "stream";
  }
  return "?";
}

const Kernels* kernels_for(at::ScalarType dtype) {
  const EngineChoice choice = engine_choice();
  const bool known = dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
  if (!known || choice == EngineChoice::kNone) return nullptr;
  if (choice != EngineChoice::kBrgemm) {
    const Kernels* own = own_kernels(element_of(dtype), choice == EngineChoice::kAuto);
    if (own != nullptr || choice == EngineChoice::kAvx512) return own;
  }
  const Kernels* pairs = dtype == at::kBFloat16 ? brgemm_bf16_kernels() : nullptr;
  return pairs != nullptr ? pairs : brgemm_f32_kernels();  // of floats: operands are widened
}

bool has_kernels(at::ScalarType dtype) { return kernels_for(dtype) != nullptr; }

bool writes_directly(const Problem& p) {
  if (p.epilogue.function != nullptr) return false;
  if (p.dtype != at::kFloat || p.alpha != 1.0F) return false;
  return !reads_c0(p) || (p.beta == 1.0F && contiguous(p.n, p.c0_col_stride));
}

void store_block(const Problem& p, int64_t b, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                 const float* src, int64_t src_row, int64_t src_col) {
  const Element element = element_of(p.dtype);
  const int64_t size = element_size(element);
  StoreArgs s{element, src, src_row, src_col, rows,  cols, nullptr, p.out_row_stride * size,
              nullptr, 0,   0,       p.alpha, p.beta};
  s.out = static_cast<char*>(p.out) + (b * p.out_batch_stride + i0 * p.out_row_stride + j0) * size;
  if (reads_c0(p)) {
    s.c0 = static_cast<const char*>(p.c0) +
           (b * p.c0_batch_stride + i0 * p.c0_row_stride + j0 * p.c0_col_stride) * size;
    s.c0_row_bytes = p.c0_row_stride * size;
    s.c0_col_bytes = p.c0_col_stride * size;
  }
  store(s);
}

void run_empty(const Problem& p) {
  // alpha * 0 is 0 whatever alpha is: there is no product that it could multiply.
  Problem sum = p;
  sum.alpha = 1.0F;
  constexpr int64_t kCols = 256, kRows = 64;
  const float zeros[kCols] = {};
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t i = 0; i < p.m; i += kRows) {
      for (int64_t j = 0; j < p.n; j += kCols) {
        finish_block(sum, b, i, std::min(kRows, p.m - i), j, std::min(kCols, p.n - j), zeros, 0, 1);
      }
    }
  }
}

Problem normalised(Problem p) {
  const auto follows = [&](int64_t batch_stride, int64_t row_stride) {
    return batch_stride == p.m * row_stride;
  };
  if (makes_operand(p)) return p;  // its function counts in the caller's rows and columns
  const bool fused = p.epilogue.function != nullptr;
  if (p.batch > 1 && p.b_batch_stride == 0 && follows(p.a_batch_stride, p.a.row_stride) &&
      (fused || follows(p.out_batch_stride, p.out_row_stride)) &&
      (!reads_c0(p) || follows(p.c0_batch_stride, p.c0_row_stride))) {
    p.epilogue.folded_rows = p.m;
    p.m *= p.batch;
    p.a.rows = p.m;
    p.batch = 1;
  }
  if (p.n == 1 && p.m > 1 && (fused || p.out_row_stride == 1) && p.packed_b == nullptr) {
    const Matrix a = p.a;
    p.a = {p.b.data, 1, p.k, p.b.col_stride, p.b.row_stride};
    p.b = {a.data, p.k, p.m, a.col_stride, a.row_stride};
    std::swap(p.a_batch_stride, p.b_batch_stride);
    std::swap(p.m, p.n);
    std::swap(p.c0_row_stride, p.c0_col_stride);
    p.out_row_stride = p.n;
    p.epilogue.swapped = true;
  }
  return p;
}

void run_with(const Problem& original, Method method) {
  if (original.batch == 0 || original.m == 0 || original.n == 0) return;
  const Problem p = normalised(original);
  if (is_empty_sum(p)) return run_empty(p);
  run_normalised(p, method);
}

void run_normalised(const Problem& p, Method method) {
  TORCH_CHECK(applicable(p, method), "the ", method_name(method),
              " method cannot compute this matrix product on this host");
  switch (method) {
    case Method::kPanel:
      return run_panel(p);
    case Method::kDot:
      return run_dot(p);
    case Method::kStream:
      return run_stream(p);
    case Method::kAten:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "unreachable");
}

bool supported(const Problem& p) {
  if (!has_kernels(p.dtype)) return false;
  if (p.batch == 0 || p.m == 0 || p.n == 0 || is_empty_sum(p)) return true;
  return choose(normalised(p)) != Method::kAten;
}

void run(const Problem& p) {
  TORCH_CHECK(has_kernels(p.dtype), "this host has no matrix micro-kernels for ",
              c10::toString(p.dtype));
  if (p.batch == 0 || p.m == 0 || p.n == 0) return;
  if (is_empty_sum(p)) return run_empty(p);
  run_with(p, choose_ours(normalised(p)));
}

}  // namespace torch_neuronx::gemm
