// Registering a native operator: counts it, asks the portability handler, runs deferred work first.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>

#include "device/profiler.h"
#include "device/state.h"
#include "dispatch/deferred.h"
#include "dispatch/op_table.h"

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
template <class T>
bool note_dtype(OpEntry&, const T&) {
  return false;
}
// The core it runs on: that of its first tensor argument on one.
inline bool see_device(ActivityScope& activity, const at::Tensor& t) {
  if (!t.defined() || !t.device().is_privateuseone()) return false;
  activity.on(t.device().index());
  return true;
}
template <class T>
bool see_device(ActivityScope&, const T&) {
  return false;
}
}  // namespace detail

template <FixedString Name, auto Fn>
struct Native;

template <FixedString Name, class R, class... Args, R (*Fn)(Args...)>
struct Native<Name, Fn> {
  static R call(Args... args) {
    static OpEntry& entry = op_entry(Name.text);
    ensure_initialized();  // refuses a forked child
    flush_deferred();
    ActivityScope activity(entry.name);
    (void)(detail::see_device(activity, args) || ...);
    (void)(detail::note_dtype(entry, args) || ...);
    return Fn(std::forward<Args>(args)...);
  }
};

}  // namespace torch_neuronx

// In a TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) block: NEURON_IMPL(m, "add.Tensor", add_tensor);
#define NEURON_IMPL(m, name, fn) \
  (m).impl(name, TORCH_FN((&::torch_neuronx::Native<"aten::" name, &(fn)>::call)))
