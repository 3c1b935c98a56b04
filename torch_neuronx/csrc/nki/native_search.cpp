// Searches: max8, find_index8, match_replace8, topk, nonzero_with_count.
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "nki/lanes.h"
#include "nki/native_rows.h"

namespace torch_neuronx::nki {
namespace {

constexpr int64_t kEight = 8, kGroup = 16;

Declared declare_max8(Params p) {
  checked(p, {1, kEight, 0, 0}, "rows, size, out_bytes, x_bytes");
  Declared declared;
  declared.slots = {reach(p[0], p[2], 4 * kEight, true), reach(p[0], p[3], 4 * p[1])};
  declared.nanoseconds = 0.6 * double(p[0]) * double(p[1]);
  return declared;
}

bool run_max8(const NativeCall& call) { return run_rows(kernels::nki_table().max8, call); }

Declared declare_find_index8(Params p) {
  checked(p, {1, 1, 0, 0, 0}, "rows, size, index_bytes, x_bytes, values_bytes");
  Declared declared;
  declared.slots = {reach(p[0], p[2], 4 * kEight, true), reach(p[0], p[3], 4 * p[1]),
                    reach(p[0], p[4], 4 * kEight)};
  declared.nanoseconds = 0.3 * double(p[0]) * double(p[1]);
  return declared;
}

bool run_find_index8(const NativeCall& call) {
  return run_rows(kernels::nki_table().find_index8, call);
}

Declared declare_match_replace8(Params p) {
  checked(p, {1, 1, 0, 0, 0, 0}, "rows, size, out_bytes, index_bytes, x_bytes, values_bytes");
  Declared declared;
  declared.slots = {reach(p[0], p[2], 4 * p[1], true),
                    reach(p[0], p[3], 4 * kEight, true),
                    reach(p[0], p[4], 4 * p[1]),
                    reach(p[0], p[5], 4 * kEight),
                    {0, 4, false}};
  declared.nanoseconds = 0.4 * double(p[0]) * double(p[1]);
  return declared;
}

bool run_match_replace8(const NativeCall& call) {
  return run_rows(kernels::nki_table().match_replace8, call);
}

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// The scratch of topk: 16-bit keys, and twice as many items of 32 bits and one.
int64_t items_bytes(int64_t n) { return padded(4 * (n + 1)); }

Declared declare_topk(Params p) {
  checked(p, {kGroup, 1, 1, 0, 0, 0}, "rows, k, n, values_bytes, indices_bytes, src_bytes");
  TORCH_CHECK_VALUE(p[0] % kGroup == 0 && p[1] <= p[2] && p[2] < 1 << 16, "topk of ", p[1],
                    " out of ", p[2], " in ", p[0], " rows");
  Declared declared;
  declared.slots = {reach(p[0], p[3], 2 * p[1], true), reach(p[0], p[4], 4 * p[1], true),
                    reach(p[0], p[5], (p[2] + kGroup - 1) / kGroup * 2)};
  declared.scratch_bytes = padded(2 * p[2]) + 2 * items_bytes(p[2]);
  declared.nanoseconds = double(p[0]) / kGroup * (2.0 * double(p[2]) + 10.0 * double(p[1]));
  return declared;
}

// Sorts by the upper 16 bits, upwards and stably; the result is in `items` again.
void sort_by_key(uint32_t* items, uint32_t* spare, int64_t count) {
  for (int shift = 16; shift < 32; shift += 8) {
    std::array<uint32_t, 257> start{};
    for (int64_t i = 0; i < count; ++i) ++start[((items[i] >> shift) & 0xff) + 1];
    for (size_t i = 1; i < start.size(); ++i) start[i] += start[i - 1];
    for (int64_t i = 0; i < count; ++i) spare[start[(items[i] >> shift) & 0xff]++] = items[i];
    std::swap(items, spare);
  }
}

bool run_topk(const NativeCall& call) {
  const int64_t* p = call.params;
  const int64_t rows = p[0], k = p[1], n = p[2];
  char* const* slots = slots_of(call);
  const Rows<uint16_t> values{slots[0], p[3]};
  const Rows<uint32_t> indices{slots[1], p[4]};
  const Rows<const uint16_t> src{slots[2], p[5]};
  auto* scratch = static_cast<char*>(call.scratch);
  auto* keys = reinterpret_cast<uint16_t*>(scratch);
  auto* items = reinterpret_cast<uint32_t*>(scratch + padded(2 * n));
  auto* spare = reinterpret_cast<uint32_t*>(scratch + padded(2 * n) + items_bytes(n));
  for (int64_t first = 0; first < rows; first += kGroup) {
    for (int64_t lane = 0; lane < kGroup; ++lane) {
      const uint16_t* row = src[first + lane];
      for (int64_t e = lane; e < n; e += kGroup) keys[e] = *row++;
    }
    kernels::nki_table().select_largest(keys, n, k, items);
    // The order in which a stable sort leaves equal ones: later ones first.
    std::reverse(items, items + k);
    sort_by_key(items, spare, k);
    // Indices first: the values may take the place of what they are read from.
    uint32_t* index = indices[first];
    for (int64_t i = 0; i < k; ++i) index[i] = items[i] & 0xffffu;
    auto* value = reinterpret_cast<uint16_t*>(spare);
    for (int64_t i = 0; i < k; ++i) value[i] = src[first + index[i] % kGroup][index[i] / kGroup];
    for (int64_t lane = 0; lane < kGroup; ++lane) {
      std::memcpy(values[first + lane], value, static_cast<size_t>(2 * k));
      if (lane > 0) std::memcpy(indices[first + lane], index, static_cast<size_t>(4 * k));
    }
  }
  return true;
}

// At most 2^63 - 1.
int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  const bool beyond = __builtin_mul_overflow(a, b, &result);
  return beyond ? std::numeric_limits<int64_t>::max() : result;
}

Declared declare_nonzero(Params p) {
  constexpr int64_t kLowest = std::numeric_limits<int32_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<uint32_t>::max();
  checked(p, {1, 1, 1, 0, kLowest, kLowest, 0, 0},
          "rows, step, size, mask, offset, padding, out_bytes, src_bytes");
  TORCH_CHECK_VALUE(p[3] <= kHighest && p[4] <= kHighest && p[5] <= kHighest,
                    "nonzero_with_count takes numbers of 32 bits");
  const int64_t seen = (p[0] - 1) / p[1] + 1;
  Declared declared;
  declared.slots = {reach(seen, product(p[1], p[6]), 4 * (p[2] + 1), true),
                    reach(seen, product(p[1], p[7]), 4 * p[2])};
  declared.nanoseconds = double(seen) * double(p[2]);
  return declared;
}

bool run_nonzero(const NativeCall& call) {
  const int64_t* p = call.params;
  const auto mask = static_cast<uint32_t>(p[3]), offset = static_cast<uint32_t>(p[4]);
  for (int64_t row = 0; row < p[0]; row += p[1]) {
    auto* out = reinterpret_cast<int32_t*>(slots_of(call)[0] + row * p[6]);
    const auto* src = reinterpret_cast<const uint32_t*>(slots_of(call)[1] + row * p[7]);
    int64_t found = 0;
    for (int64_t i = 0; i < p[2]; ++i) {
      out[found] = static_cast<int32_t>(static_cast<uint32_t>(i) + offset);
      found += (src[i] & mask) != 0;
    }
    std::fill(out + found, out + p[2], static_cast<int32_t>(p[5]));
    out[p[2]] = static_cast<int32_t>(found);
  }
  return true;
}

constexpr Native kNatives[] = {
    {"max8", &declare_max8, &run_max8},
    {"find_index8", &declare_find_index8, &run_find_index8},
    {"match_replace8", &declare_match_replace8, &run_match_replace8},
    {"topk", &declare_topk, &run_topk},
    {"nonzero_with_count", &declare_nonzero, &run_nonzero},
};

}  // namespace

std::span<const Native> search_natives() { return kNatives; }

}  // namespace torch_neuronx::nki
