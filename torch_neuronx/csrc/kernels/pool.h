// Two-dimensional max pooling with indices over float32 planes.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace torch_neuronx::kernels {

struct PoolShape {
  int64_t height = 0, width = 0;          // of an input plane
  int64_t out_height = 0, out_width = 0;  // of an output plane
  int64_t kernel_h = 0, kernel_w = 0, stride_h = 0, stride_w = 0, pad_h = 0, pad_w = 0;
  int64_t dilation_h = 1, dilation_w = 1;
};

/// Whether max_pool2d takes the shape: strides of 1 or 2 along the width, planes below 2^31
/// elements.
bool max_pool2d_supports(const PoolShape& shape);

/// out, indices: `planes` contiguous planes of out_height x out_width; x: of height x width. An
/// index is the position in its input plane. As in aten::max_pool2d_with_indices the first of equal
/// values wins and a NaN wins over everything, the last one if there are several.
void max_pool2d(const PoolShape& shape, int64_t planes, const float* x, float* out,
                int64_t* indices);

/// Serial function over one output row: `best` and `at` are scratch of out_width elements.
struct PoolTable {
  using Row = void (*)(const PoolShape& shape, const float* plane, int64_t out_row, float* best,
                       int32_t* at);
  Row row[2];  // stride_w 1, 2
};

TN_DECLARE_TABLES(PoolTable, pool_table)

}  // namespace torch_neuronx::kernels
