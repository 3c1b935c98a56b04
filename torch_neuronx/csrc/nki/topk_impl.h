// The selecting half of topk.
#pragma once

#include "nki/columns_impl.h"

namespace torch_neuronx::kernels::TN_ISA {

namespace {

typedef uint16_t vs __attribute__((vector_size(W * 4)));
typedef int16_t vsi __attribute__((vector_size(W * 4)));
typedef uint16_t vs_any __attribute__((vector_size(W * 4), aligned(2), may_alias));
constexpr int kShorts = 2 * W;

// bfloat16 as integers in the same order: -0 is 0, NaN is below everything.
TN_INLINE vs key_of(vs bits) {
  const vs magnitude = bits & uint16_t{0x7fff};
  const vs negative = (vs)((vsi)bits >> 15);
  const vs key = ((magnitude ^ negative) - negative) + uint16_t{0x8000};
  return key & (vs)(magnitude <= uint16_t{0x7f80});
}

// How many keys are at least `low`. There are fewer than 2^16.
inline int64_t count_from(const uint16_t* keys, int64_t n, uint16_t low) {
  vs total = {};
  int64_t i = 0;
  for (; i + kShorts <= n; i += kShorts) total -= (vs)(*(const vs_any*)(keys + i) >= low);
  int64_t count = 0;
  for (int lane = 0; lane < kShorts; ++lane) count += total[lane];
  for (; i < n; ++i) count += keys[i] >= low;
  return count;
}

// Turns bfloat16 values into keys, and writes key * 2^16 + position of the k with the largest keys,
// in the order of their positions; of equal keys the first are chosen. `chosen` has room for n.
void select_largest(uint16_t* keys, int64_t n, int64_t k, uint32_t* chosen) {
  int64_t i = 0;
  for (; i + kShorts <= n; i += kShorts) {
    *(vs_any*)(keys + i) = key_of(*(const vs_any*)(keys + i));
  }
  vs tail = {};
  for (int64_t j = i; j < n; ++j) tail[j - i] = keys[j];
  tail = key_of(tail);
  for (int64_t j = i; j < n; ++j) keys[j] = tail[j - i];
  // The k-th largest key: the greatest that at least k reach.
  uint32_t least_key = 0;
  for (uint32_t bit = 1u << 15; bit != 0; bit >>= 1) {
    if (count_from(keys, n, static_cast<uint16_t>(least_key | bit)) >= k) least_key |= bit;
  }
  const int64_t above =
      least_key == 0xffff ? 0 : count_from(keys, n, static_cast<uint16_t>(least_key + 1));
  int64_t equal = k - above;
  for (int64_t e = 0; e < n; ++e) {
    const uint32_t key = keys[e];
    const bool last = (key == least_key) & (equal > 0);
    equal -= last;
    *chosen = key << 16 | static_cast<uint32_t>(e);
    chosen += (key > least_key) | last;
  }
}

}  // namespace

}  // namespace torch_neuronx::kernels::TN_ISA
