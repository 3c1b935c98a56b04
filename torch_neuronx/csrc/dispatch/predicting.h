// Operators of eager mode by the kinds of calls that take equally long, for
// TORCH_NEURONX_CLOCK=model.
//
// A kind is an operator and its arguments without the values of tensors (queue/call_key.h). The
// first call of a kind asks Python, whose thread (torch_neuronx/program/operator_time.py) says what
// such calls are predicted to take; all others find that here. While nobody asked, an operator pays
// a load and a branch.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "registry/prediction.h"

namespace torch_neuronx::predicting {

extern std::atomic<bool> g_asked;
inline bool asked() { return C10_UNLIKELY(g_asked.load(std::memory_order_relaxed)); }

// What calls like this one are predicted to take. Lives to the end of the process.
registry::Prediction& prediction_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// The same of a call that has been looked up before, by the words of its key; null if it was not.
registry::Prediction* known(const c10::OperatorHandle& op, const std::vector<uint64_t>& words);

// The execution that this thread is in the middle of, if `of` is asked: counted at the end of this
// object's life, unless an exception ends it.
class Counted {
 public:
  Counted() = default;
  ~Counted() {
    if (C10_UNLIKELY(prediction_ != nullptr)) count();
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

  // It is this call. What an operator does by calling others is its own work, and is not counted.
  void of(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  // It takes no time on a core: it is a copy from or to the host.
  void of_nothing();

 private:
  void count();

  registry::Prediction* prediction_ = nullptr;
  int core_ = -1;
};

// A collective, or a message to or from a rank.
struct Exchange {
  std::string kind;                // as distributed/collective.h names it
  uint64_t read = 0, written = 0;  // bytes of this rank
  std::vector<int> ranks;          // of the group, in the job
  bool operator==(const Exchange& other) const = default;
};
registry::Prediction& prediction_of(const Exchange& exchange);

// A kind that waits for its prediction.
struct Wanted {
  size_t number = 0;
  std::string name;  // of the operator, with its overload
  torch::jit::Stack
      arguments;  // those of a core are meta tensors, those of the host have no values
  std::optional<Exchange> exchange;  // in place of an operator
  std::string failure;               // why nobody can predict it, or ""
};
// From now on calls are counted.
void ask(const registry::Counters& counters);
// Waits for the next kind; none if there will be no more.
std::optional<Wanted> next_wanted();
void stop();
// By the number of a kind that was given out. Throws ValueError if there is none.
registry::Prediction& wanted(size_t number);
void settled();  // one of them is known
// How many kinds have no prediction yet.
size_t unsettled();
const registry::Counters& counters();

}  // namespace torch_neuronx::predicting
