// The same kernel table over ATen's brgemm (oneDNN's generated micro-kernels): float32 on AVX2
// machines, bfloat16 where TORCH_NEURONX_GEMM_KERNELS asks for it.
//
// brgemm generates code for every distinct (m, n, k, leading dimensions) and keeps it per thread
// for ever: 60 to 100 microseconds and some kilobytes each. So only few distinct keys are used
// here: A comes in padded rows of kBlockUnits, C is a private tile, and tails of m and n are
// padded.
#include <ATen/Context.h>
#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>

#include "gemm/kernels.h"
#include "kernels/isa.h"

namespace torch_neuronx::gemm {
#if defined(__x86_64__)
namespace {

namespace cpublas = at::native::cpublas;
constexpr int64_t kRows = 32;   // rows of one call; the rest of m uses smaller powers of two
constexpr int64_t kDepth = 64;  // units of K in one call; the rest of k is one more key each

template <class T>
void product(int64_t rows, int64_t depth, int64_t lda, const char* a, const char* b, float* c) {
  constexpr int64_t kUnit = sizeof(float) / sizeof(T);
  cpublas::brgemm(rows, kPanelCols, depth * kUnit, lda * kUnit, kPanelCols, kPanelCols,
                  /*add_C=*/true, reinterpret_cast<const T*>(a), reinterpret_cast<const T*>(b), c,
                  /*is_vnni=*/kUnit == 2);
}

template <class T>
void tile(int64_t m, int64_t n, const TileArgs& t) {
  alignas(64) float c[kRows * kPanelCols];
  alignas(64) char a_block[kRows * kDepth * 4];
  for (int64_t i = 0; i < m;) {
    int64_t rows = kRows;
    while (rows > m - i) rows /= 2;
    for (int64_t r = 0; r < rows; ++r) {
      float* row = c + r * kPanelCols;
      std::fill(row, row + kPanelCols, 0.0F);
      if (t.init != nullptr) std::copy_n(t.init + (i + r) * t.init_row, n, row);
    }
    for (int64_t p = 0; p < t.k_units; p += kDepth) {
      const int64_t depth = std::min(kDepth, t.k_units - p);
      // A fixed leading dimension, for few keys; 8 KiB copied per 32 x 64 x 64 products.
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(a_block + r * kDepth * 4, t.a + (i + r) * t.a_row_bytes + p * 4, depth * 4);
      }
      product<T>(rows, depth, kDepth, a_block, t.b + p * kPanelCols * 4, c);
    }
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(c + r * kPanelCols, n, static_cast<float*>(t.c) + (i + r) * t.c_row);
    i += rows;
  }
  cpublas::brgemm_release(sizeof(T) == 2);
}

template <int64_t kUnit>
void pack_b(const PackArgs& b) {
  pack_b_portable(b, kUnit);
}

template <int64_t kUnit>
void pack_a(const PackArgs& a) {
  pack_a_rows_portable(a, kUnit);
}

// oneDNN may be held to fewer instructions than the processor has (ONEDNN_MAX_CPU_ISA), which
// nothing tells but a product of pairs that it refuses.
bool multiplies_bf16() {
  alignas(64) const char a[4] = {}, b[kPanelCols * 4] = {};
  alignas(64) float c[kPanelCols] = {};
  try {
    product<c10::BFloat16>(1, 1, 1, a, b, c);
  } catch (const c10::Error&) {
    return false;
  }
  cpublas::brgemm_release(true);
  return true;
}

}  // namespace

const Kernels* brgemm_f32_kernels() {
  static const bool has = kernels::best_isa() >= kernels::Isa::Avx2;
  static const Kernels kernels{"brgemm_f32", 1,          Element::kF32, false,   false,  false,
                               &tile<float>, &pack_b<1>, &pack_a<1>,    nullptr, nullptr};
  return has && at::globalContext().userEnabledMkldnn() ? &kernels : nullptr;
}

const Kernels* brgemm_bf16_kernels() {
  static const bool has = host_has_avx512() && multiplies_bf16();
  static const Kernels kernels{
      "brgemm_bf16",        2,          Element::kBf16, false,   false,  false,
      &tile<c10::BFloat16>, &pack_b<2>, &pack_a<2>,     nullptr, nullptr};
  return has && at::globalContext().userEnabledMkldnn() ? &kernels : nullptr;
}

#else
// Tried on x86-64 alone; elsewhere products are ATen's.
const Kernels* brgemm_f32_kernels() { return nullptr; }
const Kernels* brgemm_bf16_kernels() { return nullptr; }
#endif

}  // namespace torch_neuronx::gemm
