// Streams. Each has a queue of its own (queue/queue.h), whose work is done in the order of issue.
// Where nothing is enqueued, in debug mode, a stream is an identity that programs can select,
// compare and wait on, with a list of what it has to wait for (device/pending.h). An event is a
// time stamp with a copy of such a list, and a mark in the queue.
#pragma once

#include <c10/core/Stream.h>

namespace torch_neuronx {

// Stream 0 is the default one; 1..kPool have normal, kPool+1..2*kPool high priority, as many as a
// CUDA device has, so that programs written for it don't run out.
inline constexpr c10::StreamId kPool = 32;
// The queue of a stream: its own, or the default stream's for those that are not of the pool (they
// exist within a future's callback, or were made from a number).
inline constexpr int kStreams = 1 + 2 * kPool;
inline int slot_of(c10::StreamId id) { return id > 0 && id < kStreams ? static_cast<int>(id) : 0; }
inline bool has_own_queue(c10::StreamId id) { return id >= 0 && id < kStreams; }
// Of the stream of a core that is current on this thread.
int current_slot(c10::DeviceIndex core);

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
