#include "attention/aten_attention.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_permuted.h>

#include <cmath>

#include "attention/blocks.h"
#include "dispatch/trusting.h"

namespace torch_neuronx::attention {
namespace {

bool has_contiguous_rows(const at::Tensor& t) { return t.stride(-1) == 1 || t.size(-1) == 1; }

Strides strides_of(const at::Tensor& t) { return {t.stride(0), t.stride(1), t.stride(2)}; }
Input input(const at::Tensor& t) { return {t.const_data_ptr(), strides_of(t)}; }
Output output(const at::Tensor& t) { return {t.mutable_data_ptr(), strides_of(t)}; }

std::optional<Mask> mask_of(const at::Tensor& mask, const Problem& p) {
  if (!mask.defined()) return Mask{};
  const auto dtype = mask.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kBool) {
    return {};
  }
  const at::DimVector sizes{p.batch, p.heads, p.queries, p.keys};
  if (!at::is_expandable_to(mask.sizes(), sizes)) return {};
  const at::Tensor full = mask.expand(sizes);
  return Mask{full.const_data_ptr(), dtype,          full.stride(0),
              full.stride(1),        full.stride(2), full.stride(3)};
}

// Uninitialised, with the dimensions in the order in which those of `like` follow each other.
at::Tensor empty_in_order(const at::Tensor& like, int64_t width) {
  if (width == like.size(3)) return at::empty_like(like);
  at::DimVector order{0, 1, 2, 3};
  std::stable_sort(order.begin(), order.begin() + 3,
                   [&](int64_t a, int64_t b) { return like.stride(a) > like.stride(b); });
  return at::empty_permuted({like.size(0), like.size(1), like.size(2), width}, order,
                            like.options());
}

float scale_of(std::optional<double> scale, int64_t width) {
  return static_cast<float>(scale.value_or(1.0 / std::sqrt(static_cast<double>(width))));
}

}  // namespace

at::Tensor with_contiguous_rows(const at::Tensor& t) {
  return has_contiguous_rows(t) ? t : t.contiguous();
}

std::optional<Problem> problem_of(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& mask, bool causal,
                                  std::optional<double> scale) {
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return {};
  if (key.scalar_type() != query.scalar_type() || value.scalar_type() != query.scalar_type() ||
      key.size(0) != query.size(0) || value.size(0) != query.size(0) ||
      key.size(1) != value.size(1) || key.size(2) != value.size(2) ||
      key.size(3) != query.size(3) || !has_contiguous_rows(query) || !has_contiguous_rows(key) ||
      !has_contiguous_rows(value)) {
    return {};
  }
  Problem p;
  p.dtype = query.scalar_type();
  std::tie(p.batch, p.heads, p.queries, p.width) =
      std::tuple(query.size(0), query.size(1), query.size(2), query.size(3));
  std::tie(p.kv_heads, p.keys, p.value_width) = std::tuple(key.size(1), key.size(2), value.size(3));
  p.query = input(query);
  p.key = input(key);
  p.value = input(value);
  p.causal = causal;
  p.scale = scale_of(scale, p.width);
  if (!supported(p)) return {};
  const auto found = mask_of(mask, p);
  if (!found) return {};
  p.mask = *found;
  return p;
}

std::optional<Problem> paged_problem_of(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value, const int32_t* table, int64_t keys,
                                        bool causal, std::optional<double> scale) {
  Problem p;
  p.dtype = query.scalar_type();
  p.batch = 1;
  std::tie(p.heads, p.queries, p.width) = std::tuple(query.size(1), query.size(2), query.size(3));
  std::tie(p.kv_heads, p.keys, p.value_width) = std::tuple(key.size(1), keys, value.size(3));
  p.query = input(query);
  p.key = {key.const_data_ptr(), {0, key.stride(1), key.stride(2)}};
  p.value = {value.const_data_ptr(), {0, value.stride(1), value.stride(2)}};
  p.pages = {table, key.size(2), key.stride(0), value.stride(0)};
  p.causal = causal;
  p.scale = scale_of(scale, p.width);
  if (!supported(p)) return {};
  return p;
}

bool faster_than_aten(const Problem& p) {
  if (p.width != p.value_width || p.heads != p.kv_heads) return true;  // ATen's takes no others
  // Rearranging long rows of a handful of keys is most of our work; MKL multiplies them as they
  // are.
  return p.dtype != at::kFloat || p.keys >= 8 || p.width <= 32 || p.queries <= 8;
}

std::tuple<at::Tensor, at::Tensor> forward(const Problem& p, const at::Tensor& query) {
  at::Tensor out = empty_in_order(query, p.value_width);
  at::Tensor logsumexp =
      at::empty({p.batch, p.heads, p.queries}, query.options().dtype(at::kFloat));
  forward(p, output(out), {logsumexp.mutable_data_ptr<float>(), strides_of(logsumexp)});
  return {out, logsumexp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(
    const Problem& p, const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp) {
  const at::DimVector sizes{p.batch, p.heads, p.queries, p.value_width};
  TORCH_CHECK(grad.sizes() == sizes && out.sizes() == sizes && grad.scalar_type() == p.dtype &&
                  out.scalar_type() == p.dtype,
              "attention: the result and its gradient must be ", p.dtype, " of shape ", sizes,
              ", got ", out.scalar_type(), " ", out.sizes(), " and ", grad.scalar_type(), " ",
              grad.sizes());
  TORCH_CHECK(logsumexp.sizes() == at::IntArrayRef(sizes).slice(0, 3) &&
                  logsumexp.scalar_type() == at::kFloat,
              "attention: the log-sum-exp must be float32 of shape ",
              at::IntArrayRef(sizes).slice(0, 3), ", got ", logsumexp.scalar_type(), " ",
              logsumexp.sizes());
  const at::Tensor g = with_contiguous_rows(grad), o = with_contiguous_rows(out);
  auto results = std::tuple(at::empty_like(query), at::empty_like(key), at::empty_like(value));
  const auto& [grad_query, grad_key, grad_value] = results;
  backward(p, {input(g),
               input(o),
               {logsumexp.const_data_ptr<float>(), strides_of(logsumexp)},
               output(grad_query),
               output(grad_key),
               output(grad_value)});
  return results;
}

std::tuple<at::Tensor, at::Tensor> aten_forward(const at::Tensor& query, const at::Tensor& key,
                                                const at::Tensor& value, bool causal,
                                                const std::optional<at::Tensor>& mask,
                                                std::optional<double> scale) {
  const auto a = checked_arguments("aten::_scaled_dot_product_flash_attention_for_cpu",
                                   {query, key, value, 0.0, causal, mask, scale});
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), 0.0, causal, mask, scale);
  // In the order of forward() above: PyTorch's heads are the last dimension. `contiguous` would
  // leave the strides of what is in both orders.
  return {out, at::empty(logsumexp.sizes(), logsumexp.options()).copy_(logsumexp)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> aten_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& logsumexp, bool causal,
    const std::optional<at::Tensor>& mask, std::optional<double> scale) {
  const auto a =
      checked_arguments("aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                        {grad, query, key, value, out, logsumexp, 0.0, causal, mask, scale});
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[3].toTensor(), a[4].toTensor(),
      a[5].toTensor(), 0.0, causal, mask, scale);
}

}  // namespace torch_neuronx::attention
