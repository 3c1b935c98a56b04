// The numbers of PyTorch's CPU generator, the Mersenne Twister MT19937 (Matsumoto and Nishimura,
// 1998), 624 words at a time: PyTorch's own code makes one after the other.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace torch_neuronx::kernels {

constexpr int kMersenneWords = 624;

/// out[i] = whether number i of a generator with this seed is below p: on [0, 1), 53 bits, of two
/// words each. It is what at::bernoulli_ gives for a new CPU generator, except on processors where
/// PyTorch lets MKL draw. p is in [0, 1].
void mersenne_bernoulli(uint64_t seed, double p, bool* out, int64_t n);

struct MersenneTable {
  /// Makes the next words of a state and compares them, two by two, with `limit`: `count` of them.
  void (*below)(uint32_t* state, uint64_t limit, bool* out, int64_t count);
};

TN_DECLARE_TABLES(MersenneTable, mersenne_table)

}  // namespace torch_neuronx::kernels
