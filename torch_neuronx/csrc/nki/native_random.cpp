// Random bits: xorwow, seed.
#include <c10/util/Exception.h>

#include <cstring>

#include "nki/lanes.h"
#include "nki/native_rows.h"

namespace torch_neuronx::nki {
namespace {

constexpr int64_t kWordBytes = 6 * 4;  // of a generator

Declared declare_xorwow(Params p) {
  checked(p, {1, 1, 1, 1, 0}, "rows, size, states, itemsize, out_bytes");
  TORCH_CHECK_VALUE((p[2] == 1 || p[2] == 4) && (p[3] == 1 || p[3] == 2 || p[3] == 4),
                    "xorwow has no such generators or elements");
  Declared declared;
  declared.slots = {reach(p[0], p[4], p[1] * p[3], true),
                    reach(p[0], p[2] * kWordBytes, p[2] * kWordBytes, true)};
  declared.nanoseconds = double(p[0]) * double(p[1]);
  return declared;
}

bool run_xorwow(const NativeCall& call) { return run_rows(kernels::nki_table().xorwow, call); }

uint64_t splitmix64(uint64_t counter) {
  uint64_t z = counter * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

Declared declare_seed(Params p) {
  checked(p, {1}, "words");
  Declared declared;
  declared.slots = {{0, 4 * p[0], true}, {0, 4, false}};
  declared.nanoseconds = 3.0 * double(p[0]);
  return declared;
}

bool run_seed(const NativeCall& call) {
  uint32_t seed = 0;
  std::memcpy(&seed, call.slots[1], sizeof(seed));
  auto* words = static_cast<uint32_t*>(call.slots[0]);
  const uint64_t base = uint64_t(seed) << 32;
  for (int64_t i = 0; i < call.params[0]; ++i) {
    words[i] = static_cast<uint32_t>(splitmix64(base + static_cast<uint64_t>(i) + 1));
  }
  return true;
}

constexpr Native kNatives[] = {{"xorwow", &declare_xorwow, &run_xorwow},
                               {"seed", &declare_seed, &run_seed}};

}  // namespace

std::span<const Native> random_natives() { return kNatives; }

}  // namespace torch_neuronx::nki
