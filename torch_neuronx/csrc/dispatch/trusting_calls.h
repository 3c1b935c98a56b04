// Demands that a pattern can't express, each a function of one call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

#include "dispatch/trusting.h"

namespace torch_neuronx::trusting {

// The arguments of a call, by name.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack, StandIns& stand_ins);

  // Null where this overload has no such argument.
  c10::IValue* find(const char* name) const;
  // Null where it is not given, too.
  const at::Tensor* tensor(const char* name) const;
  // These refuse the call where it is null: releases of PyTorch name some arguments otherwise.
  const c10::IValue& argument(const char* name) const;
  const at::Tensor& operand(const char* name) const;
  // Puts a copy in an argument's place; one that the operator writes to gets its values later.
  void replace(const char* name, at::Tensor copy);
  // The same for the tensors of a list, those that are defined in `copies`.
  void replace(const char* name, const std::vector<at::Tensor>& copies);

  // Throws c10::Error with the operator's name.
  void require(bool holds, const std::string& what) const;
  // Throws c10::IndexError unless all elements are in [low, high).
  void require_within(const char* name, int64_t low, int64_t high) const;
  // The integers of a tensor, contiguous int64 on the host; undefined if there are none to look at.
  at::Tensor elements(const char* name) const;

 private:
  void require_given(bool is, const char* name) const;

  bool writes(const char* name) const;

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  StandIns& stand_ins_;
  const size_t base_;
};

void attention(Call& call);
void batch_norm(Call& call);
void batch_norm_backward(Call& call);
void group_norm(Call& call);
void layer_norm_backward(Call& call);
void reflection_backward(Call& call);
void replication_backward(Call& call);
void pdist_backward(Call& call);
void csr_to_coo(Call& call);
void coo_to_csr(Call& call);
void ctc_loss(Call& call);
void embedding_backward(Call& call);
void embedding_bag_backward(Call& call);
void segment_reduce(Call& call);
void reshape_alias(Call& call);
void some_tensors(Call& call);
void rescale_qkv(Call& call);
void weight_norm(Call& call);
void weight_norm_backward(Call& call);
void lu_unpack(Call& call);
void ldl_solve(Call& call);
void loss_backward(Call& call);
void unfold_backward(Call& call);
void pad_packed(Call& call);
void recurrent(Call& call);
void fft(Call& call);
void equal_lists(Call& call);
void fused_sgd(Call& call);
void quotient(Call& call);
void average(Call& call);
void fractional_pool2d_backward(Call& call);
void fractional_pool3d_backward(Call& call);
void slow_convolution(Call& call);
void chunk_cat(Call& call);
void running_extreme(Call& call);
void packed_for_others(Call& call);
void recurrent_layer(Call& call);
void float_operand(Call& call);
void range(Call& call);
void rrelu(Call& call);

}  // namespace torch_neuronx::trusting
