// Registering a native operator: checks the devices of its tensors, counts it, asks the portability
// handler, runs deferred work first.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "device/faults.h"
#include "device/profiler.h"
#include "device/state.h"
#include "dispatch/deferred.h"
#include "dispatch/devices.h"
#include "dispatch/op_table.h"
#include "dispatch/predicting.h"
#include "dispatch/schema.h"
#include "queue/issue.h"
#include "queue/queue.h"

namespace torch_neuronx {

template <size_t N>
struct FixedString {
  char text[N]{};
  constexpr FixedString(const char (&s)[N]) {
    std::copy_n(s, N, text);
  }  // NOLINT: implicit on purpose
};

namespace detail {
// The dtype an operator is judged by: that of its first tensor argument.
inline bool note_dtype(OpEntry& entry, const at::Tensor& t) {
  if (!t.defined() || t.unsafeGetTensorImpl()->is_wrapped_number()) return false;
  entry.note(t.scalar_type());
  return true;
}
inline bool note_dtype(OpEntry& entry, at::TensorList list) {
  return !list.empty() && note_dtype(entry, list[0]);
}
inline bool note_dtype(OpEntry& entry, const at::ITensorListRef& list) {
  return !list.empty() && note_dtype(entry, *list.begin());
}
template <class T>
bool note_dtype(OpEntry&, const T&) {
  return false;
}
// A call's tensors, for the check of their devices. A reference that is not const is written to.
template <class T>
struct Written : std::false_type {};
template <>
struct Written<at::Tensor&> : std::true_type {};

template <class See>
void for_each_tensor(const at::Tensor& t, See see) {
  if (t.defined()) see(t);
}
template <class See>
void for_each_tensor(const std::optional<at::Tensor>& t, See see) {
  if (t.has_value() && t->defined()) see(*t);
}
template <class See>
void for_each_tensor(at::TensorList list, See see) {
  for (const at::Tensor& t : list) for_each_tensor(t, see);
}
template <class See>
void for_each_tensor(const at::ITensorListRef& list, See see) {
  for (const at::Tensor& t : list) for_each_tensor(t, see);
}
template <class T, class See>
void for_each_tensor(const T&, See) {}

// Of what an operator returns, for faults on demand.
inline bool spoil(const at::Tensor& t, double value) { return faults::spoil(t, value); }
template <class T>
bool spoil(const T&, double) {
  return false;
}
template <class... T>
bool spoil(const std::tuple<T...>& results, double value) {
  return std::apply([&](const auto&... each) { return (spoil(each, value) || ...); }, results);
}

// A kernel that enqueues an operator's calls; `run` does their work.
c10::BoxedKernel issuer_for(const c10::OperatorHandle& op, c10::KernelFunction run);

// Throws unless PyTorch allows the devices of the arguments beside each other.
template <class... Args>
void check_arguments(const std::string& name, const Args&... args) {
  const auto op = find_operator(name);
  LocatedTensors tensors;
  size_t argument = 0;
  const auto locate = [&](const auto& arg) {
    for_each_tensor(arg, [&](const at::Tensor& t) { tensors.push_back({&t, argument}); });
    ++argument;
  };
  (locate(args), ...);
  (void)check_devices(op.schema(), tensors);
}
}  // namespace detail

template <FixedString Name, auto Fn>
struct Native;

template <FixedString Name, class R, class... Args, R (*Fn)(Args...)>
struct Native<Name, Fn> {
  static R call(Args... args) {
    ensure_initialized();  // refuses a forked child
    if constexpr (std::string_view(Name.text) == "aten::_local_scalar_dense") {
      if (queue::watches_waits()) queue::note_wait(Name.text);
    }
    if (queue::asynchronous()) {
      int64_t elements = 0;
      (detail::for_each_tensor(args, [&](const at::Tensor& t) { elements += elements_of(t); }),
       ...);
      if (queue::busy() || elements >= queue::direct_elements())
        return issue(std::forward<Args>(args)...);
    }
    return run(std::forward<Args>(args)...);
  }

 private:
  static R run(Args... args) {
    static OpEntry& entry = op_entry(Name.text);
    flush_deferred();
    const queue::Inside inside;
    ActivityScope activity(entry.name);
    CommonCore core;
    (detail::for_each_tensor(
         args, [&](const at::Tensor& t) { core.see(t, detail::Written<Args>::value); }),
     ...);
    activity.on(core.index());
    predicting::Counted counted;
    if (predicting::asked()) look_up(counted, args...);
    if constexpr (!copies_between_devices(Name.text)) {
      if (C10_UNLIKELY(core.doubtful())) detail::check_arguments(entry.name, args...);
    }
    (void)(detail::note_dtype(entry, args) || ...);
    if constexpr (std::is_void_v<R>) {
      return Fn(std::forward<Args>(args)...);
    } else {
      R result = Fn(std::forward<Args>(args)...);
      if (const double value = activity.spoilt_by(); C10_UNLIKELY(value != 0))
        detail::spoil(result, value);
      return result;
    }
  }

  static C10_NOINLINE void look_up(predicting::Counted& counted, Args... args) {
    static const c10::OperatorHandle op = find_operator(Name.text);
    counted.of(op, c10::impl::boxArgs<Args...>(std::forward<Args>(args)...));
  }

  static int64_t elements_of(const at::Tensor& t) { return t.is_nested() ? 0 : t.numel(); }

  static R issue(Args... args) {
    static const c10::OperatorHandle op = find_operator(Name.text);
    static const c10::BoxedKernel issuer =
        detail::issuer_for(op, c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(&run)));
    return c10::impl::BoxedKernelWrapper<R(Args...)>::call(
        issuer, op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        std::forward<Args>(args)...);
  }
};

}  // namespace torch_neuronx

// In a TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) block: NEURON_IMPL(m, "add.Tensor", add_tensor);
#define NEURON_IMPL(m, name, fn) \
  (m).impl(name, TORCH_FN((&::torch_neuronx::Native<"aten::" name, &(fn)>::call)))
