// Activations on our own kernels. They work on a run of memory, whatever the order of dimensions in
// it, and a tensor with gaps is first copied to one: so a function's value depends on the number
// alone, not on where it lies, nor on whether the result is new, in place or given.
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <torch/library.h>

#include "dispatch/foreach.h"
#include "dispatch/host_call.h"
#include "dispatch/native.h"
#include "kernels/pointwise.h"

namespace torch_neuronx {
namespace {

using kernels::UnaryGradOp;
using kernels::UnaryOp;

// What ATen does with dtypes that are not ours (integers, float64, complex numbers).
using Aten = at::Tensor (*)(const at::Tensor&);
using AtenOut = at::Tensor& (*)(at::Tensor&, const at::Tensor&);
using AtenBackward = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

bool ours(const at::Tensor& t) { return kernels::pointwise_supports(t.scalar_type()); }

void run(UnaryOp op, const at::Tensor& x, const at::Tensor& out) {
  kernels::unary(op, x.scalar_type(), x.const_data_ptr(), out.mutable_data_ptr(), x.numel());
}

// The function of a tensor with gaps, or with elements in one place; without them on the host side.
at::Tensor packed(UnaryOp op, const at::Tensor& x) {
  at::Tensor out = x.clone(at::MemoryFormat::Preserve);
  run(op, out, out);
  return out;
}

// For a result of a dense operand's shape, with the strides that ATen's iterator gives it:
// dimensions of size 1 have those of the memory format, not the operand's.
at::Tensor empty_as(const at::Tensor& x) {
  const auto make = [&](at::IntArrayRef strides) {
    return empty_on(x.device().index(), x.sizes(), strides, x.scalar_type());
  };
  if (C10_LIKELY(x.is_contiguous())) return make({});
  if (x.is_contiguous(at::MemoryFormat::ChannelsLast))
    return make(c10::get_channels_last_strides_2d(x.sizes()));
  return make(x.strides());
}

template <UnaryOp kOp, Aten kAten>
at::Tensor unary(const at::Tensor& x) {
  const auto index = x.device().index();
  if (C10_UNLIKELY(!ours(x))) {
    return run_on_host(index, [&](HostArgs& host) { return kAten(host(x)); });
  }
  if (C10_LIKELY(x.is_contiguous() || x.is_non_overlapping_and_dense())) {
    at::Tensor out = empty_as(x);
    run(kOp, x, out);
    return out;
  }
  return run_on_host(index, [&](HostArgs& host) { return packed(kOp, host(x)); });
}

template <UnaryOp kOp, AtenOut kAten>
at::Tensor& unary_out(const at::Tensor& x, at::Tensor& out) {
  TORCH_CHECK(x.device() == out.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              x.device(), " and ", out.device(), "!");
  const auto index = x.device().index();
  if (C10_UNLIKELY(!ours(x))) {
    (void)run_on_host(index, [&](HostArgs& host) {
      at::Tensor to = host.written(out);
      kAten(to, host(x));
      return at::Tensor();
    });
    return out;
  }
  at::assert_no_internal_overlap(out);
  const bool same_place = out.is_same(x);
  if (!same_place) at::assert_no_partial_overlap(out, x);
  if (out.scalar_type() == x.scalar_type() && out.sizes() == x.sizes() &&
      out.strides() == x.strides() && x.is_non_overlapping_and_dense()) {
    run(kOp, x, out);
    mark_written(*out.storage().unsafeGetStorageImpl());
    return out;
  }
  TORCH_CHECK(c10::canCast(x.scalar_type(), out.scalar_type()), "result type ", x.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  (void)run_on_host(index, [&](HostArgs& host) {
    at::Tensor to = host.written(out);
    const at::Tensor value = packed(kOp, host(x));
    at::native::resize_output(to, value.sizes());
    to.copy_(value);
    return at::Tensor();
  });
  return out;
}

template <UnaryOp kOp, AtenOut kAten>
at::Tensor& unary_(at::Tensor& x) {
  return unary_out<kOp, kAten>(x, x);
}

// What the iterator of ATen's elementwise operators allocates for two operands.
at::Tensor result_of(const at::Tensor& a, const at::Tensor& b) {
  auto iterator = at::TensorIteratorConfig()
                      .add_owned_output(at::Tensor())
                      .add_const_input(a)
                      .add_const_input(b)
                      .build();
  return iterator.output();
}
at::Tensor laid_out_as(const at::Tensor& t, const at::Tensor& out) {
  if (t.sizes() == out.sizes() && t.strides() == out.strides()) return t;
  return at::empty_like(out).copy_(t);
}

template <UnaryGradOp kOp>
at::Tensor run(const at::Tensor& grad, const at::Tensor& saved, const at::Tensor& out) {
  kernels::unary_grad(kOp, saved.scalar_type(), grad.const_data_ptr(), saved.const_data_ptr(),
                      out.mutable_data_ptr(), saved.numel());
  return out;
}

template <UnaryGradOp kOp, AtenBackward kAten>
at::Tensor backward(const at::Tensor& grad, const at::Tensor& saved) {
  const auto index = saved.device().index();
  if (ours(saved) && grad.scalar_type() == saved.scalar_type() && grad.device() == saved.device()) {
    if (grad.sizes() == saved.sizes() && grad.strides() == saved.strides() &&
        saved.is_non_overlapping_and_dense()) {
      return run<kOp>(grad, saved, empty_as(saved));
    }
    return run_on_host(index, [&](HostArgs& host) {
      const at::Tensor g = host(grad), s = host(saved);
      const at::Tensor out = result_of(g, s);
      return run<kOp>(laid_out_as(g, out), laid_out_as(s, out), out);
    });
  }
  return run_on_host(index, [&](HostArgs& host) { return kAten(host(grad), host(saved)); });
}

// The gradient in a given tensor: the same numbers, whatever that tensor's strides and type.
template <at::Tensor (*kBackward)(const at::Tensor&, const at::Tensor&)>
at::Tensor& backward_out(const at::Tensor& grad, const at::Tensor& saved, at::Tensor& out) {
  TORCH_CHECK(saved.device() == out.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              saved.device(), " and ", out.device(), "!");
  at::assert_no_internal_overlap(out);
  for (const at::Tensor& operand : {grad, saved}) {
    if (!out.is_same(operand)) at::assert_no_partial_overlap(out, operand);
  }
  const at::Tensor value = kBackward(grad, saved);
  TORCH_CHECK(c10::canCast(value.scalar_type(), out.scalar_type()), "result type ",
              value.scalar_type(), " can't be cast to the desired output type ", out.scalar_type());
  if (at::native::resize_output_check(out, value.sizes())) out.resize_(value.sizes());
  return out.copy_(value);
}

// Gelu comes in two forms.
at::Tensor aten_gelu(const at::Tensor& x) { return at::gelu(x, "none"); }
at::Tensor aten_gelu_tanh(const at::Tensor& x) { return at::gelu(x, "tanh"); }
at::Tensor& aten_gelu_out(at::Tensor& out, const at::Tensor& x) {
  return at::gelu_out(out, x, "none");
}
at::Tensor& aten_gelu_tanh_out(at::Tensor& out, const at::Tensor& x) {
  return at::gelu_out(out, x, "tanh");
}
at::Tensor aten_gelu_backward(const at::Tensor& grad, const at::Tensor& x) {
  return at::gelu_backward(grad, x, "none");
}
at::Tensor aten_gelu_tanh_backward(const at::Tensor& grad, const at::Tensor& x) {
  return at::gelu_backward(grad, x, "tanh");
}
bool by_tanh(std::string_view approximate) {
  TORCH_CHECK(approximate == "none" || approximate == "tanh",
              "approximate argument must be either none or tanh.");
  return approximate == "tanh";
}
at::Tensor gelu(const at::Tensor& x, std::string_view approximate) {
  return by_tanh(approximate) ? unary<UnaryOp::GeluTanh, aten_gelu_tanh>(x)
                              : unary<UnaryOp::Gelu, aten_gelu>(x);
}
at::Tensor& gelu_out(const at::Tensor& x, std::string_view approximate, at::Tensor& out) {
  return by_tanh(approximate) ? unary_out<UnaryOp::GeluTanh, aten_gelu_tanh_out>(x, out)
                              : unary_out<UnaryOp::Gelu, aten_gelu_out>(x, out);
}
at::Tensor& gelu_(at::Tensor& x, std::string_view approximate) {
  return gelu_out(x, approximate, x);
}
at::Tensor gelu_backward(const at::Tensor& grad, const at::Tensor& x,
                         std::string_view approximate) {
  return by_tanh(approximate) ? backward<UnaryGradOp::GeluTanh, aten_gelu_tanh_backward>(grad, x)
                              : backward<UnaryGradOp::Gelu, aten_gelu_backward>(grad, x);
}

at::Tensor& gelu_backward_out(const at::Tensor& grad, const at::Tensor& x,
                              std::string_view approximate, at::Tensor& out) {
  return by_tanh(approximate)
             ? backward_out<backward<UnaryGradOp::GeluTanh, aten_gelu_tanh_backward>>(grad, x, out)
             : backward_out<backward<UnaryGradOp::Gelu, aten_gelu_backward>>(grad, x, out);
}

constexpr auto silu = unary<UnaryOp::Silu, at::silu>;
constexpr auto silu_out = unary_out<UnaryOp::Silu, at::silu_out>;
constexpr auto silu_ = unary_<UnaryOp::Silu, at::silu_out>;
constexpr auto tanh = unary<UnaryOp::Tanh, at::tanh>;
constexpr auto tanh_out = unary_out<UnaryOp::Tanh, at::tanh_out>;
constexpr auto tanh_ = unary_<UnaryOp::Tanh, at::tanh_out>;
constexpr auto sigmoid = unary<UnaryOp::Sigmoid, at::sigmoid>;
constexpr auto sigmoid_out = unary_out<UnaryOp::Sigmoid, at::sigmoid_out>;
constexpr auto sigmoid_ = unary_<UnaryOp::Sigmoid, at::sigmoid_out>;
constexpr auto exp = unary<UnaryOp::Exp, at::exp>;
constexpr auto exp_out = unary_out<UnaryOp::Exp, at::exp_out>;
constexpr auto exp_ = unary_<UnaryOp::Exp, at::exp_out>;
constexpr auto sqrt = unary<UnaryOp::Sqrt, at::sqrt>;
constexpr auto sqrt_out = unary_out<UnaryOp::Sqrt, at::sqrt_out>;
constexpr auto sqrt_ = unary_<UnaryOp::Sqrt, at::sqrt_out>;
constexpr auto rsqrt = unary<UnaryOp::Rsqrt, at::rsqrt>;
constexpr auto rsqrt_out = unary_out<UnaryOp::Rsqrt, at::rsqrt_out>;
constexpr auto rsqrt_ = unary_<UnaryOp::Rsqrt, at::rsqrt_out>;
constexpr auto silu_backward = backward<UnaryGradOp::Silu, at::silu_backward>;
constexpr auto tanh_backward = backward<UnaryGradOp::Tanh, at::tanh_backward>;
constexpr auto sigmoid_backward = backward<UnaryGradOp::Sigmoid, at::sigmoid_backward>;
constexpr auto silu_backward_out = backward_out<silu_backward>;
constexpr auto tanh_backward_out = backward_out<tanh_backward>;
constexpr auto sigmoid_backward_out = backward_out<sigmoid_backward>;

// Lists of tensors, one after the other.
template <at::Tensor (*kFn)(const at::Tensor&)>
std::vector<at::Tensor> each(at::TensorList list) {
  std::vector<at::Tensor> results;
  results.reserve(list.size());
  for (const at::Tensor& t : list) results.push_back(kFn(t));
  return results;
}
template <at::Tensor& (*kFn)(at::Tensor&)>
void each_(at::TensorList list) {
  count_writes(list);
  for (at::Tensor t : list) kFn(t);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "gelu", gelu);
  NEURON_IMPL(m, "gelu_", gelu_);
  NEURON_IMPL(m, "gelu.out", gelu_out);
  NEURON_IMPL(m, "gelu_backward", gelu_backward);
  NEURON_IMPL(m, "gelu_backward.grad_input", gelu_backward_out);
  NEURON_IMPL(m, "silu", *silu);
  NEURON_IMPL(m, "silu_", *silu_);
  NEURON_IMPL(m, "silu.out", *silu_out);
  NEURON_IMPL(m, "silu_backward", *silu_backward);
  NEURON_IMPL(m, "silu_backward.grad_input", *silu_backward_out);
  NEURON_IMPL(m, "tanh", *tanh);
  NEURON_IMPL(m, "tanh_", *tanh_);
  NEURON_IMPL(m, "tanh.out", *tanh_out);
  NEURON_IMPL(m, "tanh_backward", *tanh_backward);
  NEURON_IMPL(m, "tanh_backward.grad_input", *tanh_backward_out);
  NEURON_IMPL(m, "sigmoid", *sigmoid);
  NEURON_IMPL(m, "sigmoid_", *sigmoid_);
  NEURON_IMPL(m, "sigmoid.out", *sigmoid_out);
  NEURON_IMPL(m, "sigmoid_backward", *sigmoid_backward);
  NEURON_IMPL(m, "sigmoid_backward.grad_input", *sigmoid_backward_out);
  NEURON_IMPL(m, "exp", *exp);
  NEURON_IMPL(m, "exp_", *exp_);
  NEURON_IMPL(m, "exp.out", *exp_out);
  NEURON_IMPL(m, "sqrt", *sqrt);
  NEURON_IMPL(m, "sqrt_", *sqrt_);
  NEURON_IMPL(m, "sqrt.out", *sqrt_out);
  NEURON_IMPL(m, "rsqrt", *rsqrt);
  NEURON_IMPL(m, "rsqrt_", *rsqrt_);
  NEURON_IMPL(m, "rsqrt.out", *rsqrt_out);
  NEURON_IMPL(m, "_foreach_tanh", each<*tanh>);
  NEURON_IMPL(m, "_foreach_tanh_", each_<*tanh_>);
  NEURON_IMPL(m, "_foreach_sigmoid", each<*sigmoid>);
  NEURON_IMPL(m, "_foreach_sigmoid_", each_<*sigmoid_>);
  NEURON_IMPL(m, "_foreach_exp", each<*exp>);
  NEURON_IMPL(m, "_foreach_exp_", each_<*exp_>);
}

}  // namespace
}  // namespace torch_neuronx
