#include "distributed/issue.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <numeric>

#include "device/state.h"
#include "memory/allocator.h"

namespace torch_neuronx::distributed {

Request::Request(Kind kind, c10d::OpType op, int ranks, bool async,
                 std::chrono::milliseconds timeout)
    : type(op), asynchronous(async), ranks_(ranks) {
  call.kind = kind;
  call.timeout = timeout;
}

void Request::root(int64_t rank) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < ranks_, kind_name(call.kind), ": root ", rank,
                    " is not a rank of a group of ", ranks_);
  call.root = static_cast<int>(rank);
}

void Request::reduction(const c10d::ReduceOp& op) {
  using c10d::ReduceOp;
  call.reduction = Reduction::kSum;
  switch (op.op_) {
    case ReduceOp::SUM:
      break;
    case ReduceOp::AVG:
      call.postscale = 1.0 / ranks_;
      break;
    case ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(factor != nullptr, "PREMUL_SUM without a factor");
      call.prescale = factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                      : factor->double_factor;
      break;
    }
    case ReduceOp::PRODUCT:
      call.reduction = Reduction::kProduct;
      break;
    case ReduceOp::MIN:
      call.reduction = Reduction::kMin;
      break;
    case ReduceOp::MAX:
      call.reduction = Reduction::kMax;
      break;
    case ReduceOp::BAND:
      call.reduction = Reduction::kBand;
      break;
    case ReduceOp::BOR:
      call.reduction = Reduction::kBor;
      break;
    case ReduceOp::BXOR:
      call.reduction = Reduction::kBxor;
      break;
    default:
      TORCH_CHECK_VALUE(false, kind_name(call.kind), ": unknown reduction");
  }
}

Memory Request::memory(const at::Tensor& tensor) {
  const char* name = kind_name(call.kind);
  TORCH_CHECK_VALUE(tensor.device().type() == kNeuron, name,
                    " of the neuron process group got a tensor on ", tensor.device(),
                    "; move it to a neuron device, or start the group with backend "
                    "\"cpu:gloo,neuron:neuron\"");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, name, ": tensors must be dense, but got ",
                    tensor.layout());
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), name,
                    ": tensors must be contiguous, but got strides ", tensor.strides(), " for ",
                    tensor.sizes(), "; call .contiguous() first");
  if (!has_tensor_) {
    has_tensor_ = true;
    call.dtype = tensor.scalar_type();
    call.device = tensor.device().index();
    call.sizes = tensor.sizes().vec();
  }
  // Gathering may move several dtypes at once; reductions can't.
  TORCH_CHECK_VALUE(call.dtype == tensor.scalar_type() || call.kind == Kind::kAllGather ||
                        call.kind == Kind::kBroadcast,
                    name, ": tensors must have one dtype, but got ", call.dtype, " and ",
                    tensor.scalar_type());
  TORCH_CHECK_VALUE(call.device == tensor.device().index(), name,
                    ": tensors must be on one device, but got neuron:", call.device, " and ",
                    tensor.device());
  const size_t bytes = tensor.nbytes();
  if (bytes == 0) return {nullptr, 0};
  kept.push_back(tensor);
  void* data = const_cast<void*>(tensor.const_data_ptr());
  if (device_of_pointer(data) < 0) {
    auto ours = empty_on(tensor.device().index(), tensor.sizes(), {}, tensor.scalar_type());
    staged_.emplace_back(tensor, ours);
    kept.push_back(ours);
    data = const_cast<void*>(ours.const_data_ptr());
  }
  return {data, bytes};
}

void Request::expose(const at::Tensor& tensor) {
  call.exposed.push_back(memory(tensor));
  call.elements += static_cast<uint64_t>(tensor.numel());
}

void Request::output(const at::Tensor& tensor) { call.outputs.push_back(memory(tensor)); }

void Request::parts(const at::Tensor& tensor, std::vector<Memory>* pieces) {
  TORCH_CHECK_VALUE(tensor.numel() % ranks_ == 0, kind_name(call.kind), ": a tensor of ",
                    tensor.sizes(), " has no ", ranks_, " equal parts");
  const Memory whole = memory(tensor);
  const size_t bytes = whole.bytes / static_cast<size_t>(ranks_);
  for (int r = 0; r < ranks_; ++r)
    pieces->push_back({static_cast<char*>(whole.data) + static_cast<size_t>(r) * bytes, bytes});
}

void Request::expose_parts(const at::Tensor& tensor) {
  parts(tensor, &call.exposed);
  call.elements += static_cast<uint64_t>(tensor.numel());
}
void Request::output_parts(const at::Tensor& tensor) { parts(tensor, &call.outputs); }

void Request::split(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                    std::vector<Memory>* pieces) {
  if (splits.empty()) {
    TORCH_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) % ranks_ == 0,
                      "all_to_all: dimension 0 of ", tensor.sizes(),
                      " can't be split equally over ", ranks_, " ranks; give split sizes");
    return parts(tensor, pieces);
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(ranks_), "all_to_all: ", splits.size(),
                    " split sizes for a group of ", ranks_);
  for (const int64_t rows : splits)
    TORCH_CHECK_VALUE(rows >= 0, "all_to_all: negative split size ", rows);
  const int64_t total = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  TORCH_CHECK_VALUE(tensor.dim() > 0 && total == tensor.size(0), "all_to_all: split sizes of ",
                    total, " rows in all for a tensor of ", tensor.sizes());
  const Memory whole = memory(tensor);
  const size_t row = total == 0 ? 0 : whole.bytes / static_cast<size_t>(total);
  auto* data = static_cast<char*>(whole.data);
  for (const int64_t rows : splits) {
    const size_t bytes = static_cast<size_t>(rows) * row;
    pieces->push_back({bytes == 0 ? nullptr : data, bytes});
    data += bytes;
  }
}

void Request::expose_split(const at::Tensor& tensor, const std::vector<int64_t>& splits) {
  split(tensor, splits, &call.exposed);
}
void Request::output_split(const at::Tensor& tensor, const std::vector<int64_t>& splits) {
  split(tensor, splits, &call.outputs);
}

void Request::stage_in() const {
  for (const auto& [theirs, ours] : staged_)
    std::memcpy(const_cast<void*>(ours.const_data_ptr()), theirs.const_data_ptr(), theirs.nbytes());
}

void Request::stage_out() const {
  for (const auto& [theirs, ours] : staged_)
    std::memcpy(const_cast<void*>(theirs.const_data_ptr()), ours.const_data_ptr(), theirs.nbytes());
}

}  // namespace torch_neuronx::distributed
