// What a collective throws: `torch.distributed.DistBackendError` in Python.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <string_view>

#include "queue/failure.h"

namespace torch_neuronx::distributed {

// The runtime's names and numbers of what can go wrong between ranks.
inline constexpr const char* kInvalid = "NRT_INVALID(2)";
inline constexpr const char* kTimeout = "NRT_TIMEOUT(5)";
inline constexpr const char* kClosed = "NRT_CLOSED(14)";
inline constexpr const char* kPeerLost = "NRT_EXEC_HW_ERR_COLLECTIVES(1200)";

inline constexpr std::string_view kErrorPrefix = "neuron: ";

[[noreturn]] inline void fail(const char* status, const std::string& text) {
  C10_THROW_ERROR(DistBackendError, std::string(kErrorPrefix) + text + " [" + status + "]");
}

// What `body` throws, or null.
template <class Body>
std::exception_ptr error_of(const Body& body) {
  try {
    body();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// What fail() throws.
inline std::exception_ptr error_of(const char* status, const std::string& text) {
  return error_of([&] { fail(status, text); });
}

using queue::first_line;
// The same of any exception: of one that Python raised, its kind and text ("ValueError: too long").
std::string first_line(const std::exception& error);
std::string first_line(const std::exception_ptr& error);

// The same without the prefix, for a text that fail() is to get.
std::string reason_of(const c10::DistBackendError& error);

// Throws the same error with more in front: where it happened.
[[noreturn]] inline void fail_in(const std::string& where, const c10::DistBackendError& error) {
  C10_THROW_ERROR(DistBackendError, std::string(kErrorPrefix) + where + ": " + reason_of(error));
}

}  // namespace torch_neuronx::distributed
