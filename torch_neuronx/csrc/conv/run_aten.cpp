// Convolutions that are left to ATen (oneDNN), and what is to be done with their results.
#include <ATen/ATen.h>
#include <ATen/native/ConvUtils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "conv/by_aten.h"
#include "conv/call.h"
#include "gemm/methods.h"

namespace torch_neuronx::conv {
namespace {

// Results that a function of the caller's gets at once: they and what it makes of them should stay
// in a second cache.
constexpr int64_t kPart = int64_t(1) << 15;
// Results that ATen computes at once: they should stay in a third cache until they are handed out.
constexpr int64_t kWhole = int64_t(1) << 20;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ATen's kernels write in the layout that they read, and of the tensors the input is the smallest
// to rearrange.
at::Tensor laid_out(const at::Tensor& x, const at::Tensor& weight, bool last) {
  if (at::native::mkldnn_conv_use_channels_last(x, weight) == last) return x;
  return x.contiguous(last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

// The results of images from number `first` on.
void hand_out(const Epilogue& e, const at::Tensor& result, int64_t first) {
  at::Tensor y = result.to(at::kFloat);
  y = e.last ? y.permute({0, 2, 3, 1}).contiguous() : y.contiguous();
  const int64_t channels = result.size(1), pixels = result.size(2) * result.size(3);
  const int64_t rows = e.last ? pixels : channels, cols = e.last ? channels : pixels;
  const int64_t height = std::clamp<int64_t>(kPart / cols, 1, rows);
  const int64_t parts = ceil_div(rows, height);
  const float* sums = y.const_data_ptr<float>();
  const bool parallel = gemm::worth_threads(0, double(y.numel()) * sizeof(float));
  gemm::for_tasks(result.size(0) * parts, parallel, [&](int64_t task) {
    const int64_t image = task / parts, row = task % parts * height;
    e.function(e.buffers, first + image, row, std::min(height, rows - row), 0, cols,
               sums + (image * rows + row) * cols, cols);
  });
}

// ATen rearranges the filters in every call, so there must be few of them.
int64_t images_at_once(const Call& c) {
  const int64_t images = c.out.size(0), results = c.out.numel();
  if (results <= kWhole || 16 * c.weight.numel() > kWhole) return images;
  return std::clamp<int64_t>(kWhole / (results / images), 1, images);
}

}  // namespace

void run_aten(const Call& c) {
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1}));
  const Epilogue& e = c.epilogue;
  const auto convolve = [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
    return convolve_by_aten(x, w, b, c.stride, c.padding, c.dilation, false, {0, 0}, c.groups);
  };
  if (e.empty()) {
    host(c.out).copy_(convolve(host(c.input), host(c.weight), host(c.bias)));
    return;
  }
  if (e.only_function() && !c.bias.defined()) {
    const bool as_it_is = e.narrow || c.input.scalar_type() == at::kFloat;
    at::Tensor x = as_it_is ? host(c.input) : as_float(c.input);
    at::Tensor w = as_it_is ? host(c.weight) : as_float(c.weight);
    x = laid_out(x, w, e.last);
    if (!e.last && at::native::mkldnn_conv_use_channels_last(x, w)) w = w.contiguous();
    const int64_t images = x.size(0), step = images_at_once(c);
    for (int64_t i = 0; i < images; i += step) {
      hand_out(e, convolve(x.narrow(0, i, std::min(step, images - i)), w, {}), i);
    }
    return;
  }
  // Rounding once, after all of it.
  const bool scaled = e.scale.defined();
  at::Tensor y =
      convolve(as_float(c.input), as_float(c.weight), scaled ? at::Tensor() : as_float(c.bias));
  if (scaled) y.mul_(host(e.scale).view({-1, 1, 1}));
  if (scaled && c.bias.defined()) y.add_(host(c.bias).view({-1, 1, 1}));
  if (e.residual.defined()) y.add_(host(e.residual));
  if (e.relu) y.relu_();
  if (e.function == nullptr) {
    host(c.out).copy_(y);
  } else {
    hand_out(e, y, 0);
  }
}

}  // namespace torch_neuronx::conv
