#include "kernels/mersenne.h"

#include <algorithm>
#include <cmath>

namespace torch_neuronx::kernels {

void mersenne_bernoulli(uint64_t seed, double p, bool* out, int64_t n) {
  uint32_t state[kMersenneWords];
  state[0] = static_cast<uint32_t>(seed);
  for (uint32_t i = 1; i < kMersenneWords; ++i)
    state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
  // An integer is below a real number where it is below the next integer; scaling is exact.
  const auto limit = static_cast<uint64_t>(std::ceil(std::ldexp(p, 53)));
  const auto below = mersenne_table().below;
  constexpr int64_t kNumbers = kMersenneWords / 2;
  for (int64_t i = 0; i < n; i += kNumbers) below(state, limit, out + i, std::min(kNumbers, n - i));
}

}  // namespace torch_neuronx::kernels
