// The parts of aten::native_dropout.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace torch_neuronx {

// Draws which elements stay: `keep` is a tensor of bool of the host, `p` the share that goes.
void draw_kept(const at::Tensor& keep, double p, c10::DeviceIndex core);
// What those that stay are multiplied by.
double dropout_scale(double p);

}  // namespace torch_neuronx
