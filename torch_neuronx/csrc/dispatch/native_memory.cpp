// Native operators on memory: allocation, views, storage, copies, reading a scalar.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/arange_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <vector>

#include "device/on_device.h"
#include "device/profiler.h"
#include "device/state.h"
#include "device/stream.h"
#include "dispatch/alias.h"
#include "dispatch/native.h"
#include "memory/allocator.h"
#include "memory/host_allocator.h"
#include "queue/queue.h"

namespace torch_neuronx {
namespace {

c10::DeviceIndex target_index(std::optional<c10::Device> device) {
  ensure_initialized();
  if (!device.has_value()) return current_device();
  TORCH_CHECK(device->is_privateuseone(), "expected a neuron device, but got ", *device);
  return resolve_device_index(device->index());
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "Non strided layout not supported");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Pin memory can only be on CPU");
}

at::Tensor fill_if_deterministic(at::Tensor t) {
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(t);
  }
  return t;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  check_options(layout, pin_memory);
  const OnDevice guard(target_index(device));
  return fill_if_deterministic(at::detail::empty_generic(size, device_allocator(), kKeys,
                                                         c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const OnDevice guard(target_index(device));
  return fill_if_deterministic(at::detail::empty_strided_generic(
      size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype)));
}

// PyTorch's makes an empty tensor and has it resized, so each new length would be a new kind of
// call, which waits; a program that decodes makes a new length with each token.
at::Tensor arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                  std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                  std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const bool whole = start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true);
  const at::ScalarType type =
      dtype.value_or(whole ? at::kLong : c10::get_default_dtype_as_scalartype());
  const bool known = type == at::kLong || type == at::kInt || type == at::kFloat;
  const auto at_the_call = [&] {
    return at::native::arange(start, end, step, dtype, layout, device, pin_memory);
  };
  if (!queue::asynchronous() || !known || g_portability.load(std::memory_order_relaxed) != 0)
    return at_the_call();
  const int64_t size = type == at::kLong
                           ? at::native::compute_arange_size<int64_t>(start, end, step)
                           : at::native::compute_arange_size<float>(start, end, step);
  if (!queue::busy() && size < queue::direct_elements()) return at_the_call();
  at::Tensor made = empty({size}, type, layout, device, pin_memory, std::nullopt);
  if (size == 0) return made;
  order_deferred();
  static OpEntry& entry = op_entry("aten::arange.start_out");
  entry.note(type);
  void* const data = made.mutable_data_ptr();
  queue::push(made.device().index(), std::make_unique<queue::FunctionWork>("aten::arange", [=] {
                at::Tensor out = at::from_blob(data, {size}, type);
                at::arange_out(out, start, end, step);
                mark_written(data);
              }));
  return made;
}

// What PyTorch has for these would not come by the above.
at::Tensor arange_to(const at::Scalar& end, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<at::Device> device,
                     std::optional<bool> pin_memory) {
  return arange(0, end, 1, dtype, layout, device, pin_memory);
}
at::Tensor arange_from_to(const at::Scalar& start, const at::Scalar& end,
                          std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                          std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return arange(start, end, 1, dtype, layout, device, pin_memory);
}

// A storage keeps its allocator, and this kind knows one device.
at::native::ZeroTensorAllocator* zero_allocator(c10::DeviceIndex index) {
  static auto& allocators = *[] {
    auto* all = new std::vector<at::native::ZeroTensorAllocator>;
    all->reserve(device_count());
    for (c10::DeviceIndex i = 0; i < device_count(); ++i)
      all->emplace_back(c10::Device(kNeuron, i));
    return all;
  }();
  return &allocators[index];
}

// All-zero tensors that autograd passes around without memory.
at::Tensor efficient_zero(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                          std::optional<at::Layout>, std::optional<at::Device> device,
                          std::optional<bool>) {
  const auto keys = kKeys.add(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(size, zero_allocator(target_index(device)), keys,
                                   c10::dtype_or_default(dtype), std::nullopt);
}

// The allocator works on the current device, so an allocation elsewhere selects it.
const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  const OnDevice guard(self.device().index());
  return at::native::resize_(self, size, format);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  const OnDevice guard(self.device().index());
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}
at::Tensor& set_storage_whole(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}
at::Tensor& set_nothing(at::Tensor& self) {
  c10::DataPtr none = allocate_on(self.device().index(), 0, Category::kTensors);
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, std::move(none), device_allocator(),
                       true);
  return set_storage(self, std::move(storage), 0, {0}, {});
}

// As the CPU's copy has it. Tensors of different storages share nothing.
void check_overlap(const at::Tensor& self, const at::Tensor& source) {
  const auto storage = [](const at::Tensor& t) {
    return t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
  };
  if (C10_LIKELY(storage(self) != storage(source))) return;
  at::assert_no_partial_overlap(self, source);
}

// The plain case: equal types and shapes, both sides contiguous strided memory.
bool is_plain_copy(const at::Tensor& self, const at::Tensor& source) {
  const auto plain = [](const at::Tensor& t) {
    return t.layout() == at::kStrided && (t.device().is_cpu() || on_neuron(t)) &&
           t.is_contiguous() && !t.is_conj() && !t.is_neg() && !t.is_quantized() &&
           !t._is_zerotensor();
  };
  return self.scalar_type() == source.scalar_type() && !self.is_nested() && !source.is_nested() &&
         plain(self) && plain(source) && self.sizes() == source.sizes();
}

void move_bytes(void* to, const void* from, size_t bytes) {
  constexpr int64_t kGrain = 1 << 20;  // bytes; below that one thread is faster
  at::parallel_for(0, static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end) {
    std::memmove(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                 static_cast<size_t>(end - begin));
  });
}

bool copy_bytes(const at::Tensor& self, const at::Tensor& source) {
  if (!is_plain_copy(self, source)) return false;
  move_bytes(self.mutable_data_ptr(), source.const_data_ptr(), self.nbytes());
  if (on_neuron(self)) mark_written(*self.storage().unsafeGetStorageImpl());
  return true;
}

// A copy between a core and the host that waits in the queue. `staged` is what it reads if the
// owner of the host's memory may change that after the call.
class HostCopy final : public queue::Work {
 public:
  HostCopy(c10::DeviceIndex core, void* to, const void* from, size_t bytes, const void* written,
           std::unique_ptr<char[]> staged)
      : core_(core),
        to_(to),
        from_(from),
        bytes_(bytes),
        written_(written),
        staged_(std::move(staged)) {}
  void run() override {
    static const std::string activity_name = "aten::copy_";
    ActivityScope activity(activity_name);
    activity.on(core_);
    predicting::Counted counted;
    if (predicting::asked()) counted.of_nothing();
    if (watched()) ActivityScope::note_copy(written_ != nullptr ? "HtoD" : "DtoH", bytes_);
    move_bytes(to_, from_, bytes_);
    if (written_ != nullptr) mark_written(written_);
  }
  std::string name() const override { return c10::str("a copy of ", bytes_, " bytes"); }

 private:
  const c10::DeviceIndex core_;
  void* const to_;
  const void* const from_;
  const size_t bytes_;
  const void* const written_;  // the block of a core that holds `to`
  const std::unique_ptr<char[]> staged_;
};

// As on CUDA: what is smaller is read at the call, and the call doesn't wait.
constexpr size_t kStagedBytes = 64 << 10;

// Whether a copy between a core and the host is done when its call returns, as CUDA's would be.
bool waits_for_host(const at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const bool onto_core = on_neuron(self);
  if (onto_core == on_neuron(source)) return false;
  const at::Tensor& host = onto_core ? source : self;
  if (!host.has_storage()) return true;
  return !(non_blocking && is_pinned_pointer(host.const_data_ptr())) &&
         !(onto_core && host.nbytes() <= kStagedBytes);
}

// Enqueues a copy between a core and the host where that changes nothing for the caller: pinned
// memory that the caller leaves alone, or few bytes, which are read now.
bool enqueue_copy(const at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const bool onto_core = on_neuron(self);
  if (onto_core == on_neuron(source) || !is_plain_copy(self, source)) return false;
  const at::Tensor& host = onto_core ? source : self;
  const size_t bytes = self.nbytes();
  const bool pinned = non_blocking && is_pinned_pointer(host.const_data_ptr());
  const bool staged = !pinned && onto_core && bytes <= kStagedBytes && queue::busy();
  if (!(pinned || staged) || bytes == 0 || g_portability.load(std::memory_order_relaxed) != 0)
    return false;
  for (const at::Tensor* t : {&self, &source}) {
    const size_t end = static_cast<size_t>(t->storage_offset()) * t->itemsize() + bytes;
    if (t->storage().nbytes() < end) return false;
  }
  order_deferred();
  static OpEntry& entry = op_entry("aten::copy_");
  entry.note(self.scalar_type());
  const c10::DeviceIndex core = (onto_core ? self : source).device().index();
  std::unique_ptr<char[]> copied;
  const void* from = source.const_data_ptr();
  if (pinned) {
    const c10::DataPtr& data = host.storage().data_ptr();
    host_allocator()->record_event(host.mutable_data_ptr(), data.get_context(),
                                   current_stream(core));
  } else {
    copied = std::make_unique_for_overwrite<char[]>(bytes);
    std::memcpy(copied.get(), from, bytes);
    from = copied.get();
  }
  void* const to = self.mutable_data_ptr();
  const void* written = onto_core ? block_of(self.storage().data_ptr()) : nullptr;
  queue::push(core, std::make_unique<HostCopy>(core, to, from, bytes, written, std::move(copied)));
  use_on(current_stream(core), block_of((onto_core ? self : source).storage().data_ptr()));
  return true;
}

// Both sides are host memory: alias what is on a device and let the CPU's copy do the rest, which
// covers every pair of cores, dtypes, layouts, strides and conjugation.
at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  // PyTorch's fallback for zeros without memory leaves copies, and what is made of them, to us.
  TORCH_CHECK(!self._is_zerotensor(),
              "ZeroTensors are immutable. Please use the materialized zero tensor obtained using "
              ".clone() if you want a mutable tensor.");
  if (source._is_zerotensor()) return self.zero_();
  if (self.is_same(source)) return self;
  check_overlap(self, source);
  if (watched() && self.device() != source.device()) {
    const bool both = on_neuron(self) && on_neuron(source);
    ActivityScope::note_copy(both ? "DtoD" : on_neuron(self) ? "HtoD" : "DtoH", self.nbytes());
  }
  if (copy_bytes(self, source)) return self;
  AliasSet aliases;
  at::Tensor to = on_neuron(self) ? aliases.cpu(self, true) : self;
  const at::Tensor from = on_neuron(source) ? aliases.cpu(source, false) : source;
  TORCH_CHECK(to.device().is_cpu() && from.device().is_cpu(), "can't copy from ", source.device(),
              " to ", self.device());
  {
    const c10::impl::ExcludeDispatchKeyGuard guard(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    to.copy_(from, non_blocking);
  }
  aliases.finish();
  return self;
}
at::Tensor& copy_in_order(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  ensure_initialized();
  if (queue::asynchronous() && enqueue_copy(self, source, non_blocking)) return self;
  if (queue::watches_waits() && waits_for_host(self, source, non_blocking))
    queue::note_wait("aten::copy_");
  return Native<"aten::copy_", &copy>::call(self, source, non_blocking);
}
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  at::Tensor out = destination;
  return copy(out, self, non_blocking);
}
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  at::Tensor out = destination;
  out.resize_(self.sizes());
  return copy(out, self, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  return at::native::_local_scalar_dense_cpu(self);  // reads through the data pointer
}

void record_stream(at::Tensor& self, at::Stream stream) {
  TORCH_CHECK(stream.device_type() == kNeuron,
              "record_stream expects a neuron stream, but got one of ", stream.device());
  use_on(stream, block_of(self.storage().data_ptr()));
}

// PyTorch's question before `x.data = y`, which Module.to uses: may y's memory take the place of
// x's?
bool compatible(const at::Tensor& self, const at::Tensor& from) {
  const auto kind = [](const at::Tensor& t) {
    return t.is_nested()                             ? -1
           : at::sparse_csr::is_sparse_compressed(t) ? 2
                                                     : static_cast<int>(t.is_sparse());
  };
  const auto known = [](const at::Tensor& t) { return t.device().is_cpu() || on_neuron(t); };
  return self.key_set() == from.key_set() ||
         (known(self) && known(from) && kind(self) >= 0 && kind(self) == kind(from));
}

// PyTorch's own does not ask whether the view ends within the storage.
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
}
at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  return at::native::view(self, size);
}
at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

// Of dense tensors PyTorch says this itself; of the others it pins the parts, which here would be
// aliases in host memory.
at::Tensor refuse_to_pin(const at::Tensor& self, std::optional<at::Device>) {
  TORCH_CHECK(false, "cannot pin '", self.toString(), "' only dense CPU tensors can be pinned");
}
bool is_not_pinned(const at::Tensor&, std::optional<at::Device>) { return false; }

#define TN_NEVER_PINNED(key)                        \
  TORCH_LIBRARY_IMPL(aten, key, m) {                \
    m.impl("_pin_memory", TORCH_FN(refuse_to_pin)); \
    m.impl("is_pinned", TORCH_FN(is_not_pinned));   \
  }
TN_NEVER_PINNED(SparsePrivateUse1)
TN_NEVER_PINNED(SparseCsrPrivateUse1)
TN_NEVER_PINNED(NestedTensorPrivateUse1)
#undef TN_NEVER_PINNED

// The CPU's copy_ is one for dense and quantized tensors; a storage is the device's own.
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  NEURON_IMPL(m, "copy_", copy);
  NEURON_IMPL(m, "_copy_from", copy_from);
  NEURON_IMPL(m, "set_.source_Storage_storage_offset", set_storage);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_efficientzerotensor", TORCH_FN(efficient_zero));
  m.impl("arange", TORCH_FN(arange_to));
  m.impl("arange.start", TORCH_FN(arange_from_to));
  m.impl("arange.start_step", TORCH_FN(arange));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("unfold", TORCH_FN(unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(compatible));
  m.impl("record_stream", TORCH_FN(record_stream));
  NEURON_IMPL(m, "resize_", resize);
  NEURON_IMPL(m, "set_.source_Storage_storage_offset", set_storage);
  NEURON_IMPL(m, "set_.source_Storage", set_storage_whole);
  NEURON_IMPL(m, "set_.source_Tensor", set_tensor);
  NEURON_IMPL(m, "set_", set_nothing);
  m.impl("copy_", TORCH_FN(copy_in_order));
  NEURON_IMPL(m, "_copy_from", copy_from);
  NEURON_IMPL(m, "_copy_from_and_resize", copy_from_and_resize);
  NEURON_IMPL(m, "_local_scalar_dense", local_scalar);
}

}  // namespace
}  // namespace torch_neuronx
