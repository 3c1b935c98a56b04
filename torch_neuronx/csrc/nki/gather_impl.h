// Movement by index within a partition: gather.
#pragma once

#include "nki/columns_impl.h"

namespace torch_neuronx::kernels::TN_ISA {

namespace {

constexpr int64_t kIndices = 2048;  // at a time, a multiple of every group

struct Gather {
  int64_t rows, group, count, width, bound, itemsize, index_size;
  int64_t out_bytes, data_bytes, index_bytes;  // from row to row
};

// Whether all of these fit; says in `fault` which one does not.
inline bool all_inside(const Gather& g, const uint32_t* starts, int64_t count, nki::Fault& fault) {
  const auto last = static_cast<uint32_t>(g.bound < g.width ? 0 : g.bound - g.width);
  bool bad = g.bound < g.width;
  for (int64_t i = 0; i < count; ++i) bad |= starts[i] > last;
  if (!bad) return true;
  for (int64_t i = 0; i < count; ++i) {
    if (int64_t{starts[i]} + g.width <= g.bound) continue;
    fault.index = starts[i] > g.bound ? starts[i] : g.bound;
    fault.bound = g.bound;
    return false;
  }
  return true;
}

// Indices [first, first + count) of a group of rows: number i is in row i % group, column
// i / group.
template <class T>
const uint32_t* read_starts(const Gather& g, const char* index, int64_t first, int64_t count,
                            uint32_t* starts) {
  if (g.group == 1) {
    const T* row = reinterpret_cast<const T*>(index) + first;
    if constexpr (sizeof(T) == sizeof(uint32_t)) return row;
    for (int64_t i = 0; i < count; ++i) starts[i] = row[i];
    return starts;
  }
  for (int64_t lane = 0; lane < g.group; ++lane) {
    const T* row = reinterpret_cast<const T*>(index + lane * g.index_bytes) + first / g.group;
    for (int64_t i = lane, column = 0; i < count; i += g.group) starts[i] = row[column++];
  }
  return starts;
}

// to[i * width + j] = from[starts[i] + j].
template <class T>
void gather_row(T* __restrict to, const T* __restrict from, const uint32_t* __restrict starts,
                int64_t count, int64_t width) {
  if (width == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[starts[i]];
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < width; ++j) to[i * width + j] = from[starts[i] + j];
  }
}

template <class T>
void gather_group(const Gather& g, char* out, const char* data, const uint32_t* starts,
                  int64_t first, int64_t count) {
  for (int64_t lane = 0; lane < g.group; ++lane) {
    gather_row(reinterpret_cast<T*>(out + lane * g.out_bytes) + first * g.width,
               reinterpret_cast<const T*>(data + lane * g.data_bytes), starts, count, g.width);
  }
}

// slots: out, data, index. params: rows (whole groups), rows of a group, indices of a group,
// elements for each index, elements of a row of `data`, bytes of an element (1, 2 or 4) and of an
// index (2 or 4), bytes from row to row of each slot.
bool gather(char* const* slots, const int64_t* p, nki::Fault& fault) {
  const Gather g{p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9]};
  uint32_t room[kIndices];
  for (int64_t row = 0; row < g.rows; row += g.group) {
    char* out = slots[0] + row * g.out_bytes;
    const char* data = slots[1] + row * g.data_bytes;
    const char* index = slots[2] + row * g.index_bytes;
    for (int64_t first = 0; first < g.count; first += kIndices) {
      const int64_t count = least(kIndices, g.count - first);
      const uint32_t* starts = g.index_size == 2
                                   ? read_starts<uint16_t>(g, index, first, count, room)
                                   : read_starts<uint32_t>(g, index, first, count, room);
      if (!all_inside(g, starts, count, fault)) return false;
      switch (g.itemsize) {
        case 1:
          gather_group<uint8_t>(g, out, data, starts, first, count);
          break;
        case 2:
          gather_group<uint16_t>(g, out, data, starts, first, count);
          break;
        default:
          gather_group<uint32_t>(g, out, data, starts, first, count);
      }
    }
  }
  return true;
}

}  // namespace

}  // namespace torch_neuronx::kernels::TN_ISA
