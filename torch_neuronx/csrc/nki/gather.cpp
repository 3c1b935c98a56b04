// Movement by index or mask: shuffle, nonzero_with_count, sequence_bounds.
#include <algorithm>
#include <cstring>
#include <vector>

#include "nki/natives.h"

namespace torch_neuronx::nki {

namespace {

template <class T>
void nonzero_row(int32_t* out, const T* from, int64_t size, T kept, int32_t offset,
                 int32_t padding) {
  int64_t found = 0;
  for (int64_t i = 0; i < size; ++i) {
    out[found] = static_cast<int32_t>(static_cast<uint32_t>(i) + static_cast<uint32_t>(offset));
    found += (from[i] & kept) != 0;
  }
  std::fill(out + found, out + size, padding);
  out[size] = static_cast<int32_t>(found);
}

template <class T>
void bounds_row(T* start, T* end, const T* segments, int64_t size) {
  for (int64_t first = 0; first < size;) {
    int64_t next = first + 1;
    while (next < size && segments[next] == segments[next - 1]) ++next;
    const bool padding = segments[first] == 0;
    std::fill(start + first, start + next, static_cast<T>(padding ? size : first));
    std::fill(end + first, end + next, static_cast<T>(padding ? -1 : next));
    first = next;
  }
}

}  // namespace

// Row r of out becomes row (r - r % 32 + mask[r % 32]) of src, or stays where that is 255.
// slots: out, src. params: rows of out, bytes of a row, bytes from row to row of out and of src, 32
// rows of the mask. `out` may overlap `src`.
bool shuffle(char* const* slots, const int64_t* p, Fault&) {
  constexpr int64_t kQuadrant = 32, kKeep = 255;
  const int64_t* mask = p + 4;
  static thread_local std::vector<char> copy;
  copy.resize(static_cast<size_t>(kQuadrant * p[1]));
  const auto size = static_cast<size_t>(p[1]);
  for (int64_t first = 0; first < p[0]; first += kQuadrant) {
    const int64_t rows = std::min(kQuadrant, p[0] - first);
    for (int64_t row = 0; row < rows; ++row) {
      if (mask[row] == kKeep) continue;
      std::memcpy(copy.data() + row * p[1], slots[1] + (first + mask[row]) * p[3], size);
    }
    for (int64_t row = 0; row < rows; ++row) {
      if (mask[row] == kKeep) continue;
      std::memcpy(slots[0] + (first + row) * p[2], copy.data() + row * p[1], size);
    }
  }
  return true;
}

// slots: out (size + 1 elements of s32), src (u32, s32 or f32). params: rows, rows from one that is
// looked at to the next, size, bits of an element of src that make it other than zero, what is
// added to a position, padding, bytes from row to row of each slot.
bool nonzero_with_count(char* const* slots, const int64_t* p, Fault&) {
  for (int64_t row = 0; row < p[0]; row += p[1]) {
    nonzero_row(reinterpret_cast<int32_t*>(slots[0] + row * p[6]),
                reinterpret_cast<const uint32_t*>(slots[1] + row * p[7]), p[2],
                static_cast<uint32_t>(p[3]), static_cast<int32_t>(p[4]),
                static_cast<int32_t>(p[5]));
  }
  return true;
}

// slots: out, segments. params: size, whether they are float32 (else s32), bytes from the starts to
// the ends in out.
bool sequence_bounds(char* const* slots, const int64_t* p, Fault&) {
  if (p[1] != 0) {
    bounds_row(reinterpret_cast<float*>(slots[0]), reinterpret_cast<float*>(slots[0] + p[2]),
               reinterpret_cast<const float*>(slots[1]), p[0]);
  } else {
    bounds_row(reinterpret_cast<int32_t*>(slots[0]), reinterpret_cast<int32_t*>(slots[0] + p[2]),
               reinterpret_cast<const int32_t*>(slots[1]), p[0]);
  }
  return true;
}

}  // namespace torch_neuronx::nki
