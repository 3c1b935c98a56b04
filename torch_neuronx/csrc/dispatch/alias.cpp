#include "dispatch/alias.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/zeros.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/COW.h>

#include <cstring>

#include "device/on_device.h"
#include "memory/allocator.h"

namespace torch_neuronx {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// The context of an alias's memory is the device storage, one reference of which it holds.
void release_owner(void* context) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(context));
}
c10::DataPtr alias_pointer(c10::StorageImpl* owner, void* data) {
  c10::raw::intrusive_ptr::incref(owner);
  return {data, owner, &release_owner, c10::Device(c10::DeviceType::CPU)};
}
c10::StorageImpl* alias_owner(const c10::DataPtr& data) {
  return data.get_deleter() == &release_owner ? static_cast<c10::StorageImpl*>(data.get_context())
                                              : nullptr;
}

// Moves the memory of a CPU storage that a kernel allocated to the device; the CPU storage, which
// others may still hold, becomes an alias of the result.
c10::DataPtr steal(c10::StorageImpl& cpu, c10::DeviceIndex index) {
  c10::DataPtr data = cpu.set_data_ptr(c10::DataPtr());
  void* p = data.get();
  const bool whole = is_block(data);
  const auto deleter = data.get_deleter();
  void* context = data.release_context();
  if (whole) arena(index).become_tensor(p);
  return {p, context, deleter, c10::Device(kNeuron, index)};
}

template <class Impl>
void copy_flags(const at::Tensor& from, Impl* to) {
  if (from.is_conj()) to->_set_conj(true);
  if (from.is_neg()) to->_set_neg(true);
}

// A dense tensor over `storage` with the geometry of `like`.
at::Tensor dense_like(c10::Storage storage, const at::Tensor& like, bool device) {
  at::Tensor result;
  if (like.is_quantized()) {
    const DispatchKeySet keys(device ? DispatchKey::QuantizedPrivateUse1
                                     : DispatchKey::QuantizedCPU);
    result = at::detail::make_tensor<at::QTensorImpl>(std::move(storage), keys, like.dtype(),
                                                      at::get_qtensorimpl(like)->quantizer());
  } else {
    const DispatchKeySet keys(device ? DispatchKey::PrivateUse1 : DispatchKey::CPU);
    result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  }
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  copy_flags(like, impl);
  return result;
}

// Rebuilds `t` on the other side, each dense component through `convert`.
template <class Convert>
at::Tensor rebuild(const at::Tensor& t, bool device, Convert convert) {
  if (t.is_nested()) {
    const auto* impl = at::native::get_nested_tensor_impl(t);
    // The second key is every nested tensor's: without it composite operators that have a kernel
    // for nested tensors would be taken apart for dense ones.
    const DispatchKeySet keys(
        {device ? DispatchKey::NestedTensorPrivateUse1 : DispatchKey::NestedTensorCPU,
         DispatchKey::AutogradNestedTensor});
    const at::Tensor buffer = convert(impl->get_unsafe_storage_as_tensor());
    // The shapes of a nested tensor live on the host on every device.
    return at::detail::make_tensor<at::native::NestedTensorImpl>(
        buffer.storage(), keys, t.dtype(), impl->get_nested_sizes(), impl->get_nested_strides(),
        impl->get_storage_offsets());
  }
  if (t.layout() == at::kSparse) {
    const auto* impl = static_cast<const at::SparseTensorImpl*>(t.unsafeGetTensorImpl());
    const DispatchKeySet keys(device ? DispatchKey::SparsePrivateUse1 : DispatchKey::SparseCPU);
    const at::Tensor values = convert(impl->values());
    // The tensor takes the current device at its birth, and keeps it.
    const OnDevice guard(device ? values.device().index() : current_device());
    at::Tensor result = at::detail::make_tensor<at::SparseTensorImpl>(keys, t.dtype());
    auto* made = at::sparse::get_sparse_impl(result);
    made->raw_resize_(impl->sparse_dim(), impl->dense_dim(), t.sizes());
    at::sparse::alias_into_sparse(result, convert(impl->indices()), values);
    made->set_coalesced(impl->coalesced());
    return result;
  }
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(t);
  const DispatchKeySet keys(device ? DispatchKey::SparseCsrPrivateUse1 : DispatchKey::SparseCsrCPU);
  const at::Tensor values = convert(impl->values());
  at::Tensor result = at::detail::make_tensor<at::SparseCsrTensorImpl>(keys, values.device(),
                                                                       t.layout(), t.dtype());
  at::sparse_csr::get_sparse_csr_impl(result)->set_member_tensors(
      convert(impl->compressed_indices()), convert(impl->plain_indices()), values, t.sizes());
  return result;
}

bool is_plain(const at::Tensor& t) { return t.layout() == at::kStrided && !t.is_nested(); }

}  // namespace

c10::Storage AliasSet::storage(const c10::Storage& device_storage, bool written) {
  c10::StorageImpl* owner = device_storage.unsafeGetStorageImpl();
  if (written) {
    if (c10::impl::cow::is_cow_data_ptr(owner->data_ptr()))
      owner->mutable_data();  // materialise a lazy clone before it is written
    mark_written(*owner);
  }
  for (const auto& [device, cpu] : storages_)
    if (device == owner) return cpu;
  void* data = const_cast<void*>(owner->data());
  storages_.emplace_back(
      owner, make_storage(owner->nbytes(), alias_pointer(owner, data), c10::GetCPUAllocator()));
  return storages_.back().second;
}

at::Tensor AliasSet::make_dense(const at::Tensor& t, bool written) {
  return dense_like(storage(t.storage(), written), t, /*device=*/false);
}

at::Tensor AliasSet::make(const at::Tensor& t, bool written) {
  // Forward-mode autograd's zeros have no memory. Most operators see them filled; `dot` and `vdot`
  // are left to do with them as they like.
  if (C10_UNLIKELY(t._is_zerotensor())) return at::zeros(t.sizes(), t.dtype());
  if (C10_LIKELY(is_plain(t))) {
    TORCH_CHECK_NOT_IMPLEMENTED(t.has_storage(), "neuron tensors of type ", t.toString(),
                                " have no storage and can't be used here");
    return make_dense(t, written);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(t.layout() != at::kMkldnn && t.layout() != at::kJagged, "layout ",
                              t.layout(), " is not supported on neuron");
  return rebuild(t, /*device=*/false, [&](const at::Tensor& part) {
    return on_neuron(part) ? make_dense(part, written) : part;
  });
}

at::Tensor AliasSet::cpu(const at::Tensor& t, bool written) {
  for (auto& pair : tensors_) {
    if (pair.device.is_same(t)) {
      if (written && !pair.written) {
        pair.written = true;
        if (is_plain(t)) storage(t.storage(), true);
      }
      return pair.cpu;
    }
  }
  tensors_.push_back({t, make(t, written), written});
  // A few CPU kernels keep more for a backward pass that they see coming.
  if (at::GradMode::is_enabled() && t.requires_grad()) tensors_.back().cpu.set_requires_grad(true);
  return tensors_.back().cpu;
}

void AliasSet::finish() {
  for (auto& [device, cpu, written] : tensors_) {
    if (!written) continue;
    const auto index = device.device().index();
    if (!is_plain(device)) {
      const at::Tensor now = adopt(cpu, index);
      device.unsafeGetTensorImpl()->shallow_copy_from(now.getIntrusivePtr());
      continue;
    }
    const c10::Storage& storage = cpu.storage();
    c10::StorageImpl* owner = device.storage().unsafeGetStorageImpl();
    if (C10_UNLIKELY(alias_owner(storage.data_ptr()) != owner)) {
      // The kernel gave the alias new memory (resize_) or another storage (set_).
      bool own_alias = false;
      for (const auto& [o, alias] : storages_)
        own_alias = own_alias ||
                    (o == owner && alias.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl());
      if (own_alias && owns(storage.data_ptr())) {
        const size_t bytes = storage.nbytes();
        c10::DataPtr data = steal(*storage.unsafeGetStorageImpl(), index);
        void* p = data.get();
        owner->set_data_ptr_noswap(std::move(data));
        owner->set_nbytes(bytes);
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(alias_pointer(owner, p));
      } else {
        device.unsafeGetTensorImpl()->set_storage_keep_dtype(adopt_storage(storage, index));
      }
    }
    if (C10_UNLIKELY(device.is_quantized()))
      at::get_qtensorimpl(device)->set_quantizer_(at::get_qtensorimpl(cpu)->quantizer());
    auto* impl = device.unsafeGetTensorImpl();
    if (C10_UNLIKELY(impl->sizes() != cpu.sizes() || impl->strides() != cpu.strides() ||
                     impl->storage_offset() != cpu.storage_offset())) {
      impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }
}

c10::Storage adopt_storage(const c10::Storage& cpu, c10::DeviceIndex index) {
  c10::StorageImpl* impl = cpu.unsafeGetStorageImpl();
  if (auto* owner = alias_owner(impl->data_ptr())) {
    return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(owner));
  }
  const size_t bytes = impl->nbytes();
  if (owns(impl->data_ptr())) {
    c10::Storage made = make_storage(bytes, steal(*impl, index), device_allocator());
    auto* owner = made.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(alias_pointer(owner, made.mutable_data()));
    return made;
  }
  c10::DataPtr data = allocate_on(index, bytes, Category::kTensors);
  if (bytes > 0) std::memcpy(data.get(), impl->data(), bytes);
  return make_storage(bytes, std::move(data), device_allocator());
}

at::Tensor adopt(const at::Tensor& cpu, c10::DeviceIndex index) {
  if (!cpu.defined() || !cpu.device().is_cpu()) return cpu;
  if (C10_LIKELY(is_plain(cpu))) {
    TORCH_CHECK_NOT_IMPLEMENTED(cpu.has_storage(), "a result of type ", cpu.toString(),
                                " can't live on neuron");
    return dense_like(adopt_storage(cpu.storage(), index), cpu, /*device=*/true);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(cpu.layout() != at::kMkldnn && cpu.layout() != at::kJagged,
                              "a result of layout ", cpu.layout(), " can't live on neuron");
  return rebuild(cpu, /*device=*/true, [&](const at::Tensor& part) { return adopt(part, index); });
}

}  // namespace torch_neuronx
