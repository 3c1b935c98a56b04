#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace torch_neuronx {

/// Those of some tensors that lie between the first and the last byte of another one of the same
/// storage, in order: the number of each, and that of the first tensor of its group. They need not
/// have an element in common. What has no memory of its own, and no elements, is passed over.
std::vector<std::pair<int64_t, int64_t>> overlapping(const std::vector<at::Tensor>& tensors);

}  // namespace torch_neuronx
