// Scaled products by release: 2.14 made `_scaled_mm_v2` and `_scaled_grouped_mm_v2` structured.
// Such operators take lists of tensors in another form, and PyTorch has a shape function for each.
#pragma once

#include <ATen/core/IListRef.h>
#include <torch/headeronly/version.h>

namespace torch_neuronx::compat {

#if TORCH_VERSION_MINOR >= 14
using ScaleList = const at::ITensorListRef&;
inline constexpr bool kGroupedProductHasShape = true;
#else
using ScaleList = at::TensorList;
inline constexpr bool kGroupedProductHasShape = false;
#endif

}  // namespace torch_neuronx::compat
