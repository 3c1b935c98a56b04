// Movement by index or mask: gather, shuffle, sequence_bounds.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "nki/lanes.h"
#include "nki/native_rows.h"

namespace torch_neuronx::nki {
namespace {

Declared declare_gather(Params p) {
  checked(p, {1, 1, 1, 1, 1, 1, 2, 0, 0, 0},
          "rows, group, count, width, bound, itemsize, index_size, out_bytes, data_bytes, "
          "index_bytes");
  const int64_t rows = p[0], group = p[1], count = p[2], width = p[3], bound = p[4];
  const int64_t itemsize = p[5], index_size = p[6];
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  TORCH_CHECK_VALUE((itemsize == 1 || itemsize == 2 || itemsize == 4) &&
                        (index_size == 2 || index_size == 4) && rows % group == 0 &&
                        bound <= kMost && count <= kMost && width <= kMost,
                    "gather takes whole groups of elements of 1, 2 or 4 bytes");
  int64_t used = 0;
  TORCH_CHECK_VALUE(!__builtin_mul_overflow(count * itemsize, width, &used),
                    "rows beyond any memory");
  Declared declared;
  declared.slots = {reach(rows, p[7], used, true), reach(rows, p[8], bound * itemsize),
                    reach(rows, p[9], (count + group - 1) / group * index_size)};
  declared.nanoseconds = double(rows) * double(count) * double(width);
  return declared;
}

bool run_gather(const NativeCall& call) { return run_rows(kernels::nki_table().gather, call); }

constexpr int64_t kQuadrant = 32, kKeep = 255;

Declared declare_shuffle(Params p) {
  checked(p, {1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
              0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
          "rows, size, out_bytes, src_bytes, 32 of the mask");
  int64_t last = -1;
  for (int64_t lane = 0; lane < kQuadrant; ++lane) {
    const int64_t from = p[4 + lane];
    TORCH_CHECK_VALUE(from < kQuadrant || from == kKeep, "shuffle has no row ", from);
    if (from == kKeep || lane >= p[0]) continue;
    last = std::max(last, (p[0] - 1 - lane) / kQuadrant * kQuadrant + from);
  }
  TORCH_CHECK_VALUE(p[1] < int64_t(1) << 32, "shuffle takes rows below 4 GiB");
  Declared declared;
  declared.slots = {reach(p[0], p[2], p[1], true), reach(last + 1, p[3], p[1])};
  declared.scratch_bytes = kQuadrant * p[1];
  declared.nanoseconds = 0.1 * double(p[0]) * double(p[1]);
  return declared;
}

bool run_shuffle(const NativeCall& call) {
  const int64_t rows = call.params[0], size = call.params[1];
  const int64_t* mask = call.params + 4;
  const Rows<char> out{slots_of(call)[0], call.params[2]};
  const Rows<const char> src{slots_of(call)[1], call.params[3]};
  auto* copy = static_cast<char*>(call.scratch);
  const auto bytes = static_cast<size_t>(size);
  for (int64_t first = 0; first < rows; first += kQuadrant) {
    const int64_t lanes = std::min(kQuadrant, rows - first);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      if (mask[lane] != kKeep) std::memcpy(copy + lane * size, src[first + mask[lane]], bytes);
    }
    for (int64_t lane = 0; lane < lanes; ++lane) {
      if (mask[lane] != kKeep) std::memcpy(out[first + lane], copy + lane * size, bytes);
    }
  }
  return true;
}

Declared declare_bounds(Params p) {
  checked(p, {1, 0, 4}, "size, is_float, end_bytes");
  TORCH_CHECK_VALUE(p[1] < 2, "is_float is 0 or 1");
  Declared declared;
  declared.slots = {reach(2, p[2], 4 * p[0], true), {0, 4 * p[0], false}};
  declared.nanoseconds = 2.0 * double(p[0]);
  return declared;
}

template <class T>
void bounds(T* start, T* end, const T* segments, int64_t size) {
  for (int64_t first = 0; first < size;) {
    int64_t next = first + 1;
    while (next < size && segments[next] == segments[next - 1]) ++next;
    const bool padding = segments[first] == 0;
    std::fill(start + first, start + next, static_cast<T>(padding ? size : first));
    std::fill(end + first, end + next, static_cast<T>(padding ? -1 : next));
    first = next;
  }
}

template <class T>
void bounds_of(const NativeCall& call) {
  char* const* slots = slots_of(call);
  bounds(reinterpret_cast<T*>(slots[0]), reinterpret_cast<T*>(slots[0] + call.params[2]),
         reinterpret_cast<const T*>(slots[1]), call.params[0]);
}

bool run_bounds(const NativeCall& call) {
  call.params[1] != 0 ? bounds_of<float>(call) : bounds_of<int32_t>(call);
  return true;
}

constexpr Native kNatives[] = {{"gather", &declare_gather, &run_gather},
                               {"shuffle", &declare_shuffle, &run_shuffle},
                               {"sequence_bounds", &declare_bounds, &run_bounds}};

}  // namespace

std::span<const Native> gather_natives() { return kNatives; }

}  // namespace torch_neuronx::nki
