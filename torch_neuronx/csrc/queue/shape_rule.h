// What a call gives whose sizes are new, as a cache has that grows by each token.
//
// A *family* is all calls of an operator that differ in sizes and strides of tensors, and in whole
// numbers among the arguments. A shape function for the operator (queue/shape_functions.h) says
// what each call gives, and refuses what the operator would refuse. It is believed for a family
// when two calls were run and gave what it had said.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "queue/settled.h"
#include "queue/shape_functions.h"

namespace torch_neuronx::queue {

class ShapeRule {
 public:
  explicit ShapeRule(const c10::OperatorHandle& op);

  // What the shape function says of a call with these arguments; none if there is no function, or
  // it refuses them. To be asked before the call runs, which may take its arguments away.
  using Returns = std::vector<std::vector<Result>>;
  std::optional<Returns> ask(const Signature& signature, const CallKey& key,
                             const torch::jit::Stack& stack) const;

  // A call was run and gave `settled`, of which ask() had said `said`.
  void compare(const CallKey& key, const Settled& settled, const std::optional<Returns>& said);
  // What a call of a family gives for which the function is believed; null for any other.
  SettledPtr settle(const Signature& signature, const CallKey& key, const torch::jit::Stack& stack);

 private:
  struct Family {
    int agreed = 0;
    bool differed = false;
    std::vector<bool> is_list;
    uint64_t draws = 0;
    uint64_t asked = 0;  // when, by `times_asked_`
  };
  Family& known(std::vector<uint64_t> family);  // under the mutex
  const c10::OperatorHandle op_;
  const ShapeFunction function_;
  std::mutex mutex_;
  std::map<std::vector<uint64_t>, Family> families_;
  uint64_t times_asked_ = 0;
};

}  // namespace torch_neuronx::queue
