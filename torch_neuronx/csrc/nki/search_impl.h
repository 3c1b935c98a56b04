// max8, find_index8, match_replace8.
#pragma once

#include "nki/columns_impl.h"

namespace torch_neuronx::kernels::TN_ISA {

namespace {

constexpr int kEight = 8;

// Integers in the order of the floats, NaN above infinity; it is its own inverse but for NaN.
TN_INLINE vi ordered(vi bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
TN_INLINE vi key_of(vf x) {
  const vi nan = splat(int32_t{0x7fc00000});
  return ordered((x != x) ? nan : bits(x));
}

TN_INLINE vi larger(vi a, vi b) {
#if defined(__AVX512F__)
  return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
  return a > b ? a : b;
#endif
}

TN_INLINE vi smaller(vi a, vi b) {
#if defined(__AVX512F__)
  return (vi)_mm512_min_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (vi)_mm256_min_epi32((__m256i)a, (__m256i)b);
#else
  return a > b ? b : a;
#endif
}

// The eight largest so far of every lane, in descending order.
struct Largest {
  vi key[kEight];
  TN_INLINE void insert(vi x) {
#pragma GCC unroll 8
    for (int i = 0; i < kEight; ++i) {
      const vi above = larger(key[i], x);
      x = smaller(key[i], x);
      key[i] = above;
    }
  }
};

TN_INLINE bool any(vi mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256((__m256i)mask, (__m256i)mask) == 0;
#else
  int found = 0;
  for (int i = 0; i < W; ++i) found |= mask[i];
  return found != 0;
#endif
}

// Four columns: the largest goes in at once; the others are rarely among the eight largest.
TN_INLINE void insert4(Largest& largest, vi a, vi b, vi c, vi d) {
  const vi ab = larger(a, b), cd = larger(c, d);
  largest.insert(larger(ab, cd));
  const vi rest[3] = {smaller(ab, cd), smaller(a, b), smaller(c, d)};
  if (!any(larger(rest[0], larger(rest[1], rest[2])) > largest.key[kEight - 1])) return;
  for (const vi key : rest) largest.insert(key);
}

inline void max8_rows(nki::Rows<float> out, nki::Rows<const float> x, int64_t rows, int64_t size) {
  Largest largest;
  for (vi& key : largest.key) key = splat(INT32_MIN);
  for (int64_t first = 0; first < size; first += W) {
    const int64_t count = least(W, size - first);
    vf block[W];
    load_columns(x, rows, first, count, block);
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
      insert4(largest, key_of(block[i]), key_of(block[i + 1]), key_of(block[i + 2]),
              key_of(block[i + 3]));
    }
    for (; i < count; ++i) largest.insert(key_of(block[i]));
  }
  for (int i = 0; i < kEight; ++i) {
    float lanes[W];
    F32::store(lanes, from_bits(ordered(largest.key[i])));
    for (int64_t row = 0; row < rows; ++row) out[row][i] = lanes[row];
  }
}

// slots: out, x. params: rows, size, bytes from row to row of each slot.
bool max8(char* const* slots, const int64_t* p, nki::Fault&) {
  for (int64_t row = 0; row < p[0]; row += W) {
    max8_rows(rows_of<float>(slots[0], p[2], row), rows_of<const float>(slots[1], p[3], row),
              least(W, p[0] - row), p[1]);
  }
  return true;
}

// The first position of `value` from `begin` on, or -1.
inline int64_t position(const float* x, int64_t begin, int64_t end, float value) {
  const vf wanted = splat(value);
  for (; begin + W <= end; begin += W) {
#if defined(__AVX512F__)
    const unsigned equal = _mm512_cmp_ps_mask(F32::load(x + begin), wanted, _CMP_EQ_OQ);
#elif defined(__AVX2__)
    const unsigned equal = static_cast<unsigned>(
        _mm256_movemask_ps(_mm256_cmp_ps(F32::load(x + begin), wanted, _CMP_EQ_OQ)));
#else
    unsigned equal = 0;
    for (int i = 0; i < W; ++i) equal |= unsigned{x[begin + i] == wanted[i]} << i;
#endif
    if (equal) return begin + __builtin_ctz(equal);
  }
  for (; begin < end; ++begin) {
    if (x[begin] == value) return begin;
  }
  return -1;
}

// Where each of eight values is; equal ones go on to later positions, in the order of `order`.
inline void match8(const float* x, int64_t size, const float* values, const int (&order)[kEight],
                   int64_t (&found)[kEight]) {
  for (int n = 0; n < kEight; ++n) {
    const int slot = order[n];
    int64_t begin = 0;
    for (int m = n - 1; m >= 0; --m) {
      if (values[order[m]] == values[slot]) {
        begin = found[order[m]] < 0 ? size : found[order[m]] + 1;
        break;
      }
    }
    found[slot] = position(x, begin, size, values[slot]);
  }
}

constexpr int kForward[kEight] = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr int kBackward[kEight] = {7, 6, 5, 4, 3, 2, 1, 0};

inline void store_found(char* out, const int64_t (&found)[kEight]) {
  for (int i = 0; i < kEight; ++i) {
    reinterpret_cast<uint32_t*>(out)[i] = static_cast<uint32_t>(found[i]);
  }
}

// slots: index, x, values. params: rows, size, bytes from row to row of each slot.
bool find_index8(char* const* slots, const int64_t* p, nki::Fault&) {
  const auto x = rows_of<const float>(slots[1], p[3]);
  const auto values = rows_of<const float>(slots[2], p[4]);
  for (int64_t row = 0; row < p[0]; ++row) {
    int64_t found[kEight];
    match8(x[row], p[1], values[row], kForward, found);
    store_found(slots[0] + row * p[2], found);
  }
  return true;
}

// slots: out, index, x, values, new value. params: rows, size, bytes from row to row of each slot
// but the last. `out` may be `x`.
bool match_replace8(char* const* slots, const int64_t* p, nki::Fault&) {
  const auto out = rows_of<float>(slots[0], p[2]);
  const auto x = rows_of<const float>(slots[2], p[4]);
  const auto values = rows_of<const float>(slots[3], p[5]);
  const float replacement = *reinterpret_cast<const float*>(slots[4]);
  for (int64_t row = 0; row < p[0]; ++row) {
    int64_t found[kEight];
    match8(x[row], p[1], values[row], kBackward, found);
    if (out[row] != x[row]) __builtin_memcpy(out[row], x[row], static_cast<size_t>(p[1]) * 4);
    for (const int64_t at : found) {
      if (at >= 0) out[row][at] = replacement;
    }
    store_found(slots[1] + row * p[3], found);
  }
  return true;
}

}  // namespace

}  // namespace torch_neuronx::kernels::TN_ISA
