// The emulated HBM of one logical NeuronCore: a caching arena over host memory.
//
// The arena owns one contiguous range of virtual addresses, backed by the kernel on first touch and
// by 2 MiB pages where the kernel grants them. A *chunk* is 2 MiB of it; chunks that were handed
// out at least once are "reserved" and count against the core's HBM. Requests up to 64 KiB come
// from slabs (2 MiB each, exact size classes of 512 bytes, O(1)); larger ones from a best-fit set
// of free blocks that coalesces with its neighbours. Metadata is kept out of line, so a kernel that
// writes out of bounds can't corrupt the allocator, and free chunks can be given back whole.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "memory/shared.h"
#include "memory/stream_order.h"

namespace torch_neuronx {

inline constexpr size_t kQuantum = 512;          // smallest block, and every block's alignment
inline constexpr size_t kSmallLimit = 64 << 10;  // largest request served from slabs
inline constexpr size_t kChunk = 2 << 20;        // unit of reservation; a huge page

// What a block is for; the rows of the out-of-memory table. Names as in the Neuron runtime's own
// table.
enum class Category : uint8_t { kTensors, kScratchpad, kCount };
const char* category_name(Category category);

struct Block {
  char* ptr = nullptr;
  size_t size = 0;        // bytes, a multiple of kQuantum
  size_t requested = 0;   // bytes the caller asked for
  Block* prev = nullptr;  // address neighbours; only for blocks of the best-fit set
  Block* next = nullptr;
  Block* slab = nullptr;      // the slab that a small block was cut from
  Block* bin_next = nullptr;  // next free block of the same size class
  uint64_t serial = 0;        // of its last allocation: no two are equal
  uint64_t freed = 0;         // of a free large block: when any part of it was last, see returns_
  uint32_t live = 0;          // of a slab: blocks in use
  int slot = 0;               // of the stream that it was allocated on last
  bool is_free = true;
  bool is_slab = false;
  bool reserved = false;  // all its chunks are known to be reserved
  std::atomic<Category> category{Category::kTensors};
};

struct BlockView {  // for snapshots
  size_t address, size, requested;
  bool in_use;
  Category category;
};
struct SegmentView {  // a run of reserved chunks; its blocks fill it
  size_t address, size;
  std::vector<BlockView> blocks;
};

class Arena {
 public:
  Arena(char* base, size_t virtual_bytes, size_t hbm_bytes, int device);

  // `bytes` > 0, for the stream with this slot (device/stream.h): no other uses the memory any
  // more. Throws c10::OutOfMemoryError when the core's HBM or the host's memory is exhausted.
  void* allocate(size_t bytes, Category category, int slot);
  void deallocate(void* ptr);
  // A call was enqueued on a stream that uses the block in use at `ptr`.
  void use(const void* ptr, int slot);
  void empty_cache();

  // The block at `ptr`, if there is one, was working memory and is a tensor's from now on.
  void become_tensor(void* ptr);

  // The block that starts at `ptr`; null if there is none.
  Block* find(const void* ptr) const { return table_[index_of(ptr)]; }

  // Which allocation the block at `ptr` is of, which is in use; and whether it still is, or may be
  // used by another stream than this thread's.
  uint64_t serial(const void* ptr) const {
    const Block* block = find(ptr);
    return block == nullptr ? 0 : block->serial;
  }
  bool is_in_use(const void* ptr, uint64_t serial);

  // A number that changes whenever the memory at `ptr`, where a block starts, is written through
  // the device or handed out anew, so that caches derived from its content (packed weights) can
  // tell. Never repeats within a process. It stands beside the blocks because a queued call may ask
  // after the block was freed.
  std::atomic<uint64_t>& generation(const void* ptr) const { return generations_[index_of(ptr)]; }

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();
  size_t reserved_bytes();
  std::array<size_t, static_cast<size_t>(Category::kCount)> bytes_by_category();
  std::vector<SegmentView> segments();
  // See share_arena().
  SharedArena share();
  char* base() const { return base_; }

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
    }
  };

  size_t index_of(const void* ptr) const {
    return static_cast<size_t>(static_cast<const char*>(ptr) - base_) / kQuantum;
  }
  Block* new_block(char* ptr, size_t size);
  void recycle(Block* block);
  Block** find_small(size_t size, int slot);
  Block* take_small(size_t size, int slot);
  Block* take_large(size_t size, int slot);
  Block* cut(Block* block, size_t size);
  bool reserve(Block* block);
  void release_slab(Block* slab);
  void release_empty_slabs();
  void view(const Block& block, std::vector<BlockView>* views) const;
  void give_back(Block* block);
  // Gives the host back what was free when this was called and still is; returns whether there was
  // anything. The lock is open meanwhile.
  bool decommit_free_blocks(std::unique_lock<std::mutex>& lock);
  // Take memory for freshly reserved chunks at once if they are shared; give that of free ones
  // back.
  void commit_chunks(size_t first, size_t last);
  bool decommit_chunks(size_t first, size_t last);
  void count(const Block* block, bool up);
  [[noreturn]] void out_of_memory(size_t bytes, bool host);
  std::string memory_table(size_t bytes);
  std::array<size_t, static_cast<size_t>(Category::kCount)> bytes_by_category_locked() const;

  char* const base_;
  const size_t virtual_bytes_;
  const size_t hbm_bytes_;
  const int device_;

  std::mutex mutex_;
  Block** table_;                       // block that starts at each quantum; demand-zero pages
  std::atomic<uint64_t>* generations_;  // likewise
  std::deque<Block> storage_;           // owns every Block; addresses are stable
  std::vector<Block*> spare_;           // unused Blocks of storage_
  std::set<Block*, BySize> free_;       // free large blocks
  std::array<Block*, kSmallLimit / kQuantum + 1> bins_{};  // free small blocks by size class
  std::vector<Block*> slabs_;
  Block* slab_ = nullptr;  // the slab being cut, from slab_used_
  size_t slab_used_ = 0;
  StreamOrder order_;
  std::vector<bool> chunk_reserved_;
  size_t shared_bytes_ = 0;  // of the arena, from its base on, are in a memory file
  size_t reserved_ = 0;
  uint64_t serials_ = 0;
  uint64_t returns_ = 0;  // how often a large block became free: a clock
  size_t checked_host_at_ = 0;
  bool out_of_host_memory_ = false;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

// A number that no earlier call returned.
uint64_t next_generation();

}  // namespace torch_neuronx
