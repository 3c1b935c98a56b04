// From the tensors and options of one c10d call to a `Call`.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "distributed/collective.h"

namespace torch_neuronx::distributed {

// A collective that is about to be issued. The functions below check what they are given and throw
// c10::ValueError (ValueError in Python) or c10::TypeError with the collective's name.
class Request {
 public:
  Request(Kind kind, c10d::OpType type, int ranks, bool asynchronous,
          std::chrono::milliseconds timeout);

  void root(int64_t rank);
  void reduction(const c10d::ReduceOp& op);
  // Tensors whose content is exchanged, and those that are returned.
  void expose(const at::Tensor& tensor);
  void output(const at::Tensor& tensor);
  // A tensor as `parts` equal pieces, one for each rank.
  void expose_parts(const at::Tensor& tensor);
  void output_parts(const at::Tensor& tensor);
  // Pieces of `splits[i]` rows each; no splits: equal pieces.
  void expose_split(const at::Tensor& tensor, const std::vector<int64_t>& splits);
  void output_split(const at::Tensor& tensor, const std::vector<int64_t>& splits);
  void result(const at::Tensor& tensor) { results.push_back(tensor); }

  // Copies to and from memory that no core's HBM holds (tensors of other libraries).
  void stage_in() const;
  void stage_out() const;

  Call call;
  c10d::OpType type;
  bool asynchronous;
  std::vector<at::Tensor> results, kept;

 private:
  Memory memory(const at::Tensor& tensor);
  void parts(const at::Tensor& tensor, std::vector<Memory>* pieces);
  void split(const at::Tensor& tensor, const std::vector<int64_t>& splits,
             std::vector<Memory>* pieces);

  const int ranks_;
  bool has_tensor_ = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_;  // the user's, ours
};

}  // namespace torch_neuronx::distributed
