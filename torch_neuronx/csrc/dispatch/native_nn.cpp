// Convolution and pooling on the fastest host kernel, and operators whose CPU version insists on
// CPU tensors.
#include <ATen/native/Pool.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/tensor_split_native.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "conv/by_aten.h"
#include "dispatch/host_call.h"
#include "dispatch/native.h"
#include "kernels/pool.h"

namespace torch_neuronx {
namespace {

at::Tensor convolution_overrideable(const at::Tensor& input, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                    bool transposed, at::IntArrayRef output_padding,
                                    int64_t groups) {
  return run_on_host(input.device().index(), [&](HostArgs& host) {
    return conv::convolve_by_aten(host(input), host(weight), host(bias), stride, padding, dilation,
                                  transposed, output_padding, groups);
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  return run_on_host(input.device().index(), [&](HostArgs& host) {
    return conv::gradients_by_aten(host(grad), host(input), host(weight), at::IntArrayRef{channels},
                                   stride, padding, dilation, transposed, output_padding, groups,
                                   mask);
  });
}

// The shape of a pooling that our kernel takes: contiguous float32 images. Arguments that PyTorch
// refuses are left to its own kernel, which says why.
std::optional<kernels::PoolShape> pool_shape(const at::Tensor& x, at::IntArrayRef kernel,
                                             at::IntArrayRef stride, at::IntArrayRef padding,
                                             at::IntArrayRef dilation, bool ceil_mode) {
  const auto usable = [](at::IntArrayRef v) { return v.size() == 1 || v.size() == 2; };
  if (x.scalar_type() != at::kFloat || (x.dim() != 3 && x.dim() != 4) || !x.is_contiguous() ||
      x.numel() == 0 || !usable(kernel) || !(stride.empty() || usable(stride)) ||
      !usable(padding) || !usable(dilation)) {
    return {};
  }
  const at::IntArrayRef steps = stride.empty() ? kernel : stride;
  kernels::PoolShape s;
  s.height = x.size(-2);
  s.width = x.size(-1);
  std::tie(s.kernel_h, s.kernel_w) = std::pair(kernel.front(), kernel.back());
  std::tie(s.stride_h, s.stride_w) = std::pair(steps.front(), steps.back());
  std::tie(s.pad_h, s.pad_w) = std::pair(padding.front(), padding.back());
  std::tie(s.dilation_h, s.dilation_w) = std::pair(dilation.front(), dilation.back());
  if (s.kernel_h < 1 || s.kernel_w < 1 || s.stride_h < 1 || s.stride_w < 1 || s.dilation_h < 1 ||
      s.dilation_w < 1 || s.pad_h < 0 || s.pad_w < 0 || s.pad_h * 2 > s.kernel_h ||
      s.pad_w * 2 > s.kernel_w) {
    return {};
  }
  s.out_height = at::native::pooling_output_shape<int64_t>(s.height, s.kernel_h, s.pad_h,
                                                           s.stride_h, s.dilation_h, ceil_mode);
  s.out_width = at::native::pooling_output_shape<int64_t>(s.width, s.kernel_w, s.pad_w, s.stride_w,
                                                          s.dilation_w, ceil_mode);
  return kernels::max_pool2d_supports(s) ? std::optional(s) : std::nullopt;
}

std::tuple<at::Tensor, at::Tensor> max_pool2d(const at::Tensor& x, at::IntArrayRef kernel,
                                              at::IntArrayRef stride, at::IntArrayRef padding,
                                              at::IntArrayRef dilation, bool ceil_mode) {
  const auto shape = pool_shape(x, kernel, stride, padding, dilation, ceil_mode);
  const auto index = x.device().index();
  if (!shape) {
    return run_on_host(index, [&](HostArgs& host) {
      return at::max_pool2d_with_indices(host(x), kernel, stride, padding, dilation, ceil_mode);
    });
  }
  at::DimVector sizes(x.sizes().begin(), x.sizes().end());
  sizes[sizes.size() - 2] = shape->out_height;
  sizes[sizes.size() - 1] = shape->out_width;
  at::Tensor out = empty_on(index, sizes, {}, at::kFloat);
  at::Tensor indices = empty_on(index, sizes, {}, at::kLong);
  kernels::max_pool2d(*shape, x.numel() / (shape->height * shape->width), x.const_data_ptr<float>(),
                      out.mutable_data_ptr<float>(), indices.mutable_data_ptr<int64_t>());
  return {out, indices};
}

// The split points must be read on the host, wherever they are.
std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& points,
                                     int64_t dim) {
  return at::native::tensor_split(self, points.cpu(), dim);
}

// Histograms of integers, which PyTorch has for accelerators but not for the CPU. Bins are found in
// integer arithmetic, so an element on the border of two is never put into the wrong one.
at::Tensor integer_histc(const at::Tensor& x, int64_t bins, int64_t low, int64_t high) {
  TORCH_CHECK(bins > 0, "bins must be > 0, but got ", bins);
  const at::Tensor values = x.to(at::kLong).contiguous();
  const int64_t* v = values.const_data_ptr<int64_t>();
  const int64_t n = values.numel();
  if (low == high && n > 0)
    std::tie(low, high) = std::pair(*std::min_element(v, v + n), *std::max_element(v, v + n));
  if (low == high) --low, ++high;
  TORCH_CHECK(low < high, "max must be larger than min");
  at::Tensor counts = at::zeros({bins}, at::kLong);
  int64_t* count = counts.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    if (v[i] < low || v[i] > high) continue;
    const auto bin = static_cast<int64_t>(static_cast<__int128>(v[i] - low) * bins / (high - low));
    ++count[std::min(bin, bins - 1)];
  }
  return counts.to(x.scalar_type());
}

at::Tensor histc(const at::Tensor& x, int64_t bins, const at::Scalar& low, const at::Scalar& high) {
  return run_on_host(x.device().index(), [&](HostArgs& host) {
    if (at::isIntegralType(x.scalar_type(), /*includeBool=*/false)) {
      return integer_histc(host(x), bins, low.toLong(), high.toLong());
    }
    return at::histc(host(x), bins, low, high);
  });
}

// PyTorch's rule for accelerators, which compiled programs follow: the positions lie column by
// column.
at::Tensor nonzero_static(const at::Tensor& x, int64_t size, int64_t fill) {
  return run_on_host(x.device().index(), [&](HostArgs& host) {
    return at::nonzero_static(host(x), size, fill).t().contiguous().t();
  });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "nonzero_static", nonzero_static);
  NEURON_IMPL(m, "convolution_overrideable", convolution_overrideable);
  NEURON_IMPL(m, "convolution_backward_overrideable", convolution_backward);
  NEURON_IMPL(m, "max_pool2d_with_indices", max_pool2d);
  NEURON_IMPL(m, "histc", histc);
  m.impl("tensor_split.tensor_indices_or_sections", TORCH_FN(tensor_split));
}
// tensor_split is composite: its derivative is that of the slices it is made of.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("tensor_split.tensor_indices_or_sections", TORCH_FN(tensor_split));
}

}  // namespace
}  // namespace torch_neuronx
