// Winograd's F(4x4, 3x3): the four steps as a table of plain functions.
//
// A tile of 4 x 4 results needs a patch of 6 x 6 inputs. Patch, filter and result are polynomials'
// values at the points 0, +-5/8, +-3/2 and infinity in both directions (36 "frequencies"), where
// the convolution is one multiplication per frequency, input channel and output channel: 36 instead
// of 144. The points are the ones with the smallest error of all we tried (docs/convolution.md).
//
// The steps: filters once (filter), then per group of tiles patches (input), for every frequency a
// matrix product over the channels (multiply), and back (output). Vectors hold 16 channels.
//
// Tensors are float32, bfloat16 or float16, and strides count elements; all arithmetic is float32
// (of filters: double), and a result is rounded once.
//
// This header and winograd_avx512.cpp use no torch header on purpose: see gemm/kernels.h.
#pragma once

#include <cstdint>

#include "gemm/kernels.h"

namespace torch_neuronx::conv {

using gemm::Element;

constexpr int64_t kTile = 4;          // results of a tile, each direction
constexpr int64_t kPatch = 6;         // inputs of a tile, each direction
constexpr int64_t kFrequencies = 36;  // kPatch * kPatch
constexpr int64_t kLanes = 16;        // channels a vector holds
constexpr int64_t kPanel = 64;        // output channels of a panel: four vectors
constexpr int64_t kRun = 16;          // most neighbouring tiles of one row handled at a time
constexpr int64_t kRowTiles = 6;      // tiles of a register block of multiply()
// Channels summed before the sum is added to that of the channels before: the rounding error grows
// with the length of a running sum, and this bounds it.
constexpr int64_t kSum = 32;
constexpr int64_t kDepth = 64;  // channels of a panel that fit a first cache: 16 KiB

// Filters of up to kPanel output channels -> [frequency][channel][kPanel], zeros in the rest.
struct FilterArgs {
  Element element;
  const char* src;  // first output channel
  int64_t out_stride, in_stride, row_stride, col_stride;
  int64_t outs, channels;
  float* dst;
  int64_t frequency_stride;
};

// Patches of `tiles` neighbouring tiles of a row of tiles, for up to kLanes channels. What lies
// outside of the image is zero.
struct InputArgs {
  Element element;
  const char* src;  // first channel, at row `top` and column `left` even if these are negative
  int64_t channel_stride, row_stride, col_stride;
  int64_t top, left, height, width;
  int64_t channels, tiles;
  float* dst;  // [frequency][tile][channel], at the first tile and channel; kLanes are written
  int64_t frequency_stride, tile_stride;
};

// c[tile][out] = sum of a[tile][channel] * b[channel][out], for one frequency.
struct MultiplyArgs {
  const float* a;
  int64_t a_row;
  const float* b;  // panel: rows of kPanel
  float* c;        // rows of kPanel
  int64_t tiles, outs, channels;
};

// Called instead of storing: results of rows [row0, row0 + rows) x columns [col0, col0 + cols) of
// image `image` are tile[r * tile_stride + c]. Columns are what are neighbours in `out`: pixels,
// and rows are channels, or the other way round if channels are last. (The signature of generated
// code.)
using StoreFunction = void (*)(void* const* buffers, int64_t image, int64_t row0, int64_t rows,
                               int64_t col0, int64_t cols, const float* tile, int64_t tile_stride);

// What is done with a result before it is stored: result * scale + shift + residual, then relu.
struct OutputArgs {
  const float* src;  // [frequency][tile][kPanel], at the first tile and output channel
  int64_t frequency_stride;
  int64_t channels, tiles;  // up to kLanes, up to kRun
  int64_t height, width;    // of the results that exist, from the first of the run on
  Element element;          // of dst and residual
  char* dst;                // first channel, row and column
  int64_t channel_stride, row_stride, col_stride;
  const float* scale;    // of the first channel; null for one
  const float* shift;    // null for zero
  const char* residual;  // null for none; strides as dst
  bool relu;
  StoreFunction function;  // null: store in dst
  void* const* buffers;
  int64_t image, out_channel, pixel, image_width;  // of dst; pixels are row * width + column
};

struct Winograd {
  void (*filter)(const FilterArgs&);
  void (*input)(const InputArgs&);
  void (*multiply)(const MultiplyArgs&);
  bool (*output)(const OutputArgs&);  // false: a sum was not finite
};

// Null where the processor lacks the instructions.
#if defined(__x86_64__)
const Winograd* winograd_avx512();
inline const Winograd* winograd() { return winograd_avx512(); }
#else
inline const Winograd* winograd() { return nullptr; }
#endif

}  // namespace torch_neuronx::conv
