#include "dispatch/host_kernels.h"

#include <array>

#include "conv/by_aten.h"

namespace torch_neuronx {
namespace {

template <auto* function>
c10::KernelFunction kernel() {
  return c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(function));
}

struct Row {
  const char* name;
  c10::KernelFunction kernel;
};

}  // namespace

const c10::KernelFunction* host_kernel_of(const c10::OperatorHandle& op) {
  static const std::array rows{
      // PyTorch's are wrong for some sizes, and end the process for others.
      Row{"aten::convolution", kernel<&conv::convolve_by_aten>()},
      Row{"aten::convolution_backward", kernel<&conv::gradients_by_aten>()},
  };
  if (!op.operator_name().overload_name.empty()) return nullptr;
  for (const Row& row : rows)
    if (op.operator_name().name == row.name) return &row.kernel;
  return nullptr;
}

}  // namespace torch_neuronx
