// Fused attention: our kernels, or where they do not take the operands PyTorch's flash kernel for
// CPUs. Both are reached through the "overrideable" operator that PyTorch keeps for devices like
// this one.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/library.h>

#include "attention/aten_attention.h"
#include "dispatch/attention_backward.h"
#include "dispatch/host_call.h"
#include "dispatch/native.h"

namespace torch_neuronx {
namespace {

// What our kernels take beyond PyTorch's: rows of values of another width than those of keys.
bool takes_other_width(const sdp::sdp_params& params) {
  const bool usable =
      sdp::check_runtime_disabled_flash(params, false) && sdp::check_nested_tensor(params, false) &&
      sdp::check_for_dropout(params, false) && sdp::check_tensor_shapes(params, false) &&
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

int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool enable_gqa) {
  const bool mask_needs_grad = mask.has_value() && mask->requires_grad();
  if (mask_needs_grad) return static_cast<int64_t>(sdp::SDPBackend::math);
  const auto choice = at::native::_fused_sdp_choice_stub(at::kCPU, query, key, value, mask, dropout,
                                                         causal, scale, enable_gqa);
  const bool fused = choice == static_cast<int64_t>(sdp::SDPBackend::flash_attention) ||
                     (choice == static_cast<int64_t>(sdp::SDPBackend::math) &&
                      takes_other_width({query, key, value, mask, dropout, causal, enable_gqa}));
  return fused ? static_cast<int64_t>(sdp::SDPBackend::overrideable) : choice;
}

using AttentionResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
                                   c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor undefined_or(const std::optional<at::Tensor>& t) { return t ? *t : at::Tensor(); }

AttentionResult attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>& bias, double dropout, bool causal, bool,
                          std::optional<double> scale) {
  TORCH_CHECK(dropout == 0.0, "fused attention on neuron has no dropout; PyTorch's math path does");
  auto [out, logsumexp] = run_on_host(query.device().index(), [&](HostArgs& host) {
    const at::Tensor q = host(query), k = host(key), v = host(value);
    const std::optional<at::Tensor> mask = host(bias);
    const auto problem = attention::problem_of(q, k, v, undefined_or(mask), causal, scale);
    if (problem && attention::faster_than_aten(*problem)) return attention::forward(*problem, q);
    return at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, mask, scale);
  });
  return {out,          logsumexp,         at::Tensor(),
          at::Tensor(), query.sym_size(2), key.sym_size(2),
          at::Tensor(), at::Tensor(),      at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> mask, const at::Tensor& out,
    const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt,
    double dropout, bool causal, const at::Tensor&, const at::Tensor&,
    std::optional<double> scale) {
  TORCH_CHECK(!mask[3],
              "fused attention on neuron has no gradient of the mask; PyTorch's math path does");
  auto [q, k, v] = run_on_host(query.device().index(), [&](HostArgs& host) {
    const at::Tensor g = host(grad), hq = host(query), hk = host(key), hv = host(value);
    const at::Tensor hbias = bias.defined() ? host(bias) : bias;
    const at::Tensor hout = host(out), hlse = host(logsumexp);
    const auto problem = attention::problem_of(hq, hk, hv, hbias, causal, scale);
    if (problem && attention::faster_than_aten(*problem)) {
      return attention::backward(*problem, g, hq, hk, hv, hout, hlse);
    }
    if (!hbias.defined()) {
      if (auto grads = attention_backward_by_scores(g, hq, hk, hv, causal, scale)) return *grads;
    }
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(
        g, hq, hk, hv, hout, hlse, dropout, causal,
        hbias.defined() ? std::optional(hbias) : std::nullopt, scale);
  });
  return {q, k, v, at::Tensor()};
}

[[maybe_unused]] const bool g_choice_registered = [] {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose_attention);
  return true;
}();

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "_scaled_dot_product_fused_attention_overrideable", attention);
  NEURON_IMPL(m, "_scaled_dot_product_fused_attention_overrideable_backward", attention_backward);
  m.impl("_fused_sdp_choice", TORCH_FN(choose_attention));
}

}  // namespace
}  // namespace torch_neuronx
