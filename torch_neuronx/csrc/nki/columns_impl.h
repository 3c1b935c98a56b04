// Turning rows of partitions into vectors with one partition per lane, and back.
#pragma once

#include "kernels/vec.h"
#include "nki/rows.h"

namespace torch_neuronx::kernels::TN_ISA {

// columns[i] becomes element i of all rows: a W x W block turned in registers.
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
