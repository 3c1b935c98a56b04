// PyTorch's device guard: current device, streams and events of `neuron`.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <chrono>

#include "device/event.h"
#include "device/pending.h"
#include "device/state.h"
#include "device/stream.h"
#include "dispatch/deferred.h"
#include "queue/queue.h"

namespace torch_neuronx {
namespace {

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
  // A failure counts as done; whoever waits is told.
  bool queryStream(const c10::Stream& stream) const override {
    check_device_index(stream.device_index());
    run_deferred();
    if (queue::busy(stream)) return false;
    const Completions pending = pending_of(stream);
    return std::all_of(pending.begin(), pending.end(), [](const auto& c) { return c->done(); });
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    synchronize(resolve_device_index(index));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "Event device index ",
                static_cast<int>(index), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) *event = new Event;
    check_device_index(stream.device_index());
    run_deferred();
    Completions pending = pending_of(stream);
    if (auto mark = queue::mark(stream)) pending.push_back(std::move(mark));
    static_cast<Event*>(*event)->record(
        stream.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT, std::move(pending));
  }
  void block(void* event, const c10::Stream& stream) const override {
    check_device_index(stream.device_index());
    if (event == nullptr) return;  // never recorded
    Completions pending = static_cast<Event*>(event)->pending();
    // What is issued later stands behind the marks of its own stream.
    pending.erase(std::remove_if(pending.begin(), pending.end(),
                                 [&](const auto& completion) {
                                   return queue::is_mark_of(*completion, stream);
                                 }),
                  pending.end());
    add_pending(stream, std::move(pending));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->done();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) static_cast<Event*>(event)->wait();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before calculating elapsed time.");
    auto &first = *static_cast<Event*>(start), &last = *static_cast<Event*>(end);
    const int from = first.core(), to = last.core();
    TORCH_CHECK(from == to, "Both events must be of one device to have an elapsed time, but they ",
                "were recorded on neuron:", from, " and neuron:", to, ".");
    const auto begin = first.time();
    return std::chrono::duration<double, std::milli>(last.time() - begin).count();
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
