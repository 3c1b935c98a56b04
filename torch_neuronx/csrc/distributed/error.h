// What a collective throws: `torch.distributed.DistBackendError` in Python.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace torch_neuronx::distributed {

// The runtime's names and numbers of what can go wrong between ranks.
inline constexpr const char* kInvalid = "NRT_INVALID(2)";
inline constexpr const char* kTimeout = "NRT_TIMEOUT(5)";
inline constexpr const char* kClosed = "NRT_CLOSED(14)";
inline constexpr const char* kPeerLost = "NRT_HW_ERR_COLLECTIVES(1200)";

[[noreturn]] inline void fail(const char* status, const std::string& text) {
  C10_THROW_ERROR(DistBackendError, "neuron: " + text + " [" + status + "]");
}

}  // namespace torch_neuronx::distributed
