// Compiled once for each instruction set; the loops are written so that a compiler vectorises them.
#include "kernels/mersenne.h"

namespace torch_neuronx::kernels::TN_ISA {
namespace {

constexpr int kN = kMersenneWords, kM = 397;

uint32_t twisted(uint32_t upper, uint32_t lower) {
  const uint32_t mixed = (upper & 0x80000000U) | (lower & 0x7fffffffU);
  return (mixed >> 1) ^ ((lower & 1U) != 0 ? 0x9908b0dfU : 0U);
}

// In place. A vector of 16 reads nothing that an earlier lane of it writes: the nearest is 227 on.
void twist(uint32_t* state) {
#pragma GCC ivdep
  for (int i = 0; i < kN - kM; ++i) state[i] = state[i + kM] ^ twisted(state[i], state[i + 1]);
#pragma GCC ivdep
  for (int i = kN - kM; i < kN - 1; ++i)
    state[i] = state[i + kM - kN] ^ twisted(state[i], state[i + 1]);
  state[kN - 1] = state[kM - 1] ^ twisted(state[kN - 1], state[0]);
}

uint32_t tempered(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  return y ^ (y >> 18);
}

void below(uint32_t* state, uint64_t limit, bool* out, int64_t count) {
  constexpr uint64_t kMantissa = (uint64_t{1} << 53) - 1;
  twist(state);
  uint64_t numbers[kN / 2];
  for (int i = 0; i < kN / 2; ++i) {
    const uint64_t high = tempered(state[2 * i]), low = tempered(state[2 * i + 1]);
    numbers[i] = (high << 32 | low) & kMantissa;
  }
  for (int64_t i = 0; i < count; ++i) out[i] = numbers[i] < limit;
}

}  // namespace

const MersenneTable& mersenne_table() {
  static constexpr MersenneTable table{below};
  return table;
}

}  // namespace torch_neuronx::kernels::TN_ISA
