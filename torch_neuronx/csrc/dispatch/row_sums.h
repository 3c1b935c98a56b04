// Which sums and means of tensors are sums of rows (kernels/norm.h).
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

#include "kernels/norm.h"
#include "kernels/pointwise.h"

namespace torch_neuronx {

struct RowSums {
  int64_t rows, cols;
};

// Of a contiguous tensor over the dimensions `dims`: these must be its last ones, each once.
inline std::optional<RowSums> row_sums(at::ScalarType dtype, c10::IntArrayRef sizes,
                                       c10::IntArrayRef dims) {
  const auto rank = static_cast<int64_t>(sizes.size());
  const auto count = static_cast<int64_t>(dims.size());
  if (!kernels::pointwise_supports(dtype) || count == 0 || count > rank || rank > 63) return {};
  uint64_t seen = 0;
  for (int64_t dim : dims) {
    if (dim < 0) dim += rank;
    if (dim < rank - count || dim >= rank || (seen >> dim & 1) != 0) return {};
    seen |= uint64_t{1} << dim;
  }
  RowSums found{1, 1};
  for (int64_t d = 0; d < rank; ++d)
    (d < rank - count ? found.rows : found.cols) *= sizes[static_cast<size_t>(d)];
  if (found.rows == 0 || found.cols == 0 || found.cols > kernels::longest_summed_row()) return {};
  return found;
}

}  // namespace torch_neuronx
