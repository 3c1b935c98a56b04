// Which devices the tensors of one call may be on: one core, as CUDA has it. The one check, for
// native operators and for the boxed kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/OperatorEntry.h>
#include <c10/util/SmallVector.h>

#include <string_view>

#include "device/state.h"

namespace torch_neuronx {

// Where an argument may be beside the core of the call. A zero-dimensional host tensor that is not
// written to may stand for a number everywhere.
enum class Elsewhere : uint8_t {
  kNowhere,
  kHost,     // indices and lengths, which kernels bring to the core or read on the host
  kAnywhere  // copies; a number in a tensor, of which `item()` is taken
};

struct DeviceException {
  std::string_view op;  // without namespace and overload
  std::string_view argument;
  Elsewhere where;
};

inline constexpr DeviceException kDeviceExceptions[] = {
    {"copy_", "src", Elsewhere::kAnywhere},
    {"copy_sparse_to_sparse_", "src", Elsewhere::kAnywhere},
    {"_copy_from", "self", Elsewhere::kAnywhere},
    {"_copy_from_and_resize", "self", Elsewhere::kAnywhere},
    {"index", "indices", Elsewhere::kHost},
    {"_unsafe_index", "indices", Elsewhere::kHost},
    {"index_put", "indices", Elsewhere::kHost},
    {"index_put_", "indices", Elsewhere::kHost},
    {"_unsafe_index_put", "indices", Elsewhere::kHost},
    {"_index_put_impl", "indices", Elsewhere::kHost},
    {"_index_put_impl_", "indices", Elsewhere::kHost},
    {"_ctc_loss", "input_lengths", Elsewhere::kHost},
    {"_ctc_loss", "target_lengths", Elsewhere::kHost},
    {"_ctc_loss_backward", "input_lengths", Elsewhere::kHost},
    {"_ctc_loss_backward", "target_lengths", Elsewhere::kHost},
    {"_pack_padded_sequence", "lengths", Elsewhere::kHost},
    {"fill", "value", Elsewhere::kAnywhere},
    {"fill_", "value", Elsewhere::kAnywhere},
    {"masked_fill", "value", Elsewhere::kAnywhere},
    {"masked_fill_", "value", Elsewhere::kAnywhere},
    {"index_fill", "value", Elsewhere::kAnywhere},
    {"index_fill_", "value", Elsewhere::kAnywhere},
    // The quantizer's parameters are copied to the new tensor's device.
    {"empty_quantized", "qtensor", Elsewhere::kAnywhere},
    {"_empty_per_channel_affine_quantized", "scales", Elsewhere::kAnywhere},
    {"_empty_per_channel_affine_quantized", "zero_points", Elsewhere::kAnywhere},
};

// "aten::index_put_.hacked_twin" -> "index_put_"; empty for operators that are not PyTorch's.
constexpr std::string_view aten_base_name(std::string_view full) {
  if (!full.starts_with("aten::")) return {};
  full.remove_prefix(6);
  return full.substr(0, full.find('.'));
}

constexpr Elsewhere elsewhere(std::string_view op, std::string_view argument) {
  for (const auto& each : kDeviceExceptions)
    if (each.op == op && each.argument == argument) return each.where;
  return Elsewhere::kNowhere;
}

// Whether the check has nothing to say about an operator: it copies between two devices.
constexpr bool copies_between_devices(std::string_view full_name) {
  const auto op = aten_base_name(full_name);
  for (const auto& each : kDeviceExceptions)
    if (each.op == op && each.where == Elsewhere::kAnywhere && op.find("copy") != op.npos)
      return true;
  return false;
}

// A first look at a call's tensors, in order: whether all of them are plainly on one core.
class CommonCore {
 public:
  void see(const at::Tensor& t, bool written) {
    if (!t.defined()) return;
    const c10::Device device = t.device();
    if (C10_LIKELY(device.is_privateuseone())) {
      if (index_ < 0) index_ = device.index();
      doubtful_ |= index_ != device.index();
    } else {
      doubtful_ |= written || t.dim() > 0 || !device.is_cpu();
    }
  }
  // The first core seen, or -1.
  c10::DeviceIndex index() const { return index_; }
  // Whether check_devices() has to decide.
  bool doubtful() const { return doubtful_; }

 private:
  c10::DeviceIndex index_ = -1;
  bool doubtful_ = false;
};

struct LocatedTensor {
  const at::Tensor* tensor;
  size_t argument;  // its position in the schema
};
using LocatedTensors = c10::SmallVector<LocatedTensor, 8>;

// Throws unless the devices are such that PyTorch allows them for the operator. Returns the device
// of the call: that of its first tensor without an exception.
c10::Device check_devices(const c10::FunctionSchema& schema, const LocatedTensors& tensors);

}  // namespace torch_neuronx
