// Errors of work that ran after its call had returned.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace torch_neuronx::queue {

// An exception of the same type whose text also says which call it was of, and where that was.
std::exception_ptr with_name(std::exception_ptr failure, const std::string& name,
                             const std::string& called_at);

// The line of the user's program that this thread is in, as the finder writes it; "" without one.
std::string users_line();
void set_line_finder(std::function<std::string()> finder);  // null: none
bool finds_lines();

}  // namespace torch_neuronx::queue
