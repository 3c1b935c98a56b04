// Which memory of a core the streams may still use after it was freed.
//
// A stream does its work in the order of issue, so what it freed it may have again at once: the
// next owner's work is done later. Another stream may not, before the work that uses the memory is
// done. So memory remembers the stream that it was allocated on, and every other one that a call
// was enqueued on which uses it: nobody has to call record_stream(), and the memory of calls that
// wait is never handed to a stream that doesn't.
//
// While no other stream than the default one was ever selected, nothing is written down.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>

namespace torch_neuronx {

// In the place of a stream's slot: memory that no stream uses.
inline constexpr int kNoStream = -1;

namespace detail {
extern std::atomic<bool> g_stream_order;
void begin_stream_order_slow();
}  // namespace detail
// Whether any thread ever selected another than the default stream.
inline bool has_stream_order() { return detail::g_stream_order.load(std::memory_order_acquire); }
inline void begin_stream_order() {
  if (!has_stream_order()) detail::begin_stream_order_slow();
}

// Of one core; whoever calls it has the lock of the core's arena.
class StreamOrder {
 public:
  explicit StreamOrder(c10::DeviceIndex core) : core_(core) {}

  // A call was enqueued on the stream with this slot that uses the block in use at `ptr`.
  void use(const char* ptr, int slot);
  // The memory was freed, which was allocated on the stream with this slot, at `ptr`.
  void freed(char* ptr, size_t bytes, int slot);
  // The memory was allocated.
  void taken(char* ptr, size_t bytes);
  // Where in `bytes` at `ptr` the first `wanted` bytes are that no stream but the one with this
  // slot uses any more; `bytes` if there are none.
  size_t find(const char* ptr, size_t bytes, size_t wanted, int slot);
  // Whether another stream than the one with this slot may use what is at `ptr`.
  bool is_used_by_others(const char* ptr, int slot);

 private:
  struct Use {
    int slot;
    uint64_t position;  // of the stream's queue
  };
  using Uses = c10::SmallVector<Use, 2>;
  struct Range {
    size_t bytes;
    Uses uses;
  };
  using Ranges = std::map<const char*, Range>;

  static void note(Uses* uses, int slot, uint64_t position);
  bool is_open(const Uses& uses, int but) const;
  // The first range that ends behind `ptr`.
  Ranges::iterator first_behind(const char* ptr);

  const c10::DeviceIndex core_;
  std::map<const char*, Uses> in_use_;  // of blocks that other streams than their own use
  Ranges freed_;                        // they don't overlap
};

}  // namespace torch_neuronx
