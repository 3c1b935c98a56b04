// Convolution: our kernels (conv/) where they are faster than ATen's, else ATen's.
#include <ATen/Context.h>
#include <ATen/TracerMode.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/convolution.h>
#include <torch/library.h>

#include "conv/by_aten.h"
#include "conv/conv.h"
#include "dispatch/host_call.h"
#include "dispatch/native.h"
#include "registry/registry.h"

namespace torch_neuronx {
namespace {

// Undefined where ATen's kernels are better.
at::Tensor own_convolution(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                           at::IntArrayRef dilation, int64_t groups) {
  if (!conv::worth_trying(input, weight, stride, padding, dilation, groups)) return {};
  const auto sizes =
      at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size <= 0; })) return {};
  // The memory format that ATen's kernel would choose.
  at::DimVector strides;
  if (at::native::mkldnn_conv_use_channels_last(input, weight)) {
    strides = c10::get_channels_last_strides_2d(sizes);
  }
  at::Tensor out = empty_on(input.device().index(), sizes, strides, input.scalar_type());
  const uint64_t generation = generation_of(*weight.storage().unsafeGetStorageImpl());
  return conv::try_conv2d(out, input, weight, bias, stride, padding, dilation, groups,
                          conv::Epilogue{}, generation)
             ? out
             : at::Tensor();
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& optional_bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  if (at::tracer::impl::is_dispatch_enabled()) {
    // `torch.jit.trace` records what PyTorch's `convolution` calls instead of it. A trace that sees
    // neither holds the result as a constant.
    at::Context& context = at::globalContext();
    return at::_convolution(input, weight, optional_bias, stride, padding, dilation, transposed,
                            output_padding, groups, context.benchmarkCuDNN(),
                            context.deterministicCuDNN(), context.userEnabledCuDNN(),
                            context.allowTF32CuDNN());
  }
  const at::Tensor bias = optional_bias.value_or(at::Tensor());
  at::Tensor out;
  if (!transposed) {
    out = own_convolution(input, weight, bias, stride, padding, dilation, groups);
  }
  if (!out.defined()) {
    out = run_on_host(input.device().index(), [&](HostArgs& host) {
      return conv::convolve_by_aten(host(input), host(weight), host(optional_bias), stride, padding,
                                    dilation, transposed, output_padding, groups);
    });
  }
  // Each element of the result, or of the input if transposed, meets one filter.
  const auto filters = static_cast<double>(std::max<int64_t>(weight.size(0), 1));
  const auto met = static_cast<double>((transposed ? input : out).numel());
  registry::count_flops(2.0 * met * static_cast<double>(weight.numel()) / filters);
  return out;
}

// A traced program runs the kernel that eager mode runs, which counts the call and has the
// gradient. The rest is advice to cuDNN.
at::Tensor traced_convolution(const at::Tensor& input, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                              at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                              at::IntArrayRef output_padding, int64_t groups, bool, bool, bool,
                              bool) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                         groups);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "convolution", convolution);
  m.impl("_convolution", TORCH_FN(traced_convolution));
}

}  // namespace
}  // namespace torch_neuronx
