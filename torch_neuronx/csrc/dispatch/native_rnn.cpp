// The fused recurrent cells that PyTorch asks accelerators for, written with ATen's CPU operators,
// and PyTorch's networks of them, whose arguments are compared first.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "dispatch/host_call.h"
#include "dispatch/native.h"
#include "dispatch/trusting.h"

namespace torch_neuronx {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor plus(const at::Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}
bool is_given(const OptionalTensor& t) { return t.has_value() && t->defined(); }

// The columns of [N, n H] in n parts.
std::vector<at::Tensor> parts(const at::Tensor& t, int64_t n) {
  TORCH_CHECK(t.dim() == 2 && t.size(1) > 0 && t.size(1) % n == 0,
              "recurrent cell: expected [batch, ", n, " * hidden], got ", t.sizes());
  return t.chunk(n, 1);
}

// Gates i, f, g, o; the workspace [N, 4 H] keeps them after their activations.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates,
                                                         const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx,
                                                         const OptionalTensor& input_bias,
                                                         const OptionalTensor& hidden_bias) {
  return run_on_host(cx.device().index(), [&](HostArgs& host) {
    const at::Tensor gates =
        plus(plus(host(input_gates), host(input_bias)) + host(hidden_gates), host(hidden_bias));
    const auto part = parts(gates, 4);
    const at::Tensor i = part[0].sigmoid(), f = part[1].sigmoid(), g = part[2].tanh(),
                     o = part[3].sigmoid();
    const at::Tensor cy = f * host(cx) + i * g;
    return std::make_tuple(o * cy.tanh(), cy, at::cat({i, f, g, o}, 1));
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const at::Tensor& cx,
    const at::Tensor& cy, const at::Tensor& workspace, bool has_bias) {
  if (!is_given(grad_hy) && !is_given(grad_cy)) return {};
  return run_on_host(cx.device().index(), [&](HostArgs& host) {
    const auto part = parts(host(workspace), 4);
    const at::Tensor &i = part[0], &f = part[1], &g = part[2], &o = part[3];
    const at::Tensor tanh_cy = host(cy).tanh();
    at::Tensor grad_c = is_given(grad_cy) ? host(*grad_cy) : at::Tensor();
    at::Tensor grad_o = at::zeros_like(o);
    if (is_given(grad_hy)) {
      const at::Tensor gh = host(*grad_hy);
      grad_o = gh * tanh_cy * o * (1 - o);
      const at::Tensor through = gh * o * (1 - tanh_cy * tanh_cy);
      grad_c = grad_c.defined() ? grad_c + through : through;
    }
    const at::Tensor gates = at::cat({grad_c * g * i * (1 - i), grad_c * host(cx) * f * (1 - f),
                                      grad_c * i * (1 - g * g), grad_o},
                                     1);
    return std::make_tuple(gates, grad_c * f, has_bias ? gates.sum(0) : at::Tensor());
  });
}

// Gates r, z, n; the workspace [N, 5 H] keeps r, z, n, the old state and the hidden part of n.
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates, const at::Tensor& hx,
                                            const OptionalTensor& input_bias,
                                            const OptionalTensor& hidden_bias) {
  return run_on_host(hx.device().index(), [&](HostArgs& host) {
    const auto in = parts(plus(host(input_gates), host(input_bias)), 3);
    const auto hidden = parts(plus(host(hidden_gates), host(hidden_bias)), 3);
    const at::Tensor state = host(hx);
    const at::Tensor r = (in[0] + hidden[0]).sigmoid(), z = (in[1] + hidden[1]).sigmoid();
    const at::Tensor n = (in[2] + r * hidden[2]).tanh();
    return std::make_tuple((state - n) * z + n, at::cat({r, z, n, state, hidden[2]}, 1));
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  return run_on_host(grad_hy.device().index(), [&](HostArgs& host) {
    const at::Tensor grad = host(grad_hy);
    const auto part = parts(host(workspace), 5);
    const at::Tensor &r = part[0], &z = part[1], &n = part[2], &state = part[3],
                     &hidden_n = part[4];
    const at::Tensor grad_n = grad * (1 - z) * (1 - n * n);
    const at::Tensor grad_z = grad * (state - n) * z * (1 - z);
    const at::Tensor grad_r = grad_n * hidden_n * r * (1 - r);
    const at::Tensor input_gates = at::cat({grad_r, grad_z, grad_n}, 1);
    const at::Tensor hidden_gates = at::cat({grad_r, grad_z, grad_n * r}, 1);
    return std::make_tuple(input_gates, hidden_gates, grad * z,
                           has_bias ? input_gates.sum(0) : at::Tensor(),
                           has_bias ? hidden_gates.sum(0) : at::Tensor());
  });
}

// PyTorch's own function, behind a look at what it takes as given.
template <class Function, Function* function>
void demanding(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static const auto kernel = c10::KernelFunction::makeFromUnboxedFunction(
      c10::CompileTimeFunctionPointer<Function, function>());
  const StandIns stand_ins = meet(*demands_of(op), op, *stack);
  kernel.callBoxed(op, keys, stack);
}

template <class Function, Function* function>
torch::CppFunction with_demands() {
  return torch::CppFunction::makeFromBoxedFunction<&demanding<Function, function>>();
}

using Lstm = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, at::TensorList,
                                                            at::TensorList, bool, int64_t, double,
                                                            bool, bool, bool);
using PackedLstm = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&,
                                                                  const at::Tensor&, at::TensorList,
                                                                  at::TensorList, bool, int64_t,
                                                                  double, bool, bool);
using Packed = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                  const at::Tensor&, at::TensorList, bool, int64_t,
                                                  double, bool, bool);

void register_networks(torch::Library& m) {
  m.impl("lstm.input", with_demands<Lstm, at::native::lstm>());
  m.impl("lstm.data", with_demands<PackedLstm, at::native::lstm>());
  m.impl("gru.data", with_demands<Packed, at::native::gru>());
  m.impl("rnn_tanh.data", with_demands<Packed, at::native::rnn_tanh>());
  m.impl("rnn_relu.data", with_demands<Packed, at::native::rnn_relu>());
}

// They are made of other operators, whose derivatives autograd takes.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_networks(m); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_networks(m);
  NEURON_IMPL(m, "_thnn_fused_lstm_cell", lstm_cell);
  NEURON_IMPL(m, "_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  NEURON_IMPL(m, "_thnn_fused_gru_cell", gru_cell);
  NEURON_IMPL(m, "_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace
}  // namespace torch_neuronx
