// Two-dimensional convolution between tensors whose memory the host can read: CPU tensors, and
// device tensors. Our methods are Winograd's for 3 x 3 filters and a matrix product for 1 x 1; the
// rest, and what they are not faster for, is left to ATen (oneDNN).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "conv/run_winograd.h"

namespace torch_neuronx::conv {

enum class Method : uint8_t {
  kAten,
  kWinograd,  // 3 x 3, stride 1
  kProduct,   // 1 x 1, stride 1
};
const char* method_name(Method method);

// What becomes of a result after the bias, in this order. Nothing here may share memory with `out`
// or be written by `function`: results may be computed a second time.
struct Epilogue {
  at::Tensor scale;     // undefined or [channels of out]: factor of a result, before the bias
  at::Tensor residual;  // undefined, or added; sizes, strides and dtype of `out`
  bool relu = false;
  StoreFunction function =
      nullptr;  // set: called with the results instead of storing them in `out`
  void* const* buffers = nullptr;
  // Of `function`: it gets rows of pixels times columns of channels, not the other way round.
  bool last = false;
  bool narrow = false;  // `function` may get results that were rounded to the tensors' dtype

  bool only_function() const {
    return !scale.defined() && !residual.defined() && !relu && function;
  }
  bool empty() const {
    return !scale.defined() && !residual.defined() && !relu && function == nullptr;
  }
  // Of an image in memory whose results come in the order that `function` wants.
  Strides strides(int64_t channels, int64_t height, int64_t width) const {
    const int64_t pixels = height * width;
    if (last) return {pixels * channels, 1, width * channels, channels};
    return {pixels * channels, pixels, width, 1};
  }
};

// False if no method of ours takes a convolution of these sizes, whatever the layout. Saves a
// caller of try_conv2d from allocating `out` in vain.
bool worth_trying(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
                  at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups);

// out[n,o,y,x] = epilogue(sum over c,i,j of input[n, c, y*stride - padding + i*dilation, ...] *
// weight[o,c,i,j] + bias[o]). Tensors are float32, bfloat16 or float16, all of one dtype; with an
// epilogue's scale, scale and bias may also be float32. Sums are float32; a result is rounded once,
// after the epilogue. False, having touched nothing, when no method of ours is
// expected to be as fast as ATen's or the operands do not fit together: the caller then runs
// at::convolution, which also raises the errors. `stride`, `padding` and `dilation` have two
// elements. `generation`: as in gemm/aten_gemm.h, of the weight.
//
// Which method is taken, and so every bit of the result, depends on the shapes and the layout and,
// for products, on the matrix products' probe; not on the number of threads or on what is cached.
bool try_conv2d(const at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                const at::Tensor& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                at::IntArrayRef dilation, int64_t groups, const Epilogue& epilogue,
                uint64_t generation);

// The same by ATen, whatever is faster. Of `out` only the sizes count if there is a function.
void conv2d_by_aten(const at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                    const at::Tensor& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                    at::IntArrayRef dilation, int64_t groups, const Epilogue& epilogue);

// The method that try_conv2d takes.
Method choose_conv2d(const at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                     const at::Tensor& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                     at::IntArrayRef dilation, int64_t groups, const Epilogue& epilogue);

// For tests and benchmarks: the given method, whether it is the fastest or not. False if it does
// not apply.
bool conv2d_with(Method method, const at::Tensor& out, const at::Tensor& input,
                 const at::Tensor& weight, const at::Tensor& bias, at::IntArrayRef stride,
                 at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                 const Epilogue& epilogue, uint64_t generation);

}  // namespace torch_neuronx::conv
