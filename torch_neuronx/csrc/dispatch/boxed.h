// The one kernel that runs every ATen operator that has no registration of its own: aliases the
// device tensors as CPU tensors, runs the CPU kernel, adopts the results.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

#include "dispatch/op_table.h"
#include "dispatch/trusting.h"

namespace torch_neuronx {

// What the boxed kernel needs to know about an operator, read off its schema once.
struct OpPlan {
  enum class Kind : uint8_t {
    kTensor,
    kTensorList,
    kOptionalTensorList,
    kDevice,
    kGenerator,
    kDtype
  };
  struct Arg {
    size_t index;
    Kind kind;
    bool written;
    bool out = false;  // of one of ATen's out= operators, which does not read it
  };
  explicit OpPlan(const c10::OperatorHandle& op);

  OpEntry& entry;
  size_t arguments;
  std::vector<Arg> args;          // those of interest, in order
  std::vector<int> return_alias;  // for each return, the argument it is (in-place and out=), or -1
  const Demands* demands;         // null for most
  const c10::KernelFunction* host_kernel;  // null for nearly all
};

void run_boxed(const OpPlan& plan, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
               torch::jit::Stack* stack);

// Registers the boxed kernel for each operator that the CPU has and `neuron` doesn't yet, and as
// the fallback for operators that appear later. Called once, at import.
void register_boxed_kernels();

}  // namespace torch_neuronx
