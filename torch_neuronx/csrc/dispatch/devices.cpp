#include "dispatch/devices.h"

#include "dispatch/schema.h"

namespace torch_neuronx {
namespace {

// A host tensor that stands for a number.
bool is_number(const at::Tensor& t, const c10::Argument& argument) {
  return t.device().is_cpu() && t.dim() == 0 && !is_written(argument);
}

}  // namespace

c10::Device check_devices(const c10::FunctionSchema& schema, const LocatedTensors& tensors) {
  const auto op = aten_base_name(schema.name());
  const auto argument_of = [&](const LocatedTensor& each) -> const c10::Argument& {
    return schema.arguments()[each.argument];
  };
  const auto where_of = [&](const LocatedTensor& each) {
    return elsewhere(op, argument_of(each).name());
  };
  std::optional<c10::Device> common, number;
  for (const auto& each : tensors) {
    if (where_of(each) != Elsewhere::kNowhere) continue;
    auto& first = is_number(*each.tensor, argument_of(each)) ? number : common;
    if (!first) first = each.tensor->device();
  }
  if (!common) common = number ? number : tensors.front().tensor->device();
  for (const auto& each : tensors) {
    const c10::Device device = each.tensor->device();
    const auto where = where_of(each);
    if (device == *common || where == Elsewhere::kAnywhere ||
        (where == Elsewhere::kHost && device.is_cpu()) ||
        is_number(*each.tensor, argument_of(each))) {
      continue;
    }
    const auto& name = argument_of(each).name();
    TORCH_CHECK(where == Elsewhere::kNowhere, name,
                " should be either on cpu or on the same device as the ",
                name == "indices" ? "indexed tensor" : "other tensors", " (", *common,
                "), but found ", device, " (in method ", schema.operator_name(), ")");
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *common, " and ", device, "! (when checking argument for argument ", name,
                " in method ", schema.operator_name(), ")");
  }
  return *common;
}

}  // namespace torch_neuronx
