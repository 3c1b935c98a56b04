// Issuing an operator's calls: at its call an operator settles what its results are and takes their
// memory; its work is enqueued.
//
// What a call gives is known from an earlier one with the same key, or of two with other sizes and
// PyTorch's shape function (queue/shape_rule.h). So the first calls of a kind run when they are
// issued, as in debug mode, and so do calls that can't be enqueued: those that read values on the
// host, whose results have a shape that depends on values, or that change a tensor's geometry.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "memory/ledger.h"
#include "queue/queued_call.h"
#include "queue/settled.h"
#include "queue/shape_rule.h"

namespace torch_neuronx::queue {

// Calls on fewer elements are done before a thread that sleeps would have woken up (110 us on a
// virtual machine): while nothing is enqueued, the calling thread does the work.
int64_t direct_elements();
void set_direct_elements(int64_t elements);  // 0: everything is enqueued

// Calls that could not be enqueued, for which a thread waited and did the work itself.
struct HereCount {
  std::string operator_name;
  const char* reason;
  int64_t calls;
};
std::vector<HereCount> here_counts();
void reset_here_counts();

class Issuer {
 public:
  Issuer(const c10::OperatorHandle& op, Run run);
  const std::string& name() const { return name_; }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);
  // Whether a call makes the host wait for values: they decide the shape of its results, or are
  // what it returns.
  bool reads_values(const torch::jit::Stack& stack) const;

 private:
  void count_here(const char* reason) const;
  void run_here(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                const char* reason) const;
  void learn(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
             const CallKey& key, uint64_t hash);
  const char* read_results(const torch::jit::Stack& stack, const AllocationLog& log,
                           Settled* settled) const;
  bool enqueue(const c10::OperatorHandle& op, torch::jit::Stack* stack, const CallKey& key,
               SettledPtr settled) const;

  const std::string name_;
  const Run run_;
  const Signature signature_;
  const char* never_ = "";  // why no call can be enqueued
  bool by_value_ = false;   // the results' shape depends on values, or the results are values
  bool by_index_ = false;   // the results' shape depends on values if an index is a mask
  SettledCalls settled_;
  ShapeRule rule_;
};

}  // namespace torch_neuronx::queue
