// Turning rows of partitions into vectors with one partition per lane, and back.
#pragma once

#include "kernels/vec.h"
#include "nki/rows.h"

namespace torch_neuronx::kernels::TN_ISA {

// v[i] becomes element i of all of them: a W x W block turned in registers.
#if defined(__AVX512F__)
TN_INLINE void turn(vf (&v)[W]) {
  vf t[W];
  // Within quarters of 4 elements, then quarters as a whole: shuffles of any two registers by an
  // index would take twice as long.
#pragma GCC unroll 8
  for (int i = 0; i < W; i += 2) {
    t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < W; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const __m512d a = (__m512d)t[i + j], b = (__m512d)t[i + j + 2];
      v[i + 2 * j] = (vf)_mm512_unpacklo_pd(a, b);
      v[i + 2 * j + 1] = (vf)_mm512_unpackhi_pd(a, b);
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < W; i += 8) {
#pragma GCC unroll 4
    for (int j = i; j < i + 4; ++j) {
      t[j] = _mm512_shuffle_f32x4(v[j], v[j + 4], 0x88);
      t[j + 4] = _mm512_shuffle_f32x4(v[j], v[j + 4], 0xdd);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    v[j] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88);
    v[j + 8] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd);
  }
}
#else
TN_INLINE void turn(vf (&v)[W]) {
#pragma GCC unroll 4
  for (int step = 1; step < W; step *= 2) {
    vi low, high;
    for (int i = 0; i < W; ++i) {
      low[i] = (i & step) ? W + i - step : i;
      high[i] = (i & step) ? W + i : i + step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) {
      if (i & step) continue;
      const vf a = v[i], b = v[i + step];
      v[i] = __builtin_shuffle(a, b, low);
      v[i + step] = __builtin_shuffle(a, b, high);
    }
  }
}
#endif

// Elements [first, first + count) of `rows` rows, count and rows at most W; the rest is 0.
inline void load_columns(nki::Rows<const float> from, int64_t rows, int64_t first, int64_t count,
                         vf (&v)[W]) {
  if (rows == W && count == W) {
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) v[i] = F32::load(from[i] + first);
  } else {
    for (int i = 0; i < W; ++i) {
      v[i] = i < rows ? load_part<F32>(from[i] + first, count) : vf{};
    }
  }
  turn(v);
}

inline void store_columns(nki::Rows<float> to, int64_t rows, int64_t first, int64_t count,
                          vf (&v)[W]) {
  turn(v);
  if (rows == W && count == W) {
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) F32::store(to[i] + first, v[i]);
  } else {
    for (int i = 0; i < rows; ++i) store_part<F32>(to[i] + first, count, v[i]);
  }
}

// One element of each row.
inline vf load_lanes(nki::Rows<const float> from, int64_t rows) {
  float lanes[W] = {};
  for (int i = 0; i < rows; ++i) lanes[i] = *from[i];
  return F32::load(lanes);
}

inline void store_lanes(nki::Rows<float> to, int64_t rows, vf value) {
  float lanes[W];
  F32::store(lanes, value);
  for (int i = 0; i < rows; ++i) *to[i] = lanes[i];
}

template <class T>
TN_INLINE nki::Rows<T> rows_of(char* slot, int64_t row_bytes, int64_t first = 0) {
  return {slot + first * row_bytes, row_bytes};
}

TN_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace torch_neuronx::kernels::TN_ISA
