// Running ATen's own CPU implementation from inside a native operator.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <tuple>
#include <utility>

#include "dispatch/alias.h"
#include "memory/allocator.h"

namespace torch_neuronx {

// CPU aliases of a call's arguments; undefined and CPU tensors pass through.
class HostArgs {
 public:
  at::Tensor operator()(const at::Tensor& t) { return on_neuron(t) ? aliases_.cpu(t, false) : t; }
  std::optional<at::Tensor> operator()(const std::optional<at::Tensor>& t) {
    return t.has_value() ? std::optional<at::Tensor>((*this)(*t)) : std::nullopt;
  }
  at::Tensor written(const at::Tensor& t) { return on_neuron(t) ? aliases_.cpu(t, true) : t; }
  void finish() { aliases_.finish(); }

 private:
  AliasSet aliases_;
};

namespace detail {
inline at::Tensor adopt_all(at::Tensor t, c10::DeviceIndex index) { return adopt(t, index); }
template <class... T>
std::tuple<T...> adopt_all(std::tuple<T...> results, c10::DeviceIndex index) {
  return std::apply([&](auto&&... t) { return std::make_tuple(adopt_all(std::move(t), index)...); },
                    std::move(results));
}
}  // namespace detail

// Calls `fn(args)` with temporaries in the HBM of core `index`; `args` makes the aliases. Returned
// tensors (one, or a tuple of them) are adopted.
template <class Fn>
auto run_on_host(c10::DeviceIndex index, Fn&& fn) {
  // A host tensor may stand for a number beside the others, not for the tensor that says where.
  TORCH_CHECK(index >= 0,
              "Expected all tensors to be on the same device, but found at least two devices, "
              "neuron and cpu!");
  HostArgs args;
  const auto compute = [&] {
    const ScratchScope scratch(index);
    const at::DisableRecordFunctionGuard quiet;  // a profile shows the device's operator, once
    const c10::impl::ExcludeDispatchKeyGuard guard(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView |
        c10::DispatchKeySet(
            {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1}));
    return fn(args);
  };
  auto results = compute();
  args.finish();
  return detail::adopt_all(std::move(results), index);
}

}  // namespace torch_neuronx
