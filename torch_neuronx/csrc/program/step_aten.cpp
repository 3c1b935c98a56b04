// Operators of PyTorch's CPU library on views of the program's memory.
#include <ATen/record_function.h>

#include "dispatch/deferred.h"
#include "dispatch/op_table.h"
#include "dispatch/trusting.h"
#include "memory/allocator.h"
#include "program/plain_dispatch.h"
#include "program/steps.h"

namespace torch_neuronx::program {
namespace {

c10::IValue make_argument(Frame& frame, const AtenArgument& argument, bool on_core) {
  const auto tensor = [&](const std::optional<View>& view) {
    return view ? std::optional<at::Tensor>(frame.tensor(*view, on_core)) : std::nullopt;
  };
  switch (argument.kind) {
    case AtenArgument::Kind::kConstant:
      return argument.constant;
    case AtenArgument::Kind::kTensor:
      return *tensor(argument.views[0]);
    case AtenArgument::Kind::kTensorList: {
      c10::List<at::Tensor> list;
      for (const auto& view : argument.views) list.push_back(*tensor(view));
      return list;
    }
    case AtenArgument::Kind::kOptionalTensorList: {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& view : argument.views) list.push_back(tensor(view));
      return list;
    }
  }
  return {};
}

bool same_strides(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && a[d] != b[d]) return false;
  }
  return true;
}

// The results one after another; lists of tensors are laid open.
std::vector<at::Tensor> flatten(torch::jit::Stack& stack) {
  std::vector<at::Tensor> results;
  for (c10::IValue& value : stack) {
    if (value.isTensor()) {
      results.push_back(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
    } else {
      results.emplace_back();
    }
  }
  stack.clear();
  return results;
}

}  // namespace

void AtenStep::run(Frame& frame) const {
  if (noted) {
    frame.ensure(noted->buffer);
    if (*frame.at(*noted) == 0) return;
  }
  if (counted != nullptr) counted->note(counted_as);
  const bool core = on_core && frame.program().on_neuron();
  std::vector<at::Tensor> results;
  {
    torch::jit::Stack stack;
    stack.reserve(arguments.size());
    for (const AtenArgument& argument : arguments) {
      stack.push_back(make_argument(frame, argument, core));
    }
    std::optional<ScratchScope> scratch;
    if (frame.program().on_neuron() && !core) scratch.emplace(frame.program().device);
    const at::DisableRecordFunctionGuard quiet;  // a profile shows the step
    const c10::impl::ExcludeDispatchKeyGuard guard(excluded_inside());
    const WithoutModes modes;
    StandIns stand_ins;
    if (demands != nullptr) stand_ins = meet(*demands, op, stack);
    if (host_kernel != nullptr)
      host_kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    else
      op.callBoxed(&stack);
    stand_ins.store();
    results = flatten(stack);
    flush_deferred();  // the next step reads memory without asking
  }
  TORCH_CHECK(results.size() == outs.size(), "the operator returned ", results.size(),
              " results, the program expects ", outs.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    if (!outs[i]) continue;
    at::Tensor& result = results[i];
    TORCH_CHECK(result.defined() && result.layout() == at::kStrided && result.has_storage(),
                "result ", i, " is not a dense tensor");
    if (result.is_conj() || result.is_neg()) result = result.resolve_conj().resolve_neg();
    store_result(frame, *outs[i], whole[i], std::move(result), i);
  }
}

// Operators of others may be Python's, which wants the caller's thread.
bool AtenStep::may_wait() const {
  const std::string& name = op.operator_name().name;
  const bool ours = name.starts_with("aten::") || name.starts_with("neuron::check_");
  return ours && demands == nullptr && on_core == draws();
}

void store_result(Frame& frame, const View& out, bool whole, at::Tensor&& result, size_t index) {
  const Geometry& g = out.geometry;
  TORCH_CHECK(result.scalar_type() == g.dtype && result.sizes() == at::IntArrayRef(g.sizes),
              "result ", index, " is ", describe(result.scalar_type(), result.sizes()),
              ", the program expects ", describe(g.dtype, g.sizes));
  if (whole && same_strides(g.sizes, g.strides, result.strides()) &&
      frame.rebind(out.buffer, std::move(result))) {
    return;
  }
  frame.ensure(out.buffer);
  const Geometry from =
      make_geometry(g.dtype, Extents(result.sizes().begin(), result.sizes().end()),
                    Extents(result.strides().begin(), result.strides().end()));
  copy_view(frame.at(out), g, static_cast<const char*>(result.const_data_ptr()), from);
}

}  // namespace torch_neuronx::program
