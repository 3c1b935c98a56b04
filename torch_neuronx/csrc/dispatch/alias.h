// CPU views of device tensors and back. Device memory is host memory, so a CPU kernel can run on it
// through an alias: a CPU tensor that shares the device storage's bytes and keeps that storage
// alive. What the kernel returns is adopted: its memory already lies in the core's HBM
// (ScratchScope), so only the ownership moves.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace torch_neuronx {

// The aliases of one operator call. Tensors that share a storage, and a tensor passed twice, share
// their alias too, so that the kernel's overlap checks see what they would see on the CPU.
class AliasSet {
 public:
  // `written`: the operator may write to it; see finish().
  at::Tensor cpu(const at::Tensor& device_tensor, bool written);

  // After the kernel ran: carries resized shapes and replaced memory of written tensors back.
  void finish();

 private:
  struct Pair {
    at::Tensor device, cpu;
    bool written;
  };
  at::Tensor make(const at::Tensor& device_tensor, bool written);
  c10::Storage storage(const c10::Storage& device_storage, bool written);
  at::Tensor make_dense(const at::Tensor& device_tensor, bool written);

  c10::SmallVector<Pair, 4> tensors_;
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 4> storages_;
};

// The device tensor for a CPU tensor that a kernel returned, on core `index`. Shares memory where
// it can (see above), copies only memory that isn't ours.
at::Tensor adopt(const at::Tensor& cpu_tensor, c10::DeviceIndex index);

// The same for a bare storage.
c10::Storage adopt_storage(const c10::Storage& cpu_storage, c10::DeviceIndex index);

inline bool on_neuron(const at::Tensor& t) { return t.defined() && t.device().is_privateuseone(); }

// The core of whichever of the two is on one.
inline c10::DeviceIndex core_of(const at::Tensor& a, const at::Tensor& b) {
  return (on_neuron(a) ? a : b).device().index();
}

}  // namespace torch_neuronx
