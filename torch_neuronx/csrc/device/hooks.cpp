// The hooks through which PyTorch's generic code reaches the accelerator.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>

#include "device/generator.h"
#include "device/state.h"
#include "dispatch/deferred.h"
#include "memory/allocator.h"
#include "memory/host_allocator.h"

namespace torch_neuronx {
namespace {

struct NeuronHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return is_initialized() && index >= 0 && index < ::torch_neuronx::device_count();
  }
  void init() const override { ensure_initialized(); }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return exchange_device(index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device() : exchange_device(index);
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned_pointer(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return host_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    const auto index = device_of_pointer(data);
    TORCH_CHECK(index >= 0, "The pointer does not point into the memory of any neuron device");
    return {kNeuron, index};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    // Growing an empty storage touches no memory that anybody could have pending, and giving memory
    // up needs its place in the order only: who is enqueued reads it before its next owner writes.
    if (storage.nbytes() == 0) {
      run_deferred();
    } else if (bytes == 0) {
      order_deferred();
    } else {
      flush_deferred();
    }
    // Allocates through the storage's own allocator on its own device, and copies what fits.
    const c10::Device device = storage.device();
    c10::DeviceIndex previous = exchange_device(device.index());
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
    set_current_device_unchecked(previous);
    // An empty one would be on the host from now on. (FSDP frees parameters by resizing to
    // nothing.)
    if (bytes == 0) storage.set_data_ptr_noswap(c10::DataPtr(nullptr, device));
  }
};

[[maybe_unused]] const bool g_hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new NeuronHooks);
  at::setHostAllocator(kNeuron, host_allocator());
  return true;
}();

}  // namespace
}  // namespace torch_neuronx
