// Register-tile kernels for 512-bit vectors, written once and instantiated per element type by the
// *_avx512*.cpp files. Everything is in an unnamed namespace: each of those files must keep its own
// copy, compiled for its own instruction set.
#pragma once

// GCC 12 takes the "undefined" operands inside its own intrinsics for a mistake (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "gemm/kernels.h"

namespace torch_neuronx::gemm {
namespace {

#define TN_INLINE inline __attribute__((always_inline))

TN_INLINE __mmask16 lanes16(int64_t n) {
  return n >= 16 ? __mmask16(0xffff) : __mmask16((1U << n) - 1U);
}
TN_INLINE __mmask32 lanes32(int64_t n) {
  return n >= 32 ? ~__mmask32(0) : (__mmask32(1) << n) - 1U;
}

// Round to nearest even by integer arithmetic: the conversion instruction would flush subnormals.
TN_INLINE __m256i to_bf16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i safe = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16));
}

TN_INLINE __m256i to_half(Element element, __m512 v) {
  return element == Element::kBf16
             ? to_bf16(v)
             : _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// Float32 units. Arithmetic: one fused multiply-add per element.
struct UnitF32 {
  using Vec = __m512;
  static TN_INLINE Vec load(const void* p) { return _mm512_loadu_ps(p); }
  static TN_INLINE Vec broadcast(const char* p) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(p));
  }
  static TN_INLINE __m512 madd(__m512 acc, Vec a, Vec b) { return _mm512_fmadd_ps(a, b, acc); }
};

TN_INLINE void ask(Ahead& next) {
  if (next.rows <= 0) return;
  _mm_prefetch(next.row + next.done, _MM_HINT_T1);
  next.done += 64;
  if (next.done >= next.width) {
    next.done = 0;
    next.row += next.row_bytes;
    --next.rows;
  }
}

// One MR x (16 NV) tile in registers. `mask` covers the columns of the last vector.
template <class Unit, int MR, int NV>
TN_INLINE void micro_tile(const TileArgs& t, __mmask16 mask) {
  __m512 acc[MR][NV];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const __mmask16 lanes = j == NV - 1 ? mask : __mmask16(0xffff);
      acc[i][j] = t.init == nullptr
                      ? _mm512_setzero_ps()
                      : _mm512_maskz_loadu_ps(lanes, t.init + i * t.init_row + 16 * j);
    }
  }
  const char* a = t.a;
  const char* b = t.b;
  constexpr int64_t kAskEvery = 4;
  for (int64_t left = t.k_units; left > 0; left -= kAskEvery) {
    if (t.ahead != nullptr) ask(*t.ahead);
    for (int64_t p = left < kAskEvery ? left : kAskEvery; p > 0; --p) {
      typename Unit::Vec bv[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) bv[j] = Unit::load(b + 64 * j);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const typename Unit::Vec av = Unit::broadcast(a + i * t.a_row_bytes);
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) acc[i][j] = Unit::madd(acc[i][j], av, bv[j]);
      }
      a += 4;
      b += kPanelCols * 4;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      const __mmask16 lanes = j == NV - 1 ? mask : __mmask16(0xffff);
      if (t.out_element == Element::kF32) {
        _mm512_mask_storeu_ps(static_cast<float*>(t.c) + i * t.c_row + 16 * j, lanes, acc[i][j]);
      } else {
        _mm256_mask_storeu_epi16(static_cast<uint16_t*>(t.c) + i * t.c_row + 16 * j, lanes,
                                 to_half(t.out_element, acc[i][j]));
      }
    }
  }
}

template <class Unit, int NV>
void tile_columns(int64_t m, __mmask16 mask, TileArgs t) {
  for (; m >= kStripRows; m -= kStripRows) {
    if (t.init != nullptr && m >= 2 * kStripRows) {  // the next strip's, while this one is computed
      for (int64_t i = kStripRows; i < 2 * kStripRows; ++i) {
        for (int j = 0; j < NV; ++j) {
          _mm_prefetch(reinterpret_cast<const char*>(t.init + i * t.init_row + 16 * j),
                       _MM_HINT_T0);
        }
      }
    }
    micro_tile<Unit, kStripRows, NV>(t, mask);
    t.a += kStripRows * t.a_row_bytes;
    t.c = static_cast<char*>(t.c) + kStripRows * t.c_row * element_size(t.out_element);
    if (t.init != nullptr) t.init += kStripRows * t.init_row;
  }
  switch (m) {
    case 1:
      return micro_tile<Unit, 1, NV>(t, mask);
    case 2:
      return micro_tile<Unit, 2, NV>(t, mask);
    case 3:
      return micro_tile<Unit, 3, NV>(t, mask);
    case 4:
      return micro_tile<Unit, 4, NV>(t, mask);
    case 5:
      return micro_tile<Unit, 5, NV>(t, mask);
    default:
      return;
  }
}

template <class Unit>
void tile(int64_t m, int64_t n, const TileArgs& t) {
  const __mmask16 mask = lanes16(n - (n - 1) / 16 * 16);
  switch ((n + 15) / 16) {
    case 1:
      return tile_columns<Unit, 1>(m, mask, t);
    case 2:
      return tile_columns<Unit, 2>(m, mask, t);
    case 3:
      return tile_columns<Unit, 3>(m, mask, t);
    default:
      return tile_columns<Unit, 4>(m, mask, t);
  }
}

// 16 x 16 transposition of 32-bit lanes.
TN_INLINE void transpose16(__m512i r[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
  }
}

// Transposes and stores the first `rows` rows (of the result) with the lanes of `mask`.
TN_INLINE void store_transposed(__m512i r[16], uint32_t* dst, int64_t dst_row, int64_t rows,
                                __mmask16 mask) {
  transpose16(r);
  if (rows >= 16 && mask == 0xffff) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(dst + i * dst_row, r[i]);
  } else {
    for (int i = 0; i < (rows < 16 ? rows : 16); ++i) {
      _mm512_mask_storeu_epi32(dst + i * dst_row, mask, r[i]);
    }
  }
}

// The sums of the lanes of four vectors.
TN_INLINE __m128 sum4(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d lo = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d hi = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 quads = _mm512_add_ps(_mm512_castpd_ps(lo), _mm512_castpd_ps(hi));
  const __m256 half =
      _mm256_add_ps(_mm512_castps512_ps256(quads), _mm512_extractf32x8_ps(quads, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Reads kLines rows of `large` once against SR rows of `small`. `Dot` says how a step of K of each
// operand becomes a vector and how two of them are multiplied and added.
template <class Dot, int SR, int LINES>
TN_INLINE void dot_block(const ThinArgs& d, int64_t line, int64_t row) {
  __m512 acc[SR][LINES];
#pragma GCC unroll 8
  for (int i = 0; i < SR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < LINES; ++j) acc[i][j] = _mm512_setzero_ps();
  }
  const char* large = d.large + line * d.large_l_bytes;
  const char* small = d.small + row * d.small_row_bytes;
  const int64_t ahead = d.far && d.lines - line >= 2 * LINES ? LINES * d.large_l_bytes : 0;
  int64_t k = d.k;
  for (; k >= Dot::kStep; k -= Dot::kStep) {
    typename Dot::Vec lv[LINES];
#pragma GCC unroll 4
    for (int j = 0; j < LINES; ++j) {
      lv[j] = Dot::load_large(large + j * d.large_l_bytes);
      if (ahead != 0) _mm_prefetch(large + j * d.large_l_bytes + ahead, _MM_HINT_T1);
    }
#pragma GCC unroll 8
    for (int i = 0; i < SR; ++i) {
      const typename Dot::Vec sv = Dot::load_small(small + i * d.small_row_bytes);
#pragma GCC unroll 4
      for (int j = 0; j < LINES; ++j) acc[i][j] = Dot::madd(acc[i][j], sv, lv[j]);
    }
    large += Dot::kStep * Dot::kLargeBytes;
    small += Dot::kStep * Dot::kSmallBytes;
  }
  if (k > 0) {
    typename Dot::Vec lv[LINES];
#pragma GCC unroll 4
    for (int j = 0; j < LINES; ++j) lv[j] = Dot::load_large(large + j * d.large_l_bytes, k);
#pragma GCC unroll 8
    for (int i = 0; i < SR; ++i) {
      const typename Dot::Vec sv = Dot::load_small(small + i * d.small_row_bytes, k);
#pragma GCC unroll 4
      for (int j = 0; j < LINES; ++j) acc[i][j] = Dot::madd(acc[i][j], sv, lv[j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < SR; ++i) {
    float* result = d.result + (row + i) * d.result_row + line;
    if constexpr (LINES == 4) {
      _mm_storeu_ps(result, sum4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]));
    } else {
      const __m512 zero = _mm512_setzero_ps();
      _mm_store_ss(result, sum4(acc[i][0], zero, zero, zero));
    }
  }
}

template <class Dot, int LINES>
TN_INLINE void dot_lines(const ThinArgs& d, int64_t line) {
  int64_t row = 0;
  for (; d.small_rows - row >= 4; row += 4) dot_block<Dot, 4, LINES>(d, line, row);
  switch (d.small_rows - row) {
    case 3:
      return dot_block<Dot, 3, LINES>(d, line, row);
    case 2:
      return dot_block<Dot, 2, LINES>(d, line, row);
    case 1:
      return dot_block<Dot, 1, LINES>(d, line, row);
    default:
      return;
  }
}

template <class Dot>
void dot(const ThinArgs& d) {
  int64_t line = 0;
  for (; d.lines - line >= 4; line += 4) dot_lines<Dot, 4>(d, line);
  for (; line < d.lines; ++line) dot_lines<Dot, 1>(d, line);
}

}  // namespace
}  // namespace torch_neuronx::gemm
