// Fused attention: our kernels, or where they do not take the operands PyTorch's flash kernel for
// CPUs. Both are reached through the "overrideable" operator that PyTorch keeps for devices like
// this one, and through the "memory efficient" operator, because PyTorch's DTensor can shard that
// one and its ring attention run it in steps; they don't know the first.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>

#include "attention/aten_attention.h"
#include "dispatch/attention_backward.h"
#include "dispatch/host_call.h"
#include "dispatch/native.h"

namespace torch_neuronx {
namespace {

using attention::with_contiguous_rows;
using sdp::SDPBackend;

// What PyTorch's flash kernel for CPUs takes, whichever implementations the caller allows.
bool takes_equal_width(const sdp::sdp_params& params) {
  return sdp::check_nested_tensor(params, false) && sdp::check_for_dropout(params, false) &&
         sdp::check_tensor_shapes(params, false) &&
         sdp::check_batch_size_and_num_heads_dense<true>(params, false) &&
         sdp::check_attn_mask_shape(params, false) &&
         params.query.sym_size(-1) == params.key.sym_size(-1) &&
         params.query.sym_size(-1) == params.value.sym_size(-1) &&
         sdp::check_nonzero_sequence_lengths_dense(params, false) &&
         sdp::check_last_dim_stride_equals_1_dense<false>(params, false) &&
         sdp::check_tensor_dtype(
             params, std::array{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}, false);
}

// What our kernels take beyond PyTorch's: rows of values of another width than those of keys.
bool takes_other_width(const sdp::sdp_params& params) {
  const bool usable = sdp::check_nested_tensor(params, false) &&
                      sdp::check_for_dropout(params, false) &&
                      sdp::check_tensor_shapes(params, false) &&
                      sdp::check_batch_size_and_num_heads_dense<true>(params, false) &&
                      sdp::check_attn_mask_shape(params, false) &&
                      sdp::check_nonzero_sequence_lengths_dense(params, false) &&
                      sdp::check_last_dim_stride_equals_1_dense<false>(params, false);
  if (!usable || params.query.dtype() != params.key.dtype() ||
      params.query.dtype() != params.value.dtype() ||
      params.query.sym_size(-1) != params.key.sym_size(-1)) {
    return false;
  }
  const auto size = [](const at::Tensor& t, int64_t dim) {
    return t.sym_size(dim).guard_int(__FILE__, __LINE__);
  };
  attention::Problem p;
  p.dtype = params.query.scalar_type();
  p.heads = size(params.query, 1);
  p.kv_heads = size(params.key, 1);
  p.keys = size(params.key, 2);
  p.width = size(params.key, 3);
  p.value_width = size(params.value, 3);
  return size(params.value, 1) == p.kv_heads && attention::supported(p);
}

// True for PyTorch's DTensor. Other wrappers of tensors, such as those of the compiler, take the
// same operator as what they wrap.
bool is_dtensor(const at::Tensor& t) {
  if (!t.key_set().has(c10::DispatchKey::Python)) return false;
  const py::gil_scoped_acquire gil;
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(t));
  return py::type::of(object).attr("__name__").cast<std::string>() == "DTensor";
}

SDPBackend choose(const sdp::sdp_params& params) {
  const auto& allowed = at::globalContext();
  const bool mask = params.attn_mask.has_value();
  const bool mask_needs_grad = mask && params.attn_mask->requires_grad();
  // PyTorch states that fused operators keep a log-sum-exp in float32, which float64 is too exact
  // for; no other device has them for it either.
  const bool wide = params.query.scalar_type() == at::kDouble;
  if (!mask_needs_grad && !wide && (takes_equal_width(params) || takes_other_width(params))) {
    const bool efficient = allowed.userEnabledMemEfficientSDP();
    // What PyTorch would call for "flash" on this device is its operator for cpu, so who allows
    // that alone gets the same kernel under the device's own name.
    const bool fused = allowed.userEnabledOverrideableSDP() || allowed.userEnabledFlashSDP();
    if (fused && !is_dtensor(params.query)) return SDPBackend::overrideable;
    if (fused || efficient) return SDPBackend::efficient_attention;
  }
  return allowed.userEnabledMathSDP() ? SDPBackend::math : SDPBackend::error;
}

// PyTorch's math path divides by the key's heads, which ends the process if there are none. (With
// an empty value it gives zeros before.) It asks for a choice first.
void refuse_key_without_heads(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, bool enable_gqa) {
  if (!enable_gqa || std::min({query.dim(), key.dim(), value.dim()}) < 3) return;
  TORCH_CHECK(key.sym_size(-3) != 0 || value.sym_numel() == 0,
              "scaled_dot_product_attention: with enable_gqa the heads of the query (",
              query.sym_size(-3), ") must be a multiple of those of the key, which has none");
}

int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double>, bool enable_gqa) {
  refuse_key_without_heads(query, key, value, enable_gqa);
  return static_cast<int64_t>(choose({query, key, value, mask, dropout, causal, enable_gqa}));
}

at::Tensor undefined_or(const std::optional<at::Tensor>& t) { return t ? *t : at::Tensor(); }

// The result and its log-sum-exp [batch, heads, queries].
std::tuple<at::Tensor, at::Tensor> fused(const at::Tensor& query, const at::Tensor& key,
                                         const at::Tensor& value,
                                         const std::optional<at::Tensor>& bias, double dropout,
                                         bool causal, std::optional<double> scale) {
  TORCH_CHECK(dropout == 0.0, "fused attention on neuron has no dropout; PyTorch's math path does");
  return run_on_host(query.device().index(), [&](HostArgs& host) {
    const at::Tensor q = with_contiguous_rows(host(query)), k = with_contiguous_rows(host(key));
    const at::Tensor v = with_contiguous_rows(host(value));
    const std::optional<at::Tensor> mask = host(bias);
    const auto problem = attention::problem_of(q, k, v, undefined_or(mask), causal, scale);
    if (problem && attention::faster_than_aten(*problem)) {
      return attention::forward(*problem, q);
    }
    return attention::aten_forward(q, k, v, causal, mask, scale);
  });
}

struct Backward {
  const at::Tensor &grad, &query, &key, &value, &bias, &out, &logsumexp;
  double dropout;
  bool causal;
  std::optional<double> scale;
  // `out` and `logsumexp` may be those of more keys than `key` has: a step of ring attention.
  bool partial;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_backward(const Backward& b) {
  return run_on_host(b.query.device().index(), [&](HostArgs& host) {
    const at::Tensor g = with_contiguous_rows(host(b.grad)),
                     hq = with_contiguous_rows(host(b.query));
    const at::Tensor hk = with_contiguous_rows(host(b.key)),
                     hv = with_contiguous_rows(host(b.value));
    // An operator whose bias is no option is given an empty one instead.
    const bool biased = b.bias.defined() && !(b.bias.dim() == 1 && b.bias.numel() == 0);
    const at::Tensor hbias = biased ? host(b.bias) : at::Tensor();
    const at::Tensor hout = with_contiguous_rows(host(b.out)), hlse = host(b.logsumexp);
    const auto problem = attention::problem_of(hq, hk, hv, hbias, b.causal, b.scale);
    if (problem && attention::faster_than_aten(*problem)) {
      return attention::backward(*problem, g, hq, hk, hv, hout, hlse);
    }
    if (!hbias.defined() && !b.partial) {
      if (auto grads = attention_backward_by_scores(g, hq, hk, hv, b.causal, b.scale)) {
        return *grads;
      }
    }
    return attention::aten_backward(g, hq, hk, hv, hout, hlse, b.causal,
                                    hbias.defined() ? std::optional(hbias) : std::nullopt, b.scale);
  });
}

void refuse_gradient_of_mask(bool wanted) {
  TORCH_CHECK(!wanted,
              "fused attention on neuron has no gradient of the mask; PyTorch's math path does");
}

// Output, log-sum-exp, then what kernels of other devices keep of their dropout and sequences.
using AttentionResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
                                   c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;

AttentionResult attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>& bias, double dropout, bool causal, bool,
                          std::optional<double> scale) {
  auto [out, logsumexp] = fused(query, key, value, bias, dropout, causal, scale);
  // Nobody reads the states of a generator. AOTAutograd's graphs keep them, as fakes have them.
  const auto state = query.options().dtype(at::kLong);
  return {out,
          logsumexp,
          at::Tensor(),
          at::Tensor(),
          query.sym_size(2),
          key.sym_size(2),
          at::empty({}, state),
          at::empty({}, state),
          at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> mask, const at::Tensor& out,
    const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt,
    double dropout, bool causal, const at::Tensor&, const at::Tensor&,
    std::optional<double> scale) {
  refuse_gradient_of_mask(mask[3]);
  auto [q, k, v] = fused_backward(
      {grad, query, key, value, bias, out, logsumexp, dropout, causal, scale, false});
  return {q, k, v, at::Tensor()};
}

// DTensor expects tensors in these places.
at::Tensor unused(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::zeros(sizes, like.options().dtype(at::kLong));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& bias, bool, double dropout, bool causal,
    std::optional<double> scale) {
  auto [out, logsumexp] = fused(query, key, value, bias, dropout, causal, scale);
  return {out, logsumexp, unused(query, {}), unused(query, {})};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor&,
    const at::Tensor&, double dropout, std::array<bool, 4> mask, bool causal,
    std::optional<double> scale) {
  refuse_gradient_of_mask(mask[3]);
  auto [q, k, v] = fused_backward(
      {grad, query, key, value, bias, out, logsumexp, dropout, causal, scale, /*partial=*/true});
  return {q, k, v, at::Tensor()};
}

[[maybe_unused]] const bool g_choice_registered = [] {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose_attention);
  return true;
}();

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "_scaled_dot_product_fused_attention_overrideable", attention);
  NEURON_IMPL(m, "_scaled_dot_product_fused_attention_overrideable_backward", attention_backward);
  NEURON_IMPL(m, "_scaled_dot_product_efficient_attention", efficient_attention);
  NEURON_IMPL(m, "_scaled_dot_product_efficient_attention_backward", efficient_attention_backward);
  m.impl("_fused_sdp_choice", TORCH_FN(choose_attention));
}

}  // namespace
}  // namespace torch_neuronx
