// The parts of a batch norm whose statistics belong to several cores. PyTorch's SyncBatchNorm calls
// them around its collectives; on cpu they do not exist. Written with ATen's CPU operators.
#include <ATen/AccumulateType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/var_mean.h>
#include <torch/library.h>

#include "dispatch/host_call.h"
#include "dispatch/native.h"

namespace torch_neuronx {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

bool given(const OptionalTensor& t) { return t.has_value() && t->defined(); }

// All dimensions but the channels'.
std::vector<int64_t> reduced(const at::Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "batch norm: expected [N, C, ...], got a tensor of ", input.dim(),
              " dimensions");
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < input.dim(); ++d) dims.push_back(d);
  return dims;
}

// [C] beside [N, C, ...].
at::Tensor per_channel(const at::Tensor& t, const at::Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "batch norm: expected [N, C, ...], got a tensor of ", input.dim(),
              " dimensions");
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = -1;
  return t.reshape(shape);
}

// Statistics of half precision are float32.
at::ScalarType statistics_type(const at::Tensor& t) {
  return at::toAccumulateType(t.scalar_type(), /*is_cuda=*/true);
}

std::tuple<at::Tensor, at::Tensor> batch_norm_stats(const at::Tensor& input, double eps) {
  return run_on_host(input.device().index(), [&](HostArgs& host) {
    const at::Tensor x = host(input).to(statistics_type(input));
    auto [variance, mean] = at::var_mean(x, reduced(x), /*correction=*/0);
    return std::make_tuple(mean, (variance + eps).rsqrt());
  });
}

at::Tensor batch_norm_elemt(const at::Tensor& input, const OptionalTensor& weight,
                            const OptionalTensor& bias, const at::Tensor& mean,
                            const at::Tensor& invstd, double) {
  return run_on_host(input.device().index(), [&](HostArgs& host) {
    const at::Tensor x = host(input);
    at::Tensor y =
        (x.to(statistics_type(x)) - per_channel(host(mean), x)) * per_channel(host(invstd), x);
    if (given(weight)) y = y * per_channel(host(*weight), x);
    if (given(bias)) y = y + per_channel(host(*bias), x);
    return y.to(x.scalar_type());
  });
}

// `mean` and `invstd` [cores, C] of `counts` [cores] elements per channel each.
std::tuple<at::Tensor, at::Tensor> batch_norm_gather_stats_with_counts(
    const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
    const OptionalTensor& running_mean, const OptionalTensor& running_var, double momentum,
    double eps, const at::Tensor& counts) {
  return run_on_host(input.device().index(), [&](HostArgs& host) {
    const at::Tensor means = host(mean).to(statistics_type(mean));
    const at::Tensor n = host(counts).to(means.scalar_type()).reshape({-1, 1});
    const at::Tensor total = n.sum();
    const at::Tensor variances = host(invstd).to(means.scalar_type()).pow(-2) - eps;
    const at::Tensor joint = (means * n).sum(0) / total;
    const at::Tensor squares = ((variances + (means - joint).square()) * n).sum(0);
    const auto update = [&](const OptionalTensor& running, const at::Tensor& value) {
      if (given(running)) host.written(*running).mul_(1 - momentum).add_(value * momentum);
    };
    update(running_mean, joint);
    update(running_var, squares / (total - 1));
    return std::make_tuple(joint, (squares / total + eps).rsqrt());
  });
}

// This core's sums of dy and of dy * (x - mean), and from them the gradients of weight and bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean,
    const at::Tensor& invstd, const OptionalTensor& weight, bool input_g, bool weight_g,
    bool bias_g) {
  return run_on_host(input.device().index(), [&](HostArgs& host) {
    const at::Tensor x = host(input), m = host(mean);
    const at::Tensor dy = host(grad).to(m.scalar_type());
    const at::Tensor sum_dy = dy.sum(reduced(x));
    const at::Tensor sum_dy_xmu =
        (dy * (x.to(m.scalar_type()) - per_channel(m, x))).sum(reduced(x));
    const auto type = given(weight) ? weight->scalar_type() : x.scalar_type();
    return std::make_tuple(input_g ? sum_dy : at::Tensor(), input_g ? sum_dy_xmu : at::Tensor(),
                           weight_g ? (sum_dy_xmu * host(invstd)).to(type) : at::Tensor(),
                           bias_g ? sum_dy.to(type, false, /*copy=*/true) : at::Tensor());
  });
}

// The sums are those of all cores, `count` [cores] their elements per channel.
at::Tensor batch_norm_backward_elemt(const at::Tensor& grad, const at::Tensor& input,
                                     const at::Tensor& mean, const at::Tensor& invstd,
                                     const OptionalTensor& weight, const at::Tensor& sum_dy,
                                     const at::Tensor& sum_dy_xmu, const at::Tensor& count) {
  return run_on_host(input.device().index(), [&](HostArgs& host) {
    const at::Tensor x = host(input), m = host(mean), scale = host(invstd);
    const at::Tensor total = host(count).sum().to(m.scalar_type());
    const at::Tensor factor = given(weight) ? scale * host(*weight) : scale;
    const at::Tensor slope = host(sum_dy_xmu) / total * scale.square();
    const at::Tensor centred = x.to(m.scalar_type()) - per_channel(m, x);
    const at::Tensor dy = host(grad).to(m.scalar_type()) - per_channel(host(sum_dy) / total, x);
    return ((dy - centred * per_channel(slope, x)) * per_channel(factor, x)).to(x.scalar_type());
  });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "batch_norm_stats", batch_norm_stats);
  NEURON_IMPL(m, "batch_norm_elemt", batch_norm_elemt);
  NEURON_IMPL(m, "batch_norm_gather_stats_with_counts", batch_norm_gather_stats_with_counts);
  NEURON_IMPL(m, "batch_norm_backward_reduce", batch_norm_backward_reduce);
  NEURON_IMPL(m, "batch_norm_backward_elemt", batch_norm_backward_elemt);
}

}  // namespace
}  // namespace torch_neuronx
