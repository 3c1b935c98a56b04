// Shared by the two sources behind philox.h (philox.cpp and philox_discrete.cpp).
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>

#include "kernels/parallel.h"
#include "kernels/philox.h"

namespace torch_neuronx::kernels::detail {

// Groups (of 64 words) handled at a time, in a buffer that fits the first-level cache, and groups
// per task.
constexpr int64_t kStripGroups = 64;
constexpr int64_t kTaskGroups = 512;

inline void check_offset(PhiloxState state) {
  TORCH_CHECK(state.offset % 4 == 0, "Philox offset must be a multiple of 4, got ", state.offset);
}

inline int64_t groups_for(int64_t n, int64_t per_group) { return (n + per_group - 1) / per_group; }

/// Calls body(first element, element count, block of the first group, groups) over strips of at
/// most kStripGroups groups of `per_group` elements, in parallel.
template <class Body>
void each_strip(PhiloxState state, int64_t n, int64_t per_group, const Body& body) {
  check_offset(state);
  const int64_t groups = groups_for(n, per_group);
  parallel_chunks(groups, kTaskGroups, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g += kStripGroups) {
      const int64_t count = std::min(kStripGroups, end - g);
      const int64_t first = g * per_group;
      body(first, std::min(n - first, count * per_group), static_cast<uint64_t>(g) * 16, count);
    }
  });
}

/// Number i (in its strip) of the 64-bit elements in the words of a strip; see philox.h.
inline uint64_t word64(const uint32_t* words, int64_t i) {
  const uint32_t* w = words + (i / 32) * 64 + ((i / 16) % 2) * 32 + i % 16;
  return uint64_t{w[16]} << 32 | w[0];
}

/// Calls body(element, random 64 bits) for each element, in parallel.
template <class Body>
void each_word64(PhiloxState state, int64_t n, const Body& body) {
  const auto words = philox_table().words;
  each_strip(state, n, 32, [&](int64_t first, int64_t count, uint64_t block, int64_t groups) {
    alignas(64) uint32_t buffer[kStripGroups * 64];
    words(state, block, groups, buffer);
    for (int64_t i = 0; i < count; ++i) {
      body(first + i, word64(buffer, i));
    }
  });
}

/// Where PyTorch's kernels have every real dtype but this one.
inline void refuse_bool(c10::ScalarType dtype, const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(dtype != c10::ScalarType::Bool, '"', what,
                              "\" not implemented for 'Bool'");
}

/// Calls body.template operator()<T>() with the C++ type of a real dtype or Bool.
template <class Body>
void with_type(c10::ScalarType dtype, const char* what, const Body& body) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return body.template operator()<float>();
    case c10::ScalarType::Double:
      return body.template operator()<double>();
    case c10::ScalarType::BFloat16:
      return body.template operator()<c10::BFloat16>();
    case c10::ScalarType::Half:
      return body.template operator()<c10::Half>();
    case c10::ScalarType::Bool:
      return body.template operator()<bool>();
    case c10::ScalarType::Byte:
      return body.template operator()<uint8_t>();
    case c10::ScalarType::Char:
      return body.template operator()<int8_t>();
    case c10::ScalarType::Short:
      return body.template operator()<int16_t>();
    case c10::ScalarType::Int:
      return body.template operator()<int32_t>();
    case c10::ScalarType::Long:
      return body.template operator()<int64_t>();
    case c10::ScalarType::UInt16:
      return body.template operator()<uint16_t>();
    case c10::ScalarType::UInt32:
      return body.template operator()<uint32_t>();
    case c10::ScalarType::UInt64:
      return body.template operator()<uint64_t>();
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, '"', what, "\" not implemented for '",
                                  c10::toString(dtype), "'");
  }
}

}  // namespace torch_neuronx::kernels::detail
