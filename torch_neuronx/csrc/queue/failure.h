// Errors of work that ran after its call had returned.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <string_view>

namespace torch_neuronx::queue {

// The first line of an exception's text: gloo's and c10's go on with a backtrace.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// An exception of the same type whose text also says which call it was of, and where that was.
std::exception_ptr with_name(std::exception_ptr failure, const std::string& name,
                             const std::string& called_at);

// To be called before an error is thrown to who waits. PyTorch's printing turns torch.func off for
// as long as a local variable of it lives (torch/_tensor_str.py, `_str`), and an error's traceback
// keeps that alive: gradients of torch.func would be zeros after `print(x)` failed in a notebook.
// Nothing is computed on the way out of the printing, so torch.func is turned on again there.
void leave_printing();

// The line of the user's program that this thread is in, as the finder writes it; "" without one.
std::string users_line();
void set_line_finder(std::function<std::string()> finder);  // null: none
bool finds_lines();

}  // namespace torch_neuronx::queue
