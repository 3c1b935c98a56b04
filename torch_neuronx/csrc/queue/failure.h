// Errors of work that ran after its call had returned.
#pragma once

#include <exception>
#include <string>

namespace torch_neuronx::queue {

// An exception of the same type whose text also says which call it was of.
std::exception_ptr with_name(std::exception_ptr failure, const std::string& name);

}  // namespace torch_neuronx::queue
