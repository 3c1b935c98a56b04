// Mixed precision: which operators run in the lower precision under torch.autocast("neuron"), which
// in float32. PyTorch's own lists, those CUDA uses; the default lower precision is bfloat16.
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "device/state.h"

namespace torch_neuronx {
namespace {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

at::Tensor binary_cross_entropy_banned(const at::Tensor&, const at::Tensor&,
                                       const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "Many models use a sigmoid layer right before the binary cross entropy layer. In this case, "
      "combine "
      "the two layers using torch.nn.functional.binary_cross_entropy_with_logits or "
      "torch.nn.BCEWithLogitsLoss, which are safe to autocast.");
}

using at::IntArrayRef;  // PyTorch's lists name these without their namespace
using at::Scalar;
using at::ScalarType;
using at::Tensor;

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define TN_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(TN_LOWER)
#define TN_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(TN_FP32)
#define TN_FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(TN_FP32_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define TN_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(TN_PROMOTE)
  // Tracing replaces these by a formula before the inner operators, which the lists name, are
  // called.
  TN_FP32(ldexp, Tensor)
#define TN_FP32_VEC(name) TN_FP32(name, vec)
  TN_FP32_VEC(upsample_nearest1d)
  TN_FP32_VEC(_upsample_nearest_exact1d)
  TN_FP32_VEC(upsample_nearest2d)
  TN_FP32_VEC(_upsample_nearest_exact2d)
  TN_FP32_VEC(upsample_nearest3d)
  TN_FP32_VEC(_upsample_nearest_exact3d)
  TN_FP32_VEC(upsample_linear1d)
  TN_FP32_VEC(upsample_bilinear2d)
  TN_FP32_VEC(_upsample_bilinear2d_aa)
  TN_FP32_VEC(upsample_trilinear3d)
  TN_FP32_VEC(upsample_bicubic2d)
  TN_FP32_VEC(_upsample_bicubic2d_aa)
  m.impl("binary_cross_entropy", TORCH_FN(binary_cross_entropy_banned));
}

[[maybe_unused]] const bool g_default_dtype = [] {
  at::autocast::set_autocast_dtype(kNeuron, at::kBFloat16);
  return true;
}();

}  // namespace
}  // namespace torch_neuronx
