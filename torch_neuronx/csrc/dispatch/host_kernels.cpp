#include "dispatch/host_kernels.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <optional>

#include "conv/by_aten.h"

namespace torch_neuronx {
namespace {

template <auto* function>
c10::KernelFunction kernel() {
  return c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(function));
}

// The 16-bit type that all floats among the arguments have, if there is one.
std::optional<at::ScalarType> narrow_type(const c10::IValue* arguments, size_t count) {
  std::optional<at::ScalarType> found;
  for (size_t i = 0; i < count; ++i) {
    if (!arguments[i].isTensor()) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (!tensor.defined() || !at::isFloatingType(tensor.scalar_type())) continue;
    if (found && *found != tensor.scalar_type()) return {};  // which the operator refuses
    found = tensor.scalar_type();
  }
  const bool narrow = found == at::kHalf || found == at::kBFloat16;
  return narrow ? found : std::nullopt;
}

// What the operator gives for floats of 32 bits, rounded once.
void widened(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const auto dtype = narrow_type(stack->data() + stack->size() - count, count);
  if (dtype) {
    for (size_t i = stack->size() - count; i < stack->size(); ++i) {
      c10::IValue& value = (*stack)[i];
      if (value.isTensor() && value.toTensor().defined() &&
          value.toTensor().scalar_type() == *dtype)
        value = value.toTensor().to(at::kFloat);
    }
  }
  op.callBoxed(stack);
  if (!dtype) return;
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.toTensor().defined()) value = value.toTensor().to(*dtype);
  }
}

// The gradient of a table. A large one has few rows that are named, and sums of float32 for these
// alone: the others are zeros of the type.
at::Tensor embedding_gradient(const at::Tensor& grad, const at::Tensor& indices, int64_t rows,
                              int64_t padding, bool by_frequency) {
  const at::ScalarType dtype = grad.scalar_type();
  if ((dtype != at::kHalf && dtype != at::kBFloat16) || indices.numel() == 0)
    return at::embedding_dense_backward(grad, indices, rows, padding, by_frequency);
  const auto [named, places] =
      at::_unique(indices.to(at::kLong), /*sorted=*/false, /*return_inverse=*/true);
  const at::Tensor sums = at::embedding_dense_backward(grad.to(at::kFloat), places, named.numel(),
                                                       /*padding_idx=*/-1, by_frequency);
  at::Tensor table = at::zeros({rows, sums.size(1)}, grad.options());
  table.index_copy_(0, named, sums.to(dtype));
  if (padding >= 0 && padding < rows) table.select(0, padding).zero_();
  return table;
}

struct Row {
  const char* name;
  c10::KernelFunction kernel;
};

}  // namespace

const c10::KernelFunction* host_kernel_of(const c10::OperatorHandle& op) {
  const auto wide = [] { return c10::KernelFunction::makeFromBoxedFunction<&widened>(); };
  static const std::array rows{
      // PyTorch's are wrong for some sizes, and end the process for others.
      Row{"aten::convolution", kernel<&conv::convolve_by_aten>()},
      Row{"aten::convolution_backward", kernel<&conv::gradients_by_aten>()},
      // PyTorch's add up in 16 bits what many results have read from one place. With bfloat16 a sum
      // of equal numbers stops at 256 of them.
      Row{"aten::_adaptive_avg_pool2d_backward", wide()},
      Row{"aten::_adaptive_avg_pool3d_backward", wide()},
      Row{"aten::adaptive_max_pool2d_backward", wide()},
      Row{"aten::adaptive_max_pool3d_backward", wide()},
      Row{"aten::embedding_dense_backward", kernel<&embedding_gradient>()},
      Row{"aten::_embedding_bag_backward", wide()},
      Row{"aten::_embedding_bag_dense_backward", wide()},
      Row{"aten::grid_sampler_2d_backward", wide()},
      Row{"aten::grid_sampler_3d_backward", wide()},
      Row{"aten::reflection_pad1d_backward", wide()},
      Row{"aten::reflection_pad2d_backward", wide()},
      Row{"aten::reflection_pad3d_backward", wide()},
      Row{"aten::replication_pad1d_backward", wide()},
      Row{"aten::replication_pad2d_backward", wide()},
      Row{"aten::replication_pad3d_backward", wide()},
  };
  if (!op.operator_name().overload_name.empty()) return nullptr;
  for (const Row& row : rows)
    if (op.operator_name().name == row.name) return &row.kernel;
  return nullptr;
}

}  // namespace torch_neuronx
