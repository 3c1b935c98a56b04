// AVX-512 kernels with float32 arithmetic. Half-width operands are widened while they are packed or
// loaded, so float16 products, which the processor has no instruction for, cost the same.
#include <algorithm>

#include "gemm/avx512_templates.h"
#include "gemm/loads_avx512.h"

namespace torch_neuronx::gemm {
namespace {

// large: any element type; small: float32 rows
template <Element E>
struct DotF32 {
  using Vec = __m512;
  static constexpr int64_t kStep = 16, kLargeBytes = Load<E>::kBytes, kSmallBytes = 4;
  static TN_INLINE Vec load_large(const char* p) { return Load<E>::full(p); }
  static TN_INLINE Vec load_large(const char* p, int64_t n) { return Load<E>::part(p, n); }
  static TN_INLINE Vec load_small(const char* p) { return _mm512_loadu_ps(p); }
  static TN_INLINE Vec load_small(const char* p, int64_t n) {
    return _mm512_maskz_loadu_ps(lanes16(n), p);
  }
  static TN_INLINE __m512 madd(__m512 acc, Vec a, Vec b) { return _mm512_fmadd_ps(a, b, acc); }
};

// Rows whose neighbouring columns are neighbours in memory.
template <Element E>
void pack_b_rows(const PackArgs& b) {
  // A panel touches a new page with every k, which stops the hardware prefetcher: ask ahead.
  constexpr int64_t kAhead = 12;
  for (int64_t p = 0; p < b.k; ++p) {
    const char* src = b.src + p * b.k_bytes;
    float* dst = reinterpret_cast<float*>(b.dst) + p * kPanelCols;
    if (p + kAhead < b.k) {
      for (int64_t j = 0; j < b.other; j += 64 / Load<E>::kBytes) {
        _mm_prefetch(src + kAhead * b.k_bytes + j * Load<E>::kBytes, _MM_HINT_T0);
      }
    }
    for (int64_t j = 0; j < kPanelCols; j += 16) {
      const int64_t left = b.other - j;
      const char* at = src + j * Load<E>::kBytes;
      const __m512 v = left >= 16 ? Load<E>::full(at)
                       : left > 0 ? Load<E>::part(at, left)
                                  : _mm512_setzero_ps();
      _mm512_storeu_ps(dst + j, v);
    }
  }
}

// Columns contiguous along K: transposed 16 x 16 elements at a time.
template <Element E>
void pack_b_columns(const PackArgs& b) {
  for (int64_t j = 0; j < kPanelCols; j += 16) {
    const int64_t columns = b.other - j;
    for (int64_t p = 0; p < b.k; p += 16) {
      const int64_t depth = b.k - p;
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const char* at = b.src + (j + i) * b.other_bytes + p * Load<E>::kBytes;
        const __m512 v = i >= columns  ? _mm512_setzero_ps()
                         : depth >= 16 ? Load<E>::full(at)
                                       : Load<E>::part(at, depth);
        r[i] = _mm512_castps_si512(v);
      }
      transpose16(r);
      uint32_t* dst = b.dst + p * kPanelCols + j;
      if (depth >= 16) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_storeu_si512(dst + i * kPanelCols, r[i]);
      } else {
        for (int i = 0; i < depth; ++i) _mm512_storeu_si512(dst + i * kPanelCols, r[i]);
      }
    }
  }
}

template <Element E>
void pack_b(const PackArgs& b) {
  if (b.other_bytes == Load<E>::kBytes) return pack_b_rows<E>(b);
  if (b.k_bytes == Load<E>::kBytes) return pack_b_columns<E>(b);
  pack_b_portable(b, 1);
}

// Neighbours along the other dimension (a transposed operand): 16 x 16 transpositions.
template <Element E>
void rows_across(const PackArgs& a) {
  // Every k is on another page, which stops the hardware prefetcher: ask ahead.
  constexpr int64_t kAhead = 32;
  for (int64_t p = 0; p < a.k; p += 16) {
    const int64_t depth = a.k - p;
    for (int64_t i = 0; i < a.other; i += 16) {
      const int64_t rows = a.other - i;
      __m512i r[16];
#pragma GCC unroll 16
      for (int u = 0; u < 16; ++u) {
        const char* at = a.src + (p + u) * a.k_bytes + i * Load<E>::kBytes;
        if (u < depth - kAhead) _mm_prefetch(at + kAhead * a.k_bytes, _MM_HINT_T1);
        const __m512 v = u >= depth   ? _mm512_setzero_ps()
                         : rows >= 16 ? Load<E>::full(at)
                                      : Load<E>::part(at, rows);
        r[u] = _mm512_castps_si512(v);
      }
      store_transposed(r, a.dst + i * a.dst_row + p, a.dst_row, rows, lanes16(depth));
    }
  }
}

template <Element E>
void rows_to_f32(const PackArgs& a) {
  if (a.k_bytes != Load<E>::kBytes) {
    if (a.other_bytes == Load<E>::kBytes) return rows_across<E>(a);
    return pack_a_rows_portable(a, 1);
  }
  for (int64_t i = 0; i < a.other; ++i) {
    const char* src = a.src + i * a.other_bytes;
    float* dst = reinterpret_cast<float*>(a.dst) + i * a.dst_row;
    int64_t p = 0;
    for (; p + 16 <= a.k; p += 16) _mm512_storeu_ps(dst + p, Load<E>::full(src + p * a.k_bytes));
    if (p < a.k) {
      _mm512_mask_storeu_ps(dst + p, lanes16(a.k - p), Load<E>::part(src + p * a.k_bytes, a.k - p));
    }
  }
}

// COLS * 16 lines against SR rows over `depth` steps of K, the sums in registers. Of the last 16
// lines there are `lanes`.
template <Element E, int SR, int COLS, bool ASK>
TN_INLINE void stream_strip(const ThinArgs& d, int64_t row, int64_t line, int64_t k, int64_t depth,
                            int64_t lanes) {
  // A strip has few bytes of each row, which the hardware's prefetcher makes nothing of.
  constexpr int64_t kAhead = 32, kLine = 64 / Load<E>::kBytes;
  const float* small = reinterpret_cast<const float*>(d.small + row * d.small_row_bytes);
  const int64_t small_row = d.small_row_bytes / 4;
  const char* large = d.large + k * d.large_k_bytes + line * Load<E>::kBytes;
  float* result = d.result + row * d.result_row + line;
  const __mmask16 mask = lanes16(lanes);
  __m512 acc[SR][COLS];
#pragma GCC unroll 8
  for (int i = 0; i < SR; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < COLS; ++j) {
      const __mmask16 held = k == 0 && !d.add ? 0 : j == COLS - 1 ? mask : 0xffff;
      acc[i][j] = _mm512_maskz_loadu_ps(held, result + i * d.result_row + 16 * j);
    }
  }
  for (int64_t u = k; u < k + depth; ++u, large += d.large_k_bytes) {
    if constexpr (ASK) {
      const int64_t ahead = u + kAhead < d.k ? kAhead * d.large_k_bytes : 0;
#pragma GCC unroll 8
      for (int j = 0; j < COLS * 16; j += kLine) {
        _mm_prefetch(large + ahead + j * Load<E>::kBytes, _MM_HINT_T1);
      }
    }
    __m512 x[SR];
#pragma GCC unroll 8
    for (int i = 0; i < SR; ++i) x[i] = _mm512_set1_ps(small[i * small_row + u]);
#pragma GCC unroll 8
    for (int j = 0; j < COLS; ++j) {
      const char* at = large + 16 * j * Load<E>::kBytes;
      const __m512 v = j < COLS - 1 || lanes == 16 ? Load<E>::full(at) : Load<E>::part(at, lanes);
#pragma GCC unroll 8
      for (int i = 0; i < SR; ++i) acc[i][j] = _mm512_fmadd_ps(x[i], v, acc[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < SR; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < COLS; ++j) {
      _mm512_mask_storeu_ps(result + i * d.result_row + 16 * j, j == COLS - 1 ? mask : 0xffff,
                            acc[i][j]);
    }
  }
}

// All lines from `line` on, in strips of COLS vectors, then in narrower ones.
template <Element E, int SR, int COLS, bool ASK>
TN_INLINE void stream_strips(const ThinArgs& d, int64_t row, int64_t line, int64_t k,
                             int64_t depth) {
  for (; d.lines - line >= 16 * COLS; line += 16 * COLS) {
    stream_strip<E, SR, COLS, ASK>(d, row, line, k, depth, 16);
  }
  if constexpr (COLS > 1) {
    stream_strips<E, SR, COLS / 2, ASK>(d, row, line, k, depth);
  } else if (line < d.lines) {
    stream_strip<E, SR, 1, ASK>(d, row, line, k, depth, d.lines - line);
  }
}

// Rows of `small` from `row` on, eight at most; 16 sums are enough to keep the multipliers busy.
template <Element E, bool ASK>
TN_INLINE void stream_rows(const ThinArgs& d, int64_t row, int64_t k, int64_t depth) {
  switch (d.small_rows - row) {
    case 1:
      return stream_strips<E, 1, 8, ASK>(d, row, 0, k, depth);
    case 2:
      return stream_strips<E, 2, 8, ASK>(d, row, 0, k, depth);
    case 3:
      return stream_strips<E, 3, 4, ASK>(d, row, 0, k, depth);
    case 4:
      return stream_strips<E, 4, 4, ASK>(d, row, 0, k, depth);
    case 5:
      return stream_strips<E, 5, 2, ASK>(d, row, 0, k, depth);
    case 6:
      return stream_strips<E, 6, 2, ASK>(d, row, 0, k, depth);
    case 7:
      return stream_strips<E, 7, 2, ASK>(d, row, 0, k, depth);
    default:
      return stream_strips<E, 8, 2, ASK>(d, row, 0, k, depth);
  }
}

template <Element E>
void stream_element(const ThinArgs& d) {
  constexpr int64_t kDepth = 64;  // rows of `large` that stay in the caches for all strips
  for (int64_t k = 0; k < d.k; k += kDepth) {
    const int64_t depth = std::min(kDepth, d.k - k);
    stream_rows<E, true>(d, 0, k, depth);
    for (int64_t row = 8; row < d.small_rows; row += 8) stream_rows<E, false>(d, row, k, depth);
  }
}

void stream_any(const ThinArgs& d) {
  switch (d.element) {
    case Element::kF32:
      return stream_element<Element::kF32>(d);
    case Element::kBf16:
      return stream_element<Element::kBf16>(d);
    case Element::kF16:
      return stream_element<Element::kF16>(d);
  }
}

void dot_any(const ThinArgs& d) {
  switch (d.element) {
    case Element::kF32:
      return dot<DotF32<Element::kF32>>(d);
    case Element::kBf16:
      return dot<DotF32<Element::kBf16>>(d);
    case Element::kF16:
      return dot<DotF32<Element::kF16>>(d);
  }
}

void pack_b_any(const PackArgs& b) {
  switch (b.element) {
    case Element::kF32:
      return pack_b<Element::kF32>(b);
    case Element::kBf16:
      return pack_b<Element::kBf16>(b);
    case Element::kF16:
      return pack_b<Element::kF16>(b);
  }
}

void pack_a_rows_any(const PackArgs& a) {
  switch (a.element) {
    case Element::kF32:
      return rows_to_f32<Element::kF32>(a);
    case Element::kBf16:
      return rows_to_f32<Element::kBf16>(a);
    case Element::kF16:
      return rows_to_f32<Element::kF16>(a);
  }
}

}  // namespace

const Kernels* avx512_kernels() {
  static const Kernels kernels{
      "avx512",       1,           Element::kF32,    true,     true,       true,
      &tile<UnitF32>, &pack_b_any, &pack_a_rows_any, &dot_any, &stream_any};
  return host_has_avx512() ? &kernels : nullptr;
}

}  // namespace torch_neuronx::gemm
