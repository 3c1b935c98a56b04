// topk, and the seeding of the random number generators.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "nki/lanes.h"
#include "nki/natives.h"

namespace torch_neuronx::nki {

namespace {

constexpr int64_t kGroup = 16;

// Sorts by 16 bits of the keys, upwards and stably.
void sort_by_key(std::vector<uint32_t>& items, std::vector<uint32_t>& spare) {
  spare.resize(items.size());
  for (int shift = 16; shift < 32; shift += 8) {
    std::array<uint32_t, 257> start{};
    for (const uint32_t item : items) ++start[((item >> shift) & 0xff) + 1];
    for (size_t i = 1; i < start.size(); ++i) start[i] += start[i - 1];
    for (const uint32_t item : items) spare[start[(item >> shift) & 0xff]++] = item;
    items.swap(spare);
  }
}

uint64_t splitmix64(uint64_t counter) {
  uint64_t z = counter * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

// slots: values (bf16), indices (u32), src (bf16). params: rows (whole groups of 16), k, n, bytes
// from row to row of each slot. Element e of a group is in row e % 16, column e / 16.
bool topk(char* const* slots, const int64_t* p, Fault&) {
  const auto k = static_cast<size_t>(p[1]);
  static thread_local std::vector<uint16_t> keys;
  static thread_local std::vector<uint32_t> items, spare;
  const Rows<uint16_t> values{slots[0], p[3]};
  const Rows<uint32_t> indices{slots[1], p[4]};
  const Rows<const uint16_t> src{slots[2], p[5]};
  for (int64_t first = 0; first < p[0]; first += kGroup) {
    keys.resize(static_cast<size_t>(p[2]));
    for (int64_t lane = 0; lane < kGroup; ++lane) {
      const uint16_t* row = src[first + lane];
      for (int64_t e = lane; e < p[2]; e += kGroup) keys[static_cast<size_t>(e)] = *row++;
    }
    items.resize(static_cast<size_t>(p[2] + 1));
    kernels::nki_table().select_largest(keys.data(), p[2], p[1], items.data());
    items.resize(k);
    // The order in which a stable sort leaves equal ones: later ones first.
    std::reverse(items.begin(), items.end());
    sort_by_key(items, spare);
    uint16_t* value = values[first];
    uint32_t* index = indices[first];
    for (size_t i = 0; i < k; ++i) {
      index[i] = items[i] & 0xffffu;
      value[i] = src[first + index[i] % kGroup][index[i] / kGroup];
    }
    for (int64_t lane = 1; lane < kGroup; ++lane) {
      std::memcpy(values[first + lane], value, k * sizeof(uint16_t));
      std::memcpy(indices[first + lane], index, k * sizeof(uint32_t));
    }
  }
  return true;
}

// Fills the states of generators as nki/isa/xorwow.py does. slots: state, seed (32 bits). params:
// words of the state.
bool seed(char* const* slots, const int64_t* p, Fault&) {
  auto* words = reinterpret_cast<uint32_t*>(slots[0]);
  uint32_t number = 0;
  std::memcpy(&number, slots[1], sizeof(number));
  const uint64_t base = static_cast<uint64_t>(number) << 32;
  for (int64_t i = 0; i < p[0]; ++i) {
    words[i] = static_cast<uint32_t>(splitmix64(base + static_cast<uint64_t>(i) + 1));
  }
  return true;
}

}  // namespace torch_neuronx::nki
