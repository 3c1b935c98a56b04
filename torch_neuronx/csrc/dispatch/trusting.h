// What must hold for operators whose CPU kernels trust their caller.
//
// PyTorch's public functions compare sizes before they call these operators; the operators
// themselves don't, and read and write outside of tensors that disagree. Called by name they come
// from anywhere: eager code, compiled programs, files. So whoever calls a CPU kernel by name asks
// here first.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <utility>
#include <vector>

namespace torch_neuronx {

class Demands;

// Copies that stand in a call's stack for arguments that the kernel writes to and whose memory it
// cannot use as it is.
class StandIns {
 public:
  void add(at::Tensor argument, at::Tensor copy) {
    pairs_.emplace_back(std::move(argument), std::move(copy));
  }
  // Gives the arguments what the kernel wrote.
  void store() const {
    for (const auto& [argument, copy] : pairs_) argument.copy_(copy);
  }
  // The same where the kernel may have chosen other sizes, as for out=.
  void store_resized() const {
    for (const auto& [argument, copy] : pairs_)
      if (argument.sizes() != copy.sizes()) argument.resize_(copy.sizes());
    store();
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

// What an operator demands of its arguments; null for the many that check them on their own.
// Stable address; every overload of an operator has its demands.
const Demands* demands_of(const c10::OperatorHandle& op);

// Throws c10::Error if the arguments, the last ones of the stack, contradict each other. Puts
// contiguous copies in place of tensors whose strides the kernel ignores; `store` the result after
// the call. Looks at elements (indices, lengths) unless the tensors are on "meta".
[[nodiscard]] StandIns meet(const Demands& demands, const c10::OperatorHandle& op,
                            torch::jit::Stack& stack);

// The same for the operator of that name, which writes to none of its arguments; `arguments` as its
// schema lists them. Returns them.
torch::jit::Stack checked_arguments(const char* name, torch::jit::Stack arguments);

}  // namespace torch_neuronx
