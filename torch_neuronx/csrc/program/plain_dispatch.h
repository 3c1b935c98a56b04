// How a program calls operators of PyTorch: no autograd, no autocast, no modes of Python.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <iterator>

namespace torch_neuronx::program {

inline const c10::DispatchKeySet& excluded_inside() {
  static const c10::DispatchKeySet keys =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1});
  return keys;
}

// Hides a program's operators from dispatch modes of Python, AOTAutograd's own among them: they are
// the program's business, and some of PyTorch's composite operators compute conjugates wrongly
// under any mode (linalg_pinv of complex matrices). Kernels written in Python run as ever.
class WithoutModes {
 public:
  WithoutModes() {
    for (size_t i = 0; i < std::size(kKeys); ++i) {
      was_[i] = c10::impl::tls_is_dispatch_key_included(kKeys[i]);
      if (was_[i]) c10::impl::tls_set_dispatch_key_included(kKeys[i], false);
    }
  }
  ~WithoutModes() {
    for (size_t i = 0; i < std::size(kKeys); ++i) {
      if (was_[i]) c10::impl::tls_set_dispatch_key_included(kKeys[i], true);
    }
  }
  WithoutModes(const WithoutModes&) = delete;
  WithoutModes& operator=(const WithoutModes&) = delete;

 private:
  static constexpr c10::DispatchKey kKeys[] = {c10::DispatchKey::Python,
                                               c10::DispatchKey::PythonTLSSnapshot};
  bool was_[std::size(kKeys)] = {};
};

}  // namespace torch_neuronx::program
