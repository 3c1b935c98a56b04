// How messages write a tensor: "Float [4, 3]".
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "distributed/segment.h"

namespace torch_neuronx::distributed {

// The first `known` of `dims` sizes; dots stand for the others.
inline std::string tensor_text(c10::ScalarType dtype, const int64_t* sizes, int known, int dims) {
  std::string text = std::string(c10::toString(dtype)) + " [";
  for (int i = 0; i < known; ++i) text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text + (dims > known ? ", ...]" : "]");
}

inline std::string tensor_text(c10::ScalarType dtype, const std::vector<int64_t>& sizes) {
  const auto dims = static_cast<int>(sizes.size());
  return tensor_text(dtype, sizes.data(), dims, dims);
}

// Of what a rank has posted, in which only so many sizes fit.
inline std::string tensor_text(uint8_t dtype, const int64_t (&sizes)[kMaxDims], int dims) {
  return tensor_text(static_cast<c10::ScalarType>(dtype), sizes, std::min(dims, kMaxDims), dims);
}

}  // namespace torch_neuronx::distributed
