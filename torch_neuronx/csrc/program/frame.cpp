// One call of a program: memory, the loop over the steps, and who owns what.
#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "device/faults.h"
#include "device/profiler.h"
#include "device/state.h"
#include "dispatch/alias.h"
#include "memory/allocator.h"
#include "program/program.h"

namespace torch_neuronx::program {
namespace {

c10::Device device_of(c10::DeviceIndex index) {
  return index >= 0 ? c10::Device(kNeuron, index) : c10::Device(c10::DeviceType::CPU);
}

c10::Storage allocate(size_t bytes, c10::DeviceIndex device, Category category) {
  if (device >= 0) {
    return make_storage(bytes, allocate_on(device, bytes, category), device_allocator());
  }
  c10::Allocator* allocator = c10::GetCPUAllocator();
  return make_storage(bytes, allocator->allocate(bytes), allocator);
}

at::Tensor tensor_over(c10::Storage storage, const Geometry& geometry, int64_t offset,
                       bool on_core) {
  return torch_neuronx::tensor_over(std::move(storage), geometry.dtype, geometry.sizes,
                                    geometry.strides, offset, on_core);
}

void release_owner(void* context) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(context));
}

}  // namespace

at::Tensor make_tensor(const Geometry& geometry, c10::DeviceIndex device) {
  return tensor_over(allocate(static_cast<size_t>(geometry.high), device, Category::kTensors),
                     geometry, 0, device >= 0);
}

namespace {

// On the CPU freed memory goes back to the operating system, and a call would pay for its pages
// anew: each thread keeps the scratchpad of its last call, up to this size.
constexpr size_t kMostKept = size_t{128} << 20;
thread_local c10::Storage kept_scratch;

}  // namespace

c10::Storage allocate_scratch(size_t bytes, c10::DeviceIndex device) {
  if (device >= 0 || bytes > kMostKept) return allocate(bytes, device, Category::kScratchpad);
  // A program within a program finds it in use.
  if (kept_scratch && kept_scratch.use_count() > 1) {
    return allocate(bytes, device, Category::kScratchpad);
  }
  if (!kept_scratch || kept_scratch.nbytes() < bytes) {
    kept_scratch = allocate(bytes, device, Category::kScratchpad);
  }
  return kept_scratch;
}

Frame::Frame(const Program& program, c10::ArrayRef<Argument> arguments,
             c10::ArrayRef<Argument> targets)
    : program_(program),
      base_(program.buffers.size()),
      slots_(program.buffers.size()),
      in_flight_(static_cast<size_t>(program.collectives)) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const int32_t buffer = program.arguments[i];
    base_[buffer] = arguments[i].data;
    slots_[buffer].owner = arguments[i].owner;
    slots_[buffer].stable = arguments[i].stable && !program.buffers[buffer].written;
  }
  for (size_t i = 0; i < program.constants.size(); ++i) {
    const int32_t buffer = program.constants[i];
    const at::Tensor& tensor = program.constant_tensors[i];
    base_[buffer] = static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
    slots_[buffer].owner = tensor.storage().unsafeGetStorageImpl();
    slots_[buffer].stable = true;
  }
  if (program.scratch_bytes > 0) {
    scratch_ = allocate_scratch(static_cast<size_t>(program.scratch_bytes), program.device);
    char* data = static_cast<char*>(scratch_.mutable_data());
    for (const int32_t buffer : program.temps) {
      base_[buffer] = data + program.buffers[buffer].offset;
      slots_[buffer].owner = scratch_.unsafeGetStorageImpl();
    }
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const int32_t buffer = program.outputs[i];
    if (!targets.empty() && targets[i].owner != nullptr) {
      base_[buffer] = targets[i].data;
      slots_[buffer].owner = targets[i].owner;
    } else if (!program.buffers[buffer].late) {
      ensure(buffer);
    }
  }
}

void Frame::ensure(int32_t buffer) {
  Slot& slot = slots_[buffer];
  if (slot.owner != nullptr || program_.buffers[buffer].kind != BufferKind::kOutput) return;
  slot.tensor = make_tensor(program_.buffers[buffer].geometry, program_.device);
  slot.owner = slot.tensor.storage().unsafeGetStorageImpl();
  base_[buffer] = static_cast<char*>(slot.owner->mutable_data());
}

void Frame::run_step(const Step& step) {
  if (!profiling() || step.is_composite()) {
    return step.run(*this);
  }
  ActivityScope activity(step.name);
  if (program_.on_neuron()) activity.on(program_.device);
  ActivityScope::note({{"program", program_.name}});
  if (!step.loc.empty()) ActivityScope::note({{"source", step.loc}});
  step.run(*this);
}

void Frame::spoil(double value) {
  for (const int32_t buffer : program_.results) {
    const Buffer& facts = program_.buffers[buffer];
    if (facts.kind != BufferKind::kOutput || facts.geometry.numel == 0) continue;
    ensure(buffer);
    if (faults::spoil(base_[buffer], facts.geometry.dtype, value)) return;
  }
}

void Frame::run(std::span<at::Tensor> inputs) {
  const Step* current = nullptr;
  try {
    for (const auto& step : program_.steps) {
      current = step.get();
      run_step(*step);
      if (C10_UNLIKELY(!step->last_uses.empty()) && !inputs.empty()) {
        for (const int32_t argument : step->last_uses) {
          Slot& slot = slots_[program_.arguments[argument]];
          slot.cpu_alias = slot.core_alias = c10::Storage();
          inputs[argument].reset();
        }
      }
    }
  } catch (...) {
    rethrow_with_location(*current, program_);
  }
}

void Frame::run_steps(const std::vector<std::unique_ptr<Step>>& steps) {
  const Step* current = nullptr;
  try {
    for (const auto& step : steps) {
      current = step.get();
      run_step(*step);
    }
  } catch (...) {
    rethrow_with_location(*current, program_);
  }
}

const c10::Storage& Frame::alias(int32_t buffer, bool on_core) {
  Slot& slot = slots_[buffer];
  c10::Storage& storage = on_core ? slot.core_alias : slot.cpu_alias;
  if (!storage) {
    const c10::Device device = device_of(on_core ? program_.device : -1);
    const auto bytes = static_cast<size_t>(program_.buffers[buffer].geometry.high);
    c10::Allocator* allocator = on_core ? device_allocator() : c10::GetCPUAllocator();
    c10::raw::intrusive_ptr::incref(slot.owner);
    // An operator that wanted to give it other memory would be working beside the program.
    storage = make_storage(bytes, {base_[buffer], slot.owner, &release_owner, device}, allocator,
                           /*resizable=*/false);
  }
  return storage;
}

at::Tensor Frame::tensor(const View& view, bool on_core) {
  ensure(view.buffer);
  return tensor_over(alias(view.buffer, on_core), view.geometry, view.offset, on_core);
}

bool Frame::rebind(int32_t buffer, at::Tensor&& tensor) {
  Slot& slot = slots_[buffer];
  const Buffer& facts = program_.buffers[buffer];
  const bool late = facts.kind == BufferKind::kOutput && slot.owner == nullptr;
  if (!late && facts.kind != BufferKind::kTemp) return false;
  if (facts.pinned) return false;
  if (tensor.use_count() != 1 || tensor.storage_offset() != 0) return false;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (tensor.storage().use_count() != 1 || storage->data_ptr().get_deleter() == &release_owner) {
    return false;
  }
  const auto needed = static_cast<size_t>(facts.geometry.high);
  if (storage->nbytes() < needed || storage->nbytes() > 2 * needed + 4096) return false;
  if (late) {
    // The caller keeps it, so it must lie where the caller expects his tensors.
    const bool on_core = program_.on_neuron();
    if (on_core && !owns(storage->data_ptr())) return false;
    if (tensor.is_cpu() == on_core) {
      if (!on_core) return false;
      tensor = adopt(tensor, program_.device);
      storage = tensor.storage().unsafeGetStorageImpl();
    }
    if (tensor.device() != device_of(program_.device)) return false;
  }
  base_[buffer] = static_cast<char*>(storage->mutable_data());
  slot.owner = storage;
  slot.cpu_alias = slot.core_alias = c10::Storage();
  // Dimensions of one element may have come with any stride.
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(facts.geometry.sizes, facts.geometry.strides);
  slot.tensor = std::move(tensor);
  return true;
}

void rethrow_with_location(const Step& step, const Program& program) {
  const auto place = [&] {
    std::string text = "While running " + step.name + " of program " + program.name;
    if (!step.loc.empty()) text += ", written at " + step.loc;
    return text;
  };
  // With the GIL. What add_note raises (a class may define its own) must not hide the exception.
  const auto note = [&](PyObject* exception) {
    PyObject* done = PyObject_CallMethod(exception, "add_note", "s", place().c_str());
    if (done == nullptr) PyErr_Clear();
    Py_XDECREF(done);
  };
  try {
    throw;
  } catch (c10::Error& error) {
    error.add_context(place());
    throw;
  } catch (python_error& error) {
    const pybind11::gil_scoped_acquire gil;
    error.persist();
    PyErr_NormalizeException(&error.type, &error.value, &error.traceback);
    if (error.value != nullptr) note(error.value);
    throw;
  } catch (pybind11::error_already_set& error) {
    const pybind11::gil_scoped_acquire gil;
    note(error.value().ptr());
    throw;
  }
}

}  // namespace torch_neuronx::program
