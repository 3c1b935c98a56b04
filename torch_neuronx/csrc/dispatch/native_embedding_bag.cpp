// Sums, means and maxima of bags of rows, by ATen's CPU kernels. What these keep for the gradient
// has shapes of their own (empty where the fast path needs none). PyTorch's fake tensors say of
// every other device what CUDA's kernels keep, and compiled programs have room for that, so it is
// what this device returns.
#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/_embedding_bag_forward_only.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "dispatch/host_call.h"
#include "dispatch/native.h"
#include "dispatch/trusting.h"

namespace torch_neuronx {
namespace {

constexpr int64_t kMax = 2;

using Bags = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;

// For each index the bag that it is in: how many bags have begun there, less one.
at::Tensor bag_of_each(const at::Tensor& indices, const at::Tensor& offsets) {
  const int64_t count = indices.size(0);
  // An offset may be that of the end.
  const at::Tensor begun = at::zeros({count + 1}, offsets.options());
  begun.index_add_(0, offsets, at::ones_like(offsets));
  return begun.narrow(0, 0, count).cumsum(0).sub_(1);
}

template <const char* const& Name, auto Kernel>
Bags bags(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
          bool scale_grad_by_freq, int64_t mode, bool sparse, const OptionalTensor& weights,
          bool include_last_offset, int64_t padding_idx) {
  return run_on_host(weight.device().index(), [&](HostArgs& host) {
    const auto given =
        checked_arguments(Name, {host(weight), host(indices), host(offsets), scale_grad_by_freq,
                                 mode, sparse, host(weights), include_last_offset, padding_idx});
    const at::Tensor &i = given[1].toTensor(), &o = given[2].toTensor();
    auto [out, bag_of, size, largest] =
        Kernel(given[0].toTensor(), i, o, scale_grad_by_freq, mode, sparse,
               given[6].toOptional<at::Tensor>(), include_last_offset, padding_idx);
    if (bag_of.numel() != i.numel()) bag_of = bag_of_each(i, o);
    const at::Tensor sizes = at::zeros(o.sizes(), i.options());
    sizes.narrow(0, 0, size.size(0)).copy_(size);
    const at::Tensor places =
        mode == kMax ? largest.to(i.scalar_type()) : at::empty({0}, i.options());
    return Bags(out, bag_of.to(i.scalar_type()), sizes, places);
  });
}

constexpr const char* kTrained = "aten::_embedding_bag";
constexpr const char* kForwardOnly = "aten::_embedding_bag_forward_only";

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "_embedding_bag", (bags<kTrained, at::_embedding_bag>));
  NEURON_IMPL(m, "_embedding_bag_forward_only",
              (bags<kForwardOnly, at::_embedding_bag_forward_only>));
}

}  // namespace
}  // namespace torch_neuronx
