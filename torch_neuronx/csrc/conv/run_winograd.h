// Winograd's convolution over whole images: who computes which tiles, and where values wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "conv/winograd.h"
#include "gemm/packed_b.h"

namespace torch_neuronx::conv {

// Strides count elements. Of input and of out, the channels' or the columns' is 1.
struct Strides {
  int64_t image, channel, row, col;
};

struct Problem {
  Element element;                          // of input, weight, out and residual
  int64_t images, channels, height, width;  // of the input
  int64_t outs, out_height, out_width;
  int64_t pad_h, pad_w;
  const char* input;
  Strides in;
  const char* weight;  // image: output channel
  Strides filter;
  char* out;
  Strides to;
  const float *scale, *shift;  // see OutputArgs
  const char* residual;        // with the strides `to`
  bool relu;
  StoreFunction function;
  void* const* buffers;
};

// Filters' values at the frequencies, by panels of output channels.
class Filters final : public gemm::Packed {
 public:
  Filters(int64_t outs, int64_t channels);
  ~Filters() override;

  // One row more than there are channels: 36 places a power of two apart would fight for the same
  // few places of a cache.
  static int64_t frequency_stride(int64_t channels) { return (channels + 1) * kPanel; }
  static int64_t panel_stride(int64_t channels) {
    return kFrequencies * frequency_stride(channels);
  }
  static size_t bytes_of(int64_t outs, int64_t channels);

  float* data() const { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  size_t bytes_;
  float* data_;
};

std::shared_ptr<const Filters> transform_filters(const Problem& p);

// Computes on ATen's threads; nothing in `p` is empty. Without `filters` these are transformed on
// the way, to the same bits. False: some sum was not finite, and `out` holds nothing of use.
bool run_winograd(const Problem& p, const Filters* filters);

}  // namespace torch_neuronx::conv
