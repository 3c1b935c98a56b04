// One call of conv.h's functions, as its parts hand it on.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "conv/conv.h"
#include "conv/run_winograd.h"

namespace torch_neuronx::conv {

struct Call {
  const at::Tensor &out, &input, &weight, &bias;
  at::IntArrayRef stride, padding, dilation;
  int64_t groups;
  const Epilogue& epilogue;
};

// Of a dimension of one element the stride says nothing.
inline Strides strides_of(const at::Tensor& t) {
  return {t.stride(0), t.stride(1), t.stride(2), t.size(3) == 1 ? 1 : t.stride(3)};
}

inline at::Tensor view(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::from_blob(const_cast<void*>(t.const_data_ptr()), sizes, strides,
                       at::TensorOptions().dtype(t.scalar_type()));
}

// A CPU tensor of the same memory.
inline at::Tensor host(const at::Tensor& t) {
  return !t.defined() || t.is_cpu() ? t : view(t, t.sizes(), t.strides());
}

// The same as float32.
inline at::Tensor as_float(const at::Tensor& t) { return t.defined() ? host(t).to(at::kFloat) : t; }

// ATen's convolution, then the epilogue.
void run_aten(const Call& c);

}  // namespace torch_neuronx::conv
