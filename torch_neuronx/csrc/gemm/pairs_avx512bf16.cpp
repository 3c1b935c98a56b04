// AVX-512 BF16 kernels: vdpbf16ps multiplies two neighbouring bfloat16 of K per lane and adds both
// products to a float32 accumulator. As in every use of that instruction, subnormals count as zero.
#include <cstring>

#include "gemm/avx512_templates.h"
#include "gemm/loads_avx512.h"

namespace torch_neuronx::gemm {
namespace {

TN_INLINE __m512bh as_bf16(__m512i v) { return reinterpret_cast<__m512bh>(v); }

struct UnitPair {
  using Vec = __m512i;
  static TN_INLINE Vec load(const void* p) { return _mm512_loadu_si512(p); }
  static TN_INLINE Vec broadcast(const char* p) {
    return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p));
  }
  static TN_INLINE __m512 madd(__m512 acc, Vec a, Vec b) {
    return _mm512_dpbf16_ps(acc, as_bf16(a), as_bf16(b));
  }
};

struct DotPair : UnitPair {
  static constexpr int64_t kStep = 32, kLargeBytes = 2, kSmallBytes = 2;
  static TN_INLINE Vec load_large(const char* p) { return _mm512_loadu_si512(p); }
  static TN_INLINE Vec load_large(const char* p, int64_t n) {
    return _mm512_maskz_loadu_epi16(lanes32(n), p);
  }
  static TN_INLINE Vec load_small(const char* p) { return load_large(p); }
  static TN_INLINE Vec load_small(const char* p, int64_t n) { return load_large(p, n); }
};

// 16 neighbouring elements of two rows -> 16 pairs, the first row in the low halves.
TN_INLINE __m512i interleave(const char* row0, const char* row1, __mmask16 mask) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row0));
  if (row1 == nullptr) return low;
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row1));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

void pack_b_rows(const PackArgs& b) {
  constexpr int64_t kAhead = 12;
  for (int64_t p = 0; p < b.k; p += 2) {
    const char* row0 = b.src + p * b.k_bytes;
    const char* row1 = p + 1 < b.k ? row0 + b.k_bytes : nullptr;
    if (p + kAhead + 1 < b.k) {
      for (int64_t j = 0; j < b.other; j += 32) {
        _mm_prefetch(row0 + kAhead * b.k_bytes + 2 * j, _MM_HINT_T0);
        _mm_prefetch(row0 + (kAhead + 1) * b.k_bytes + 2 * j, _MM_HINT_T0);
      }
    }
    uint32_t* dst = b.dst + p / 2 * kPanelCols;
    for (int64_t j = 0; j < kPanelCols; j += 16) {
      const int64_t left = b.other - j;
      const __m512i v = left > 0
                            ? interleave(row0 + 2 * j, row1 ? row1 + 2 * j : nullptr, lanes16(left))
                            : _mm512_setzero_si512();
      _mm512_storeu_si512(dst + j, v);
    }
  }
}

void pack_b_columns(const PackArgs& b) {
  for (int64_t j = 0; j < kPanelCols; j += 16) {
    const int64_t columns = b.other - j;
    for (int64_t p = 0; p < b.k; p += 32) {
      const int64_t depth = b.k - p;
      const __mmask32 mask = lanes32(depth);
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        r[i] = i < columns ? _mm512_maskz_loadu_epi16(mask, b.src + (j + i) * b.other_bytes + 2 * p)
                           : _mm512_setzero_si512();
      }
      transpose16(r);
      uint32_t* dst = b.dst + p / 2 * kPanelCols + j;
      if (depth >= 31) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_storeu_si512(dst + i * kPanelCols, r[i]);
      } else {
        for (int i = 0; i < (depth + 1) / 2; ++i) _mm512_storeu_si512(dst + i * kPanelCols, r[i]);
      }
    }
  }
}

void pack_b(const PackArgs& b) {
  if (b.other_bytes == 2) return pack_b_rows(b);
  if (b.k_bytes == 2) return pack_b_columns(b);
  pack_b_portable(b, 2);
}

void pack_a_rows(const PackArgs& a) {
  if (a.k_bytes == 2) {
    for (int64_t i = 0; i < a.other; ++i) {
      uint32_t* dst = a.dst + i * a.dst_row;
      dst[(a.k - 1) / 2] = 0;  // the second half of the last pair, if k is odd
      std::memcpy(dst, a.src + i * a.other_bytes, size_t(2 * a.k));
    }
    return;
  }
  if (a.other_bytes != 2) return pack_a_rows_portable(a, 2);
  constexpr int64_t kAhead = 32;  // as for float32
  for (int64_t p = 0; p < a.k; p += 32) {
    const int64_t depth = a.k - p;
    for (int64_t i = 0; i < a.other; i += 16) {
      const int64_t rows = a.other - i;
      const __mmask16 mask = lanes16(rows);
      __m512i r[16];
#pragma GCC unroll 16
      for (int u = 0; u < 16; ++u) {
        const char* row0 = a.src + (p + 2 * u) * a.k_bytes + 2 * i;
        if (2 * u + 1 < depth - kAhead) {
          _mm_prefetch(row0 + kAhead * a.k_bytes, _MM_HINT_T1);
          _mm_prefetch(row0 + (kAhead + 1) * a.k_bytes, _MM_HINT_T1);
        }
        r[u] = 2 * u < depth
                   ? interleave(row0, 2 * u + 1 < depth ? row0 + a.k_bytes : nullptr, mask)
                   : _mm512_setzero_si512();
      }
      store_transposed(r, a.dst + i * a.dst_row + p / 2, a.dst_row, rows, lanes16((depth + 1) / 2));
    }
  }
}

}  // namespace

const Kernels* avx512bf16_kernels() {
  const Kernels* base = avx512_kernels();
  if (base == nullptr || !host_has_avx512bf16()) return nullptr;
  static const Kernels kernels{
      "avx512bf16",    2,       Element::kBf16, true,          true,        true,
      &tile<UnitPair>, &pack_b, &pack_a_rows,   &dot<DotPair>, base->stream};
  return &kernels;
}

}  // namespace torch_neuronx::gemm
