// PyTorch's device guard: current device, streams and events of `neuron`.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

#include "device/state.h"
#include "device/stream.h"

namespace torch_neuronx {
namespace {

struct Event {
  bool timing = false;
  bool recorded = false;
  std::chrono::steady_clock::time_point when;
};

struct NeuronGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNeuron; }

  c10::Device exchangeDevice(c10::Device device) const override {
    TORCH_CHECK(device.type() == kNeuron, "expected a neuron device, but got ", device);
    if (device.index() < 0) return getDevice();
    return {kNeuron, exchange_device(device.index())};
  }
  c10::Device getDevice() const override { return {kNeuron, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) set_current_device_unchecked(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(device.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return new_stream(device.index(), high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return new_stream(device.index(), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  // There is no driver object behind a stream; its identity serves as the handle.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool queryStream(const c10::Stream& stream) const override {
    synchronize(stream.device_index());
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    synchronize(resolve_device_index(index));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "Event device index ",
                static_cast<int>(index), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) *event = new Event;
    synchronize(stream.device_index());
    auto& e = *static_cast<Event*>(*event);
    e.timing = flag == c10::EventFlag::BACKEND_DEFAULT;
    e.recorded = true;
    e.when = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream& stream) const override {
    check_device_index(stream.device_index());  // what the event stands for has already run
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    const auto& a = *static_cast<Event*>(start);
    const auto& b = *static_cast<Event*>(end);
    TORCH_CHECK(a.timing && b.timing,
                "Both events must be created with argument 'enable_timing=True'.");
    return std::chrono::duration<double, std::milli>(b.when - a.when).count();
  }

  // The dtypes a tensor may have; which of them a real NeuronCore computes in is the operator
  // table's matter (torch_neuronx.ops).
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    resolve_device_index(device.index());
    return {};
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NeuronGuard);

}  // namespace
}  // namespace torch_neuronx
