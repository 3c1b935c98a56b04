#include "device/stream.h"

#include <array>
#include <atomic>

#include "device/pending.h"
#include "device/state.h"
#include "dispatch/deferred.h"

namespace torch_neuronx {
namespace {

// Stream 0 is the default one; 1..kPool have normal, kPool+1..2*kPool high priority, as many as a
// CUDA device has, so that programs written for it don't run out.
constexpr c10::StreamId kPool = 32;
std::array<std::atomic<uint32_t>, kMaxDevices> g_next_normal{};
std::array<std::atomic<uint32_t>, kMaxDevices> g_next_high{};
thread_local std::array<c10::StreamId, kMaxDevices> t_current{};
thread_local int t_side_streams = 0;  // how many of t_current are not the default stream

c10::Stream make(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNeuron, index), id);
}

}  // namespace

c10::Stream default_stream(c10::DeviceIndex index) { return make(resolve_device_index(index), 0); }

c10::Stream current_stream(c10::DeviceIndex index) {
  const auto device = resolve_device_index(index);
  return make(device, t_current[static_cast<size_t>(device)]);
}

c10::Stream exchange_stream(c10::Stream stream) {
  check_device_index(stream.device_index());
  auto& slot = t_current[static_cast<size_t>(stream.device_index())];
  const auto previous = make(stream.device_index(), slot);
  t_side_streams += (stream.id() != 0) - (slot != 0);
  slot = stream.id();
  return previous;
}

bool on_side_stream() { return t_side_streams > 0; }

c10::Stream new_stream(c10::DeviceIndex index, int priority) {
  const auto device = resolve_device_index(index);
  auto& counter = (priority < 0 ? g_next_high : g_next_normal)[static_cast<size_t>(device)];
  const auto slot = static_cast<c10::StreamId>(counter.fetch_add(1) % kPool);
  return make(device, 1 + slot + (priority < 0 ? kPool : 0));
}

void synchronize(c10::DeviceIndex index) {
  check_device_index(index);
  run_deferred();
  queue::wait(index);
  wait_pending(index);
}

void synchronize(c10::Stream stream) {
  check_device_index(stream.device_index());
  run_deferred();
  queue::wait(stream.device_index());
  wait_pending(stream);
}

}  // namespace torch_neuronx
