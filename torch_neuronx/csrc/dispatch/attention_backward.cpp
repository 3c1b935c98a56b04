#include "dispatch/attention_backward.h"

#include <ATen/Parallel.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>

#include "gemm/aten_gemm.h"
#include "kernels/norm.h"

namespace torch_neuronx {
namespace {

// Where ATen's flash kernel wins again (measured: 48 heads of 256 x 256 are even).
constexpr int64_t kMaxScoreBytes = 16 << 20;

at::Tensor batched_float(const at::Tensor& t) {
  return t.to(at::kFloat).reshape({t.size(0) * t.size(1), t.size(2), t.size(3)});
}

// alpha * a @ b, batched, on our kernels or ATen's.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, double alpha) {
  at::Tensor out = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  if (!gemm::try_baddbmm(out, {}, a, b, 0, alpha)) at::baddbmm_out(out, out, a, b, 0, alpha);
  return out;
}

void hide_future(const at::Tensor& scores) {
  const int64_t queries = scores.size(1), keys = scores.size(2);
  auto* data = scores.mutable_data_ptr<float>();
  at::parallel_for(0, scores.size(0) * queries, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* first = data + row * keys;
      std::fill(first + std::min(keys, row % queries + 1), first + keys,
                -std::numeric_limits<float>::infinity());
    }
  });
}

}  // namespace

std::optional<std::tuple<at::Tensor, at::Tensor, at::Tensor>> attention_backward_by_scores(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    bool causal, std::optional<double> scale) {
  const auto dtype = query.scalar_type();
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return {};
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return {};
  if (query.size(1) != key.size(1) || query.size(1) != value.size(1)) return {};
  const int64_t batch = query.size(0) * query.size(1), queries = query.size(2), keys = key.size(2);
  if (batch == 0 || queries == 0 || keys == 0 || query.size(3) == 0) return {};
  if (batch * queries * keys * 4 > kMaxScoreBytes) return {};

  const at::Tensor q = batched_float(query), k = batched_float(key), v = batched_float(value);
  const at::Tensor g = batched_float(grad);
  const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
  at::Tensor p = product(q, k.transpose(1, 2), factor);
  if (causal) hide_future(p);
  auto* p_data = p.mutable_data_ptr<float>();
  kernels::softmax(at::kFloat, p_data, p_data, batch * queries, keys, /*log=*/false);
  const at::Tensor grad_v = product(p.transpose(1, 2), g, 1.0);
  at::Tensor ds = product(g, v.transpose(1, 2), 1.0);
  auto* ds_data = ds.mutable_data_ptr<float>();
  kernels::softmax_backward(at::kFloat, ds_data, p_data, ds_data, batch * queries, keys,
                            /*log=*/false);
  const at::Tensor grad_q = product(ds, k, factor);
  const at::Tensor grad_k = product(ds.transpose(1, 2), q, factor);
  const auto shaped = [&](const at::Tensor& t, const at::Tensor& like) {
    return t.view(like.sizes()).to(dtype);
  };
  return std::make_tuple(shaped(grad_q, query), shaped(grad_k, key), shaped(grad_v, value));
}

}  // namespace torch_neuronx
