// Softmax, normalisations and sums of rows on our own kernels where they apply (contiguous float32,
// bfloat16, float16), else on ATen's.
#include <ATen/OpMathType.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include "dispatch/host_call.h"
#include "dispatch/native.h"
#include "dispatch/row_sums.h"
#include "dispatch/structured.h"
#include "dispatch/trusting.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"

namespace torch_neuronx {
namespace {

bool plain(const at::Tensor& t) {
  return kernels::pointwise_supports(t.scalar_type()) && t.is_contiguous();
}
bool alike(const at::Tensor& a, const at::Tensor& b) {
  return plain(a) && b.is_contiguous() && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.device() == b.device();
}
at::Tensor like(const at::Tensor& t) {
  return empty_on(t.device().index(), t.sizes(), {}, t.scalar_type());
}

bool last_dim(const at::Tensor& t, int64_t dim) {
  return t.dim() > 0 && (dim == -1 || dim == t.dim() - 1) && t.size(-1) > 0 && t.numel() > 0;
}
int64_t rows(const at::Tensor& t) { return t.numel() / t.size(-1); }

template <bool kLog>
at::Tensor softmax(const at::Tensor& x, int64_t dim, bool half_to_float) {
  if (kernels::pointwise_supports(x.scalar_type()) && last_dim(x, dim) && !half_to_float) {
    const at::Tensor packed = x.contiguous();  // as ATen does, whose numbers are others
    at::Tensor out = like(x);
    kernels::softmax(x.scalar_type(), packed.const_data_ptr(), out.mutable_data_ptr(), rows(x),
                     x.size(-1), kLog);
    return out;
  }
  return run_on_host(x.device().index(), [&](HostArgs& host) {
    return kLog ? at::_log_softmax(host(x), dim, half_to_float)
                : at::_softmax(host(x), dim, half_to_float);
  });
}
template <bool kLog>
at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& y, int64_t dim,
                            at::ScalarType input_dtype) {
  if (kernels::pointwise_supports(y.scalar_type()) && grad.scalar_type() == y.scalar_type() &&
      grad.sizes() == y.sizes() && grad.device() == y.device() && last_dim(y, dim) &&
      input_dtype == y.scalar_type()) {
    const at::Tensor g = grad.contiguous(), saved = y.contiguous();
    at::Tensor out = like(y);
    kernels::softmax_backward(y.scalar_type(), g.const_data_ptr(), saved.const_data_ptr(),
                              out.mutable_data_ptr(), rows(y), y.size(-1), kLog);
    return out;
  }
  TORCH_CHECK(grad.sizes() == y.sizes() && grad.scalar_type() == y.scalar_type(),
              "softmax's gradient must be like its result, got ", grad.scalar_type(), " ",
              grad.sizes(), " and ", y.scalar_type(), " ", y.sizes());
  return run_on_host(y.device().index(), [&](HostArgs& host) {
    return kLog ? at::_log_softmax_backward_data(host(grad), host(y), dim, input_dtype)
                : at::_softmax_backward_data(host(grad), host(y), dim, input_dtype);
  });
}

struct NormShape {
  int64_t rows, cols;
};
// Rows and columns if our kernel takes the case: normalised over trailing, contiguous dimensions,
// parameters contiguous in the input's dtype or float32.
std::optional<NormShape> norm_shape(
    const at::Tensor& x, at::IntArrayRef normalized,
    std::initializer_list<const std::optional<at::Tensor>*> parameters,
    at::ScalarType* parameter_dtype) {
  const auto n = static_cast<int64_t>(normalized.size());
  if (!plain(x) || n < 1 || n > x.dim() ||
      x.sizes().slice(static_cast<size_t>(x.dim() - n)) != normalized)
    return {};
  const int64_t cols = c10::multiply_integers(normalized);
  if (cols == 0 || x.numel() == 0) return {};
  *parameter_dtype = x.scalar_type();
  bool first = true;
  for (const auto* p : parameters) {
    if (!p->has_value() || !(*p)->defined()) continue;
    const at::Tensor& t = **p;
    if (!t.is_contiguous() || t.sizes() != normalized || t.device() != x.device()) return {};
    if (t.scalar_type() != x.scalar_type() && t.scalar_type() != at::kFloat) return {};
    if (!first && t.scalar_type() != *parameter_dtype) return {};
    *parameter_dtype = t.scalar_type();
    first = false;
  }
  return NormShape{x.numel() / cols, cols};
}

const void* data_or_null(const std::optional<at::Tensor>& t) {
  return t.has_value() && t->defined() ? t->const_data_ptr() : nullptr;
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Float32 for 16-bit inputs, as on CUDA and as graphs have them. The CPU rounds them to the
// parameters' dtype.
at::Tensor statistics(const at::Tensor& x) { return x.to(at::toOpMathType(x.scalar_type())); }

Three layer_norm(const at::Tensor& x, at::IntArrayRef normalized,
                 const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                 double eps) {
  at::ScalarType parameters{};
  const auto shape = norm_shape(x, normalized, {&weight, &bias}, &parameters);
  if (!shape) {
    return run_on_host(x.device().index(), [&](HostArgs& host) -> Three {
      auto [out, mean, rstd] =
          at::native_layer_norm(host(x), normalized, host(weight), host(bias), eps);
      return {out, statistics(mean), statistics(rstd)};
    });
  }
  const auto index = x.device().index();
  at::Tensor out = like(x);
  at::DimVector stat_sizes(x.sizes().begin(), x.sizes().end());
  std::fill(stat_sizes.end() - static_cast<int64_t>(normalized.size()), stat_sizes.end(), 1);
  at::Tensor mean = empty_on(index, stat_sizes, {}, at::kFloat);
  at::Tensor rstd = empty_on(index, stat_sizes, {}, at::kFloat);
  kernels::layer_norm(x.scalar_type(), parameters, x.const_data_ptr(), data_or_null(weight),
                      data_or_null(bias), eps, out.mutable_data_ptr(),
                      mean.mutable_data_ptr<float>(), rstd.mutable_data_ptr<float>(), shape->rows,
                      shape->cols);
  return {out, mean, rstd};
}

Three layer_norm_backward(const at::Tensor& grad, const at::Tensor& x, at::IntArrayRef normalized,
                          const at::Tensor& mean, const at::Tensor& rstd,
                          const std::optional<at::Tensor>& weight,
                          const std::optional<at::Tensor>& bias, std::array<bool, 3> mask) {
  at::ScalarType parameters{};
  const auto shape = norm_shape(x, normalized, {&weight, &bias}, &parameters);
  if (!shape || !alike(grad, x)) {
    return run_on_host(x.device().index(), [&](HostArgs& host) {
      const auto kept = weight.has_value() && weight->defined() ? weight->scalar_type()
                        : bias.has_value() && bias->defined()   ? bias->scalar_type()
                                                                : x.scalar_type();
      const auto a = checked_arguments("aten::native_layer_norm_backward",
                                       {host(grad), host(x), normalized, host(mean).to(kept),
                                        host(rstd).to(kept), host(weight), host(bias), mask});
      return at::native_layer_norm_backward(
          a[0].toTensor(), a[1].toTensor(), normalized, a[3].toTensor(), a[4].toTensor(),
          a[5].toOptional<at::Tensor>(), a[6].toOptional<at::Tensor>(), mask);
    });
  }
  TORCH_CHECK(
      mean.numel() == shape->rows && rstd.numel() == shape->rows,
      "native_layer_norm_backward: the mean and its companion must have an element per row, ",
      shape->rows, ", got ", mean.sizes(), " and ", rstd.sizes());
  const auto index = x.device().index();
  const at::Tensor mean_f = mean.to(at::kFloat).contiguous(),
                   rstd_f = rstd.to(at::kFloat).contiguous();
  at::Tensor dx = mask[0] ? like(x) : at::Tensor();
  at::Tensor dw = mask[1] ? empty_on(index, normalized, {}, parameters) : at::Tensor();
  at::Tensor db = mask[2] ? empty_on(index, normalized, {}, parameters) : at::Tensor();
  const auto data = [](const at::Tensor& t) {
    return t.defined() ? t.mutable_data_ptr() : nullptr;
  };
  kernels::layer_norm_backward(x.scalar_type(), parameters, grad.const_data_ptr(),
                               x.const_data_ptr(), mean_f.const_data_ptr<float>(),
                               rstd_f.const_data_ptr<float>(), data_or_null(weight), data(dx),
                               data(dw), data(db), shape->rows, shape->cols);
  return {dx, dw, db};
}

template <bool kMean>
at::Tensor sum(const at::Tensor& x, at::OptionalIntArrayRef dims, bool keepdim,
               std::optional<at::ScalarType> dtype) {
  const auto shape = dims.has_value() && on_neuron(x) && x.is_contiguous()
                         ? row_sums(x.scalar_type(), x.sizes(), *dims)
                         : std::nullopt;
  if (!shape || dtype.value_or(x.scalar_type()) != x.scalar_type()) {
    return run_on_host(x.device().index(), [&](HostArgs& host) {
      return kMean ? at::mean(host(x), dims, keepdim, dtype)
                   : at::sum(host(x), dims, keepdim, dtype);
    });
  }
  at::DimVector sizes(x.sizes().begin(), x.sizes().end() - static_cast<int64_t>(dims->size()));
  if (keepdim) sizes.resize(x.sizes().size(), 1);
  at::Tensor out = empty_on(x.device().index(), sizes, {}, x.scalar_type());
  kernels::sum_rows(x.scalar_type(), x.const_data_ptr(), out.mutable_data_ptr(), shape->rows,
                    shape->cols, kMean);
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "mean.dim", sum<true>);
  NEURON_IMPL(m, "sum.dim_IntList", sum<false>);
  NEURON_IMPL(m, "_softmax", softmax<false>);
  NEURON_IMPL(m, "_log_softmax", softmax<true>);
  NEURON_IMPL(m, "_softmax_backward_data", softmax_backward<false>);
  NEURON_IMPL(m, "_log_softmax_backward_data", softmax_backward<true>);
  NEURON_IMPL(m, "native_layer_norm", layer_norm);
  NEURON_IMPL(m, "native_layer_norm_backward", layer_norm_backward);
}

}  // namespace
}  // namespace torch_neuronx
