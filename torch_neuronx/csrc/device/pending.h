// What runs elsewhere while the host goes on: collectives, on the communication thread of a process
// group. Operators are not among it: they are done when their call returns, or in the queue of
// their stream (queue/queue.h), of which an event has a mark.
//
// Where calls are enqueued, a stream waits when it comes to that place of its queue, and the host
// goes on. In debug mode the default stream waits as soon as it is told to. Another stream
// remembers; the first operator, copy or synchronization that is issued on it waits, and so does
// whatever waits for an event that was recorded on it.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/FunctionRef.h>

#include <chrono>
#include <memory>
#include <vector>

namespace torch_neuronx {

// May be asked and waited for by several threads at once. Whoever implements it keeps the memory
// alive that the work reads and writes: freeing a tensor doesn't wait for a stream.
class Completion {
 public:
  virtual ~Completion() = default;
  // Finished, well or badly; never again false once true.
  virtual bool done() const noexcept = 0;
  // Returns when done; throws what failed, to everybody who waits. Called without Python's lock and
  // without any lock of the device.
  virtual void wait() = 0;
  // Of one that is done: whether it went well. Nobody is told by that.
  virtual bool went_well() noexcept {
    try {
      wait();  // doesn't block any more
    } catch (...) {
      return false;
    }
    return true;
  }
  // When it finished; the epoch if nobody wrote that down.
  virtual std::chrono::steady_clock::time_point finished_at() const noexcept { return {}; }
};
using Completions = std::vector<std::shared_ptr<Completion>>;

// `stream` is not to go on before `completion` is done. In debug mode the default stream waits
// here, and throws what failed; another is told when it comes to wait.
void add_pending(c10::Stream stream, std::shared_ptr<Completion> completion);
// The same for several.
void add_pending(c10::Stream stream, Completions completions);

// What the stream still has to wait for: what isn't done, and what failed without anybody of this
// stream having been told.
Completions pending_of(c10::Stream stream);

// Calls `body` on a stream of its own of the device, which has `completions` pending and is not
// used again: events recorded in it stand for them and nothing else.
void on_stream_with(const Completions& completions, c10::DeviceIndex device,
                    c10::function_ref<void()> body);

// Waits for all of them, then throws the first failure.
void wait_for(const Completions& completions);

// Removes what ended well from `completions`, and returns it.
Completions take_settled(Completions* completions);

// Waits, as wait_for(), for all that a stream, or any stream of a device, has pending, and
// forgets it: a stream is told once.
void wait_pending(c10::Stream stream);
void wait_pending(c10::DeviceIndex index);

// The same for the calling thread's current streams; part of flush_deferred().
void wait_pending_of_thread();

}  // namespace torch_neuronx
