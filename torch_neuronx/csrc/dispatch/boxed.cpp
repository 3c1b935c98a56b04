#include "dispatch/boxed.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>

#include "device/faults.h"
#include "device/generator.h"
#include "device/profiler.h"
#include "device/state.h"
#include "dispatch/alias.h"
#include "dispatch/deferred.h"
#include "dispatch/devices.h"
#include "dispatch/foreach.h"
#include "dispatch/host_kernels.h"
#include "dispatch/predicting.h"
#include "dispatch/schema.h"
#include "memory/allocator.h"
#include "queue/issue.h"

namespace torch_neuronx {
namespace {

using c10::IValue;
using Kind = OpPlan::Kind;
using torch::jit::Stack;

// The same functionality (dense, sparse, quantized...) on the CPU backend.
c10::DispatchKeySet cpu_keys(c10::DispatchKeySet keys) {
  return keys.remove_backend(c10::BackendComponent::PrivateUse1Bit) |
         c10::DispatchKeySet(c10::BackendComponent::CPUBit);
}

const c10::DispatchKeySet& excluded_inside() {
  static const c10::DispatchKeySet keys =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1});
  return keys;
}

// Calls see(tensor) for each tensor of an argument.
template <class See>
void for_each_tensor(const IValue& value, Kind kind, See see) {
  if (value.isTensor()) {
    see(value.toTensor());
  } else if (!value.isNone() && (kind == Kind::kTensorList || kind == Kind::kOptionalTensorList)) {
    for (const IValue& item : value.toListRef())
      if (item.isTensor()) see(item.toTensor());
  }
}

// What a call's arguments say about it: the device that new memory belongs to, and the dtype that
// it is counted under.
struct Placement {
  c10::Device device;
  c10::ScalarType dtype;
};

Placement place(const OpPlan& plan, const c10::OperatorHandle& op, const Stack& stack) {
  const size_t base = stack.size() - plan.arguments;
  CommonCore core;
  std::optional<c10::Device> named;
  std::optional<c10::ScalarType> dtype, named_dtype;
  for (const auto& arg : plan.args) {
    const IValue& value = stack[base + arg.index];
    if (value.isNone()) continue;
    if (arg.kind == Kind::kDevice) {
      named = value.toDevice();
    } else if (arg.kind == Kind::kDtype) {
      named_dtype = value.toScalarType();
    } else {
      for_each_tensor(value, arg.kind, [&](const at::Tensor& t) {
        core.see(t, arg.written);
        // A Python number is a float64 tensor that says nothing about the data: (2.0 - x).
        if (!dtype && t.defined() && !t.unsafeGetTensorImpl()->is_wrapped_number())
          dtype = t.scalar_type();
      });
    }
  }
  if (!dtype) dtype = named_dtype ? *named_dtype : c10::get_default_dtype_as_scalartype();
  c10::Device device(kNeuron, core.index());
  if (C10_UNLIKELY(core.doubtful())) {
    LocatedTensors tensors;
    for (const auto& arg : plan.args) {
      for_each_tensor(stack[base + arg.index], arg.kind, [&](const at::Tensor& t) {
        if (t.defined()) tensors.push_back({&t, arg.index});
      });
    }
    device = check_devices(op.schema(), tensors);
  }
  if (named) device = *named;  // tensors may give such a call its values, and no place
  if (device.is_privateuseone()) device.set_index(resolve_device_index(device.index()));
  return {device, *dtype};
}

void adopt_value(IValue& value, c10::DeviceIndex index) {
  if (value.isTensor()) {
    value = adopt(value.toTensor(), index);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& t : value.toTensorVector()) made.push_back(adopt(t, index));
    value = std::move(made);
  }
}

bool has_default_strides(const at::Tensor& t) {
  return t.strides() == at::IntArrayRef(c10::contiguous_strides(t.sizes()));
}

// Some of ATen's kernels write an out= tensor as if it were contiguous, whatever its strides:
// softmax, triu of several batches, pools in three dimensions, narrow_copy and others. Which, no
// list says, and they write outside of it. So all get a contiguous tensor, and its values are
// copied; most don't come here, because a result is contiguous or the device's own kernel makes it.
void stand_in_for_outs(const OpPlan& plan, Stack& stack, StandIns& stand_ins) {
  const size_t base = stack.size() - plan.arguments;
  for (const auto& arg : plan.args) {
    if (!arg.out || !stack[base + arg.index].isTensor()) continue;
    const at::Tensor out = stack[base + arg.index].toTensor();
    if (!out.defined() || out.layout() != at::kStrided || out.is_quantized() || out.is_nested() ||
        has_default_strides(out))
      continue;
    // What the kernel would have refused, if it looks.
    at::assert_no_internal_overlap(out);
    for (const auto& other : plan.args) {
      if (other.written) continue;
      for_each_tensor(stack[base + other.index], other.kind, [&](const at::Tensor& t) {
        if (t.defined() && t.layout() == at::kStrided) at::assert_no_partial_overlap(out, t);
      });
    }
    at::Tensor copy = at::empty(out.sizes(), out.options());
    stand_ins.add(out, copy);
    stack[base + arg.index] = std::move(copy);
  }
}

}  // namespace

void run_boxed(const OpPlan& plan, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
               Stack* stack) {
  ensure_initialized();  // refuses a forked child
  flush_deferred();
  const queue::Inside inside;
  ActivityScope activity(plan.entry.name);
  const size_t base = stack->size() - plan.arguments;
  const auto [device, dtype] = place(plan, op, *stack);
  const bool on_core = device.is_privateuseone();
  // Where a call makes nothing on a core (a copy to the host), its generator is the current one's.
  const c10::DeviceIndex index = on_core ? device.index() : current_device();
  activity.on(index);
  predicting::Counted counted;
  if (predicting::asked()) counted.of(op, *stack);
  plan.entry.note(dtype);

  AliasSet aliases;
  c10::SmallVector<IValue, 2> originals(plan.return_alias.size());
  for (size_t r = 0; r < plan.return_alias.size(); ++r) {
    if (plan.return_alias[r] >= 0)
      originals[r] = (*stack)[base + static_cast<size_t>(plan.return_alias[r])];
  }
  for (const auto& arg : plan.args) {
    IValue& value = (*stack)[base + arg.index];
    const auto alias = [&](const at::Tensor& t) {
      return on_neuron(t) ? aliases.cpu(t, arg.written) : t;
    };
    if (value.isTensor()) {
      if (on_neuron(value.toTensor())) value = aliases.cpu(value.toTensor(), arg.written);
    } else if (arg.kind == Kind::kGenerator) {
      std::optional<at::Generator> given;
      if (!value.isNone()) given = value.toGenerator();
      value = host_generator(given, index);
    } else if (value.isNone()) {
      continue;
    } else if (arg.kind == Kind::kTensorList) {
      c10::List<at::Tensor> list;
      for (const IValue& item : value.toListRef()) list.push_back(alias(item.toTensor()));
      value = std::move(list);
    } else if (arg.kind == Kind::kOptionalTensorList) {
      c10::List<std::optional<at::Tensor>> list;
      for (const IValue& item : value.toListRef())
        list.push_back(item.isTensor() ? std::optional<at::Tensor>(alias(item.toTensor()))
                                       : std::nullopt);
      value = std::move(list);
    } else if (arg.kind == Kind::kDevice && value.toDevice().is_privateuseone()) {
      value = c10::Device(c10::DeviceType::CPU);
    }
  }
  {
    std::optional<ScratchScope> scratch;
    if (on_core) scratch.emplace(index);
    const at::DisableRecordFunctionGuard quiet;  // a profile shows the device's operator, once
    const c10::impl::ExcludeDispatchKeyGuard guard(excluded_inside());
    StandIns outs, others;
    stand_in_for_outs(plan, *stack, outs);
    const bool dense = cpu_keys(keys).highestPriorityTypeId() == c10::DispatchKey::CPU;
    if (C10_UNLIKELY(plan.demands != nullptr) && dense) others = meet(*plan.demands, op, *stack);
    if (C10_UNLIKELY(plan.host_kernel != nullptr) && dense)
      plan.host_kernel->callBoxed(op, cpu_keys(keys), stack);
    else
      op.redispatchBoxed(cpu_keys(keys), stack);
    others.store();
    outs.store_resized();
  }
  aliases.finish();
  const size_t first = stack->size() - plan.return_alias.size();
  for (size_t r = 0; r < plan.return_alias.size(); ++r) {
    IValue& value = (*stack)[first + r];
    if (plan.return_alias[r] >= 0) {
      value = std::move(originals[r]);
    } else if (on_core) {
      adopt_value(value, index);
    }
  }
  if (const double by = activity.spoilt_by(); C10_UNLIKELY(by != 0)) {
    for (size_t r = first; r < stack->size(); ++r)
      if ((*stack)[r].isTensor() && faults::spoil((*stack)[r].toTensor(), by)) break;
  }
}

namespace {

class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const c10::OperatorHandle& op) : plan_(op) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    ensure_initialized();  // refuses a forked child
    if (queue::watches_waits() && issuer(op).reads_values(*stack))
      queue::note_wait(plan_.entry.name);
    if (queue::asynchronous() && (queue::busy() || elements(*stack) >= queue::direct_elements())) {
      order_deferred();
      issuer(op)(op, keys, stack);
    } else {
      run_boxed(plan_, op, keys, stack);
    }
  }

 private:
  int64_t elements(const Stack& stack) const {
    int64_t count = 0;
    for (const auto& arg : plan_.args) {
      for_each_tensor(stack[stack.size() - plan_.arguments + arg.index], arg.kind,
                      [&](const at::Tensor& t) {
                        if (t.defined() && t.layout() == at::kStrided && !t.is_nested())
                          count += t.numel();
                      });
    }
    return count;
  }

  // Made when it is first asked for: there are thousands of operators.
  queue::Issuer& issuer(const c10::OperatorHandle& op) {
    std::call_once(issuer_once_, [&] {
      const auto run = [this](const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                              Stack* stack) { run_boxed(plan_, handle, keys, stack); };
      issuer_ = std::make_unique<queue::Issuer>(op, run);
    });
    return *issuer_;
  }

  const OpPlan plan_;
  std::once_flag issuer_once_;
  std::unique_ptr<queue::Issuer> issuer_;
};

// For operators that were registered after us (custom operators with a CPU kernel).
void boxed_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  static std::mutex mutex;
  static std::unordered_map<c10::OperatorName, std::unique_ptr<OpPlan>> plans;
  const OpPlan* plan = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& slot = plans[op.operator_name()];
    if (!slot) slot = std::make_unique<OpPlan>(op);
    plan = slot.get();
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasKernelForAnyDispatchKey(c10::DispatchKeySet(cpu_keys(keys).highestPriorityTypeId())) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd),
      "The operator '", plan->entry.name,
      "' is not implemented for the neuron device, and has no CPU "
      "kernel to run instead. Register one with torch.library for \"cpu\" or \"neuron\".");
  run_boxed(*plan, op, keys, stack);
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace

OpPlan::OpPlan(const c10::OperatorHandle& op)
    : entry(op_entry(full_name(op.operator_name()))),
      demands(demands_of(op)),
      host_kernel(host_kernel_of(op)) {
  const auto& schema = op.schema();
  arguments = schema.arguments().size();
  for (size_t i = 0; i < arguments; ++i) {
    const auto& argument = schema.arguments()[i];
    const bool written = is_written(argument);
    const c10::TypePtr type = strip_optional(argument.real_type());
    if (is_tensor(type)) {
      args.push_back({i, Kind::kTensor, written, argument.is_out() && is_aten(op.operator_name())});
    } else if (const auto list = type->cast<c10::ListType>()) {
      if (list->getElementType()->kind() == c10::TypeKind::TensorType) {
        args.push_back({i, Kind::kTensorList, written});
      } else if (is_tensor(strip_optional(list->getElementType()))) {
        args.push_back({i, Kind::kOptionalTensorList, written});
      }
    } else if (type->kind() == c10::TypeKind::DeviceObjType) {
      args.push_back({i, Kind::kDevice, false});
    } else if (type->kind() == c10::TypeKind::GeneratorType) {
      args.push_back({i, Kind::kGenerator, false});
    } else if (type->kind() == c10::TypeKind::ScalarTypeType && argument.name() == "dtype") {
      args.push_back({i, Kind::kDtype, false});
    }
  }
  for (const auto& ret : schema.returns()) return_alias.push_back(written_argument(schema, ret));
}

namespace {

// Composite operators that run whole on the host: what they are made of asks for CPU tensors,
// chooses the fastest kernel by looking at the device, is called without the dispatcher, or trusts
// its caller, so that there must be a check in front.
constexpr const char* kWholeOnHost[] = {
    // clang-format off
    "convolution_backward", "mode.values", "conj_physical_",
    "kaiser_window", "kaiser_window.beta", "kaiser_window.periodic", "_batch_norm_no_update",
    "_chunk_cat", "_chunk_cat.out", "_foreach_copy",
    "_nnpack_spatial_convolution", "_nnpack_spatial_convolution.out",
    // clang-format on
};

// For each operator that has a kernel under `host`, the boxed kernel under `device`. Backend by
// backend, because a composite kernel would otherwise win over the fallback.
void register_for(c10::DispatchKey host, c10::DispatchKey device) {
  // Lives as long as the process, as registrations do.
  auto* library = new torch::Library(torch::Library::IMPL, "aten", device, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto add = [&](const c10::OperatorHandle& op) {
    library->impl(full_name(op.operator_name()).substr(6).c_str(),
                  torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(op)));
  };
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!is_aten(name)) continue;
    const auto op = dispatcher.findOp(name);
    if (op && op->hasKernelForDispatchKey(host) && !op->hasKernelForDispatchKey(device)) add(*op);
  }
  if (device != c10::DispatchKey::PrivateUse1) return;
  for (const char* name : kWholeOnHost) add(find_operator(std::string("aten::") + name));
}

}  // namespace

void register_boxed_kernels() {
  using c10::DispatchKey;
  // Lives as long as the process, as registrations do.
  static auto* foreach = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1,
                                            __FILE__, __LINE__);
  register_foreach(*foreach);
  register_for(DispatchKey::CPU, DispatchKey::PrivateUse1);
  register_for(DispatchKey::SparseCPU, DispatchKey::SparsePrivateUse1);
  register_for(DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrPrivateUse1);
  register_for(DispatchKey::QuantizedCPU, DispatchKey::QuantizedPrivateUse1);
  register_for(DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorPrivateUse1);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}

}  // namespace torch_neuronx
