// Streams. The operators of a core are executed in the order of their issue, so a stream is an
// identity that programs can select, compare and wait on, with a list of what it has to wait for
// (device/pending.h); an event is a time stamp with a copy of such a list, and a mark in the queue.
#pragma once

#include <c10/core/Stream.h>

namespace torch_neuronx {

c10::Stream default_stream(c10::DeviceIndex index);
c10::Stream current_stream(c10::DeviceIndex index);
// Makes `stream` current on its device for this thread; returns the one it replaces.
c10::Stream exchange_stream(c10::Stream stream);
// A stream of the device's pool; `priority` < 0 is high.
c10::Stream new_stream(c10::DeviceIndex index, int priority);

// True when this thread has selected another than the default stream on any device.
bool on_side_stream();

// Runs whatever the device has deferred and waits for whatever any of its streams has pending.
// After it returns, all issued work is visible in memory. Throws what failed.
void synchronize(c10::DeviceIndex index);
void synchronize(c10::Stream stream);

}  // namespace torch_neuronx
