// What a call of a traced model is refused with: torch_neuronx.InputError, which is a ValueError
// and a RuntimeError.
//
// TorchScript's interpreter turns whatever an operator throws into a RuntimeError, but keeps the
// Python class that a JITException names; bind_inference() looks for ours.
#pragma once

#include <c10/util/StringUtil.h>

#include <string>

namespace torch_neuronx::inference {

// NRT_EXEC_BAD_INPUT is the runtime's status for what does not fit the model.
[[noreturn]] void refuse(const std::string& text);

template <class... Parts>
void require(bool fits, const Parts&... parts) {
  if (C10_UNLIKELY(!fits)) refuse(c10::str(parts...));
}

}  // namespace torch_neuronx::inference
