// Streams and events. Work is executed in the order of its issue, so a stream is an identity that
// programs can select, compare and wait on, and an event is a time stamp.
#pragma once

#include <c10/core/Stream.h>

namespace torch_neuronx {

c10::Stream default_stream(c10::DeviceIndex index);
c10::Stream current_stream(c10::DeviceIndex index);
// Makes `stream` current on its device for this thread; returns the one it replaces.
c10::Stream exchange_stream(c10::Stream stream);
// A stream of the device's pool; `priority` < 0 is high.
c10::Stream new_stream(c10::DeviceIndex index, int priority);

// Runs whatever the device has deferred. After it returns, all issued work is visible in memory.
void synchronize(c10::DeviceIndex index);

}  // namespace torch_neuronx
