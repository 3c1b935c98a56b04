// ATen's structured CPU kernels run directly on device tensors: their shape function and their
// implementation take the tensors as they are, and only where the output comes from is ours. Saves
// the aliases of the boxed kernel on the hottest operators.
#pragma once

#include <ATen/EmptyTensor.h>
#include <c10/core/MemoryFormat.h>

#include "dispatch/alias.h"
#include "memory/allocator.h"

namespace torch_neuronx {

// The strides that a shape function asks for: it names a memory format instead where all operands
// have it. Empty: contiguous.
inline at::DimVector strides_of(at::IntArrayRef sizes, at::IntArrayRef strides,
                                const at::TensorOptions& options) {
  if (!strides.empty()) return at::DimVector(strides);
  switch (options.memory_format_opt().value_or(at::MemoryFormat::Contiguous)) {
    case at::MemoryFormat::ChannelsLast:
      return at::DimVector(c10::get_channels_last_strides_2d(sizes));
    case at::MemoryFormat::ChannelsLast3d:
      return at::DimVector(c10::get_channels_last_strides_3d(sizes));
    default:
      return {};
  }
}

// A new output on the inputs' device.
template <class Impl>
struct Functional final : Impl {
  at::Tensor out;

  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(i, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    out = empty_on(options.device().index(), sizes, strides_of(sizes, strides, options),
                   c10::typeMetaToScalarType(options.dtype()));
    Impl::set_output_raw_strided(i, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(int64_t) override { return out; }
};

// The output is `self`.
template <class Impl>
struct InPlace final : Impl {
  explicit InPlace(at::Tensor& self) : out(self) {}
  at::Tensor& out;

  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(i, sizes, strides, options);
  }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    TORCH_CHECK(options.dtype() == out.dtype(), "Bad in-place call: input tensor dtype ",
                out.dtype(), " and output tensor dtype ", options.dtype(), " should match");
    TORCH_CHECK(sizes == out.sizes(), "Bad in-place call: input tensor size ", out.sizes(),
                " and output tensor size ", sizes, " should match");
    Impl::set_output_raw_strided(i, sizes, strides, options);
  }
  const at::Tensor& maybe_get_output(int64_t) override { return out; }
};

}  // namespace torch_neuronx
