// Convolutions: our methods with an epilogue or plain, or ATen's operator and what follows it.
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include "conv/by_aten.h"
#include "conv/conv.h"
#include "memory/allocator.h"
#include "program/steps.h"
#include "registry/registry.h"

namespace torch_neuronx::program {
namespace {

// A tensor that only tells sizes and strides: nobody looks at its memory.
at::Tensor shape_only(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
  constexpr uintptr_t kNowhere = 64;  // an address that is not null and not memory either
  return at::from_blob(reinterpret_cast<void*>(kNowhere), sizes, strides,
                       at::TensorOptions().dtype(dtype));
}

}  // namespace

void ConvStep::run(Frame& frame) const {
  for (const Operand& operand : operands) {
    if (operand.written) frame.ensure(operand.buffer);
  }
  const at::Tensor input = frame.tensor(x), weight = frame.tensor(w);
  const at::ScalarType dtype = x.geometry.dtype;
  c10::SmallVector<void*, 12> pointers(operands.size());
  conv::Epilogue e;
  at::Tensor target;
  if (epilogue != nullptr) {
    resolve(frame, operands, pointers.data());
    e.function = epilogue;
    e.buffers = pointers.data();
    e.last = last;
    e.narrow = narrow;
    const conv::Strides to = e.strides(sizes[1], sizes[2], sizes[3]);
    target = shape_only(dtype, sizes, {to.image, to.channel, to.row, to.col});
  } else {
    target = shape_only(dtype, sizes, out->geometry.strides);
  }
  // A filter of the result reads all of its weights.
  const auto of_filter =
      double(w.geometry.numel) / double(std::max<int64_t>(w.geometry.sizes[0], 1));
  registry::count_flops(2.0 * double(c10::multiply_integers(sizes)) * of_filter);
  // The filters' transformed form is kept under its content's number, as in GemmStep.
  const bool keep = constant_w && frame.stable(w.buffer);
  const uint64_t generation = keep ? generation_of(*frame.owner(w.buffer)) : 0;
  const conv::Method method =
      conv::choose_conv2d(target, input, weight, {}, stride, padding, dilation, groups, e);
  if (method != conv::Method::kAten) {
    if (out) target = frame.tensor(*out);
    if (conv::try_conv2d(target, input, weight, {}, stride, padding, dilation, groups, e,
                         generation)) {
      return;
    }
  }
  std::optional<ScratchScope> scratch;
  if (frame.program().on_neuron()) scratch.emplace(frame.program().device);
  const at::DisableRecordFunctionGuard quiet;  // a profile shows the step
  if (!out) {
    conv::conv2d_by_aten(target, input, weight, {}, stride, padding, dilation, groups, e);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1}));
  store_result(
      frame, *out, whole,
      conv::convolve_by_aten(input, weight, {}, stride, padding, dilation, false, {0, 0}, groups));
}

}  // namespace torch_neuronx::program
