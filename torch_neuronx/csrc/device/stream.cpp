#include "device/stream.h"

#include <array>
#include <atomic>

#include "device/pending.h"
#include "device/state.h"
#include "dispatch/deferred.h"
#include "memory/stream_order.h"

namespace torch_neuronx {
namespace {

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
  if (slot_of(slot) != 0) begin_stream_order();
  return previous;
}

int current_slot(c10::DeviceIndex core) { return slot_of(t_current[static_cast<size_t>(core)]); }

bool on_side_stream() { return t_side_streams > 0; }

c10::Stream new_stream(c10::DeviceIndex index, int priority) {
  const auto device = resolve_device_index(index);
  begin_stream_order();  // before something that waits is enqueued on the default stream
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
  queue::wait(stream);
  wait_pending(stream);
}

}  // namespace torch_neuronx
