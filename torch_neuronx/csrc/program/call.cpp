#include "program/call.h"

#include "device/generator.h"
#include "device/profiler.h"
#include "device/state.h"
#include "dispatch/deferred.h"
#include "memory/allocator.h"
#include "program/tallies.h"
#include "registry/registry.h"

namespace torch_neuronx::program {
namespace {

// Strides of dimensions of one element, or of a tensor without any, mean nothing.
bool strides_fit(const Geometry& wanted, at::IntArrayRef strides) {
  if (strides == at::IntArrayRef(wanted.strides) || wanted.numel == 0) return true;
  for (size_t d = 0; d < strides.size(); ++d) {
    if (wanted.sizes[d] != 1 && strides[d] != wanted.strides[d]) return false;
  }
  return true;
}

// Plain memory: no subclass with a __torch_dispatch__, nothing lazy, sparse, quantised or nested.
bool is_plain(const c10::TensorImpl& impl) {
  constexpr c10::DispatchKeySet kUnfit(
      {c10::DispatchKey::Python, c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  const c10::DispatchKeySet keys = impl.key_set();
  return keys.has(c10::DispatchKey::Dense) && !keys.has_any(kUnfit) && impl.has_storage();
}

bool device_fits(const Program& program, c10::Device device) {
  // Device memory is host memory, so a tensor on the host is read where it is.
  return device.is_cpu() ||
         (device.is_privateuseone() && program.on_neuron() && device.index() == program.device);
}

bool memory_fits(const Geometry& wanted, const c10::TensorImpl& impl) {
  if (wanted.numel == 0) return true;
  const c10::StorageImpl* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  const auto end = static_cast<size_t>(impl.storage_offset() * wanted.itemsize() + wanted.high);
  return storage->data() != nullptr && storage->nbytes() >= end;
}

[[noreturn]] void refuse(const Program& program, size_t i, const at::Tensor& tensor) {
  const Buffer& buffer = program.buffers[program.arguments[i]];
  const Geometry& g = buffer.geometry;
  const std::string name = buffer.name.empty() ? "" : " (" + buffer.name + ")";
  const std::string place = program.on_neuron() ? c10::str("neuron:", int(program.device)) : "cpu";
  const std::string wanted = describe(g.dtype, g.sizes, g.strides) + ", on " + place;
  if (!tensor.defined() || !is_plain(*tensor.unsafeGetTensorImpl())) {
    TORCH_CHECK_VALUE(false, "program ", program.name, ": argument ", i, name, " must be a plain ",
                      wanted, ", got ", tensor.toString(),
                      tensor.defined() && tensor.is_conj() ? " that is lazily conjugated" : "",
                      tensor.defined() && tensor.is_neg() ? " that is lazily negated" : "");
  }
  if (tensor.scalar_type() == g.dtype && tensor.sizes() == at::IntArrayRef(g.sizes) &&
      strides_fit(g, tensor.strides()) && device_fits(program, tensor.device())) {
    TORCH_CHECK_VALUE(false, "program ", program.name, ": argument ", i, name,
                      " reaches beyond its storage of ", tensor.storage().nbytes(), " bytes");
  }
  TORCH_CHECK_VALUE(false, "program ", program.name, ": argument ", i, name, " must be ", wanted,
                    ", got ", describe(tensor.scalar_type(), tensor.sizes(), tensor.strides()),
                    ", on ", tensor.device());
}

// Caches that were made from an argument must notice that a step wrote to it, even if a later step
// failed.
struct Marks {
  const Program& program;
  const Tensors& inputs;
  ~Marks() {
    for (const int32_t i : program.written_arguments) {
      if (inputs[i].defined()) mark_written(*inputs[i].storage().unsafeGetStorageImpl());
    }
  }
};

}  // namespace

void check_argument(const Program& program, size_t i, const at::Tensor& tensor) {
  const Geometry& wanted = program.buffers[program.arguments[i]].geometry;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (C10_LIKELY(is_plain(*impl) && device_fits(program, impl->device()) &&
                 impl->dtype() == c10::scalarTypeToTypeMeta(wanted.dtype) &&
                 impl->sizes() == at::IntArrayRef(wanted.sizes) &&
                 strides_fit(wanted, impl->strides()) && memory_fits(wanted, *impl))) {
    return;
  }
  refuse(program, i, tensor);
}

void unsettle_shared_memory(const Program& program, std::span<Argument> arguments) {
  if (!program.packs) return;
  for (const int32_t w : program.written_arguments) {
    for (Argument& other : arguments) {
      if (other.owner == arguments[w].owner) other.stable = false;
    }
  }
}

Tensors call(const Program& program, Tensors& inputs) {
  if (program.on_neuron()) ensure_initialized();  // refuses a forked child
  flush_deferred();
  const queue::Inside inside;
  registry::Execution execution;
  if (program.on_neuron()) execution.on(program.device);
  c10::SmallVector<Argument, 8> arguments(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool written = program.buffers[program.arguments[i]].written;
    // Asking for writable memory makes a lazy copy real.
    const void* data = written ? inputs[i].mutable_data_ptr() : inputs[i].const_data_ptr();
    arguments[i] = {static_cast<char*>(const_cast<void*>(data)),
                    inputs[i].storage().unsafeGetStorageImpl(), true};
  }
  unsettle_shared_memory(program, arguments);
  const Marks marks{program, inputs};
  ActivityScope activity(program.name, ActivityKind::kProgram);
  if (program.on_neuron()) activity.on(program.device);
  Frame frame(program, arguments);
  const uint64_t draws = draws_of_thread();
  frame.run(inputs);
  if (program.draws) program.known_draws.store(static_cast<int64_t>(draws_of_thread() - draws));
  if (const double value = activity.spoilt_by(); C10_UNLIKELY(value != 0)) frame.spoil(value);
  add_tallies(program);
  Tensors results;
  for (const int32_t buffer : program.results) {
    const Buffer& facts = program.buffers[buffer];
    if (facts.kind == BufferKind::kInput) {
      results.push_back(inputs[facts.index]);
    } else {
      frame.ensure(buffer);
      results.push_back(frame.output(buffer));
    }
  }
  return results;
}

}  // namespace torch_neuronx::program
