#include "memory/arena.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "device/python_lock.h"
#include "device/state.h"
#include "device/stream.h"
#include "memory/fraction.h"
#include "memory/guards.h"
#include "memory/history.h"
#include "memory/host_limits.h"
#include "queue/queue.h"
#include "registry/registry.h"

namespace torch_neuronx {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatType;

constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Neighbours of equal size start at different offsets within a page and within the sets of a cache.
// At one offset, a loop over several tensors (an optimizer reads four and writes three) keeps
// evicting its own lines and waits for stores that merely look like its loads: AdamW took half as
// long again.
constexpr size_t kSkew = 3 * kQuantum;

// Coarser rounding for larger requests keeps the best-fit set short; the waste stays under 9 %.
size_t rounded(size_t bytes) {
  if (bytes <= kSmallLimit) return round_up(bytes, kQuantum);
  if (bytes <= kChunk) return round_up(bytes, 4 << 10) + kSkew;
  return round_up(bytes, 64 << 10) + kSkew;
}

constexpr size_t kHostCheckStep = 256 << 20;  // look at the host's memory each time we grew by this
constexpr size_t kHostMargin = 256 << 20;     // and leave this much to everybody else

std::string gib(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f GiB", static_cast<double>(bytes) / (1ULL << 30));
  return text;
}

void* reserve_zero_pages(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(p != MAP_FAILED, "can't reserve ", bytes, " bytes of address space");
  return p;
}

// Between guards all of the arena is out of reach but the blocks in use. What no block covers of
// its pages is filled with kFill, which is looked at when the block is freed.
constexpr size_t kPage = 4 << 10;
constexpr size_t kAligned = 64;  // addresses of blocks between guards
constexpr char kFill = '\xff';

// A block between guards: its pages, the last of which stays closed, and the caller's part of them.
struct Guarded {
  explicit Guarded(const Block& block)
      : pages(block.ptr),
        open(block.size - kPage),
        data(guards() == Guards::kAfter ? block.ptr + open - round_up(block.requested, kAligned)
                                        : block.ptr),
        bytes(block.requested) {}
  void protect(int access) const {
    TORCH_CHECK(mprotect(pages, open, access) == 0, "mprotect failed");
  }
  // Calls fn(begin, end) for what lies in open pages and is not the caller's.
  template <class Fn>
  void around(Fn fn) const {
    fn(pages, data);
    fn(data + bytes, pages + open);
  }

  char* const pages;
  const size_t open;
  char* const data;
  const size_t bytes;
};

}  // namespace

const char* category_name(Category category) {
  static constexpr const char* kNames[] = {"Tensors", "Scratchpad"};
  return kNames[static_cast<size_t>(category)];
}

uint64_t next_generation() {
  static std::atomic<uint64_t> counter{0};
  return counter.fetch_add(1, std::memory_order_relaxed) + 1;
}

namespace {

using Stats = c10::CachingDeviceAllocator::DeviceStats;

// Reserved memory by pool: that of slabs is the small pool's. A slab has the size of a chunk and
// need not begin where one does.
void count_chunks(Stats& stats, StatType pool, size_t chunks, bool up) {
  const auto i = static_cast<size_t>(pool);
  up ? stats.reserved_bytes[i].increase(chunks * kChunk)
     : stats.reserved_bytes[i].decrease(chunks * kChunk);
  up ? stats.segment[i].increase(chunks) : stats.segment[i].decrease(chunks);
}

// Changes the current value; peak and totals follow.
void set_current(Stat& stat, size_t value) {
  const auto now = static_cast<size_t>(stat.current);
  value > now ? stat.increase(value - now) : stat.decrease(now - value);
}

}  // namespace

Arena::Arena(char* base, size_t virtual_bytes, size_t hbm_bytes, int device)
    : base_(base),
      virtual_bytes_(virtual_bytes),
      hbm_bytes_(hbm_bytes),
      device_(device),
      order_(static_cast<c10::DeviceIndex>(device)) {
  const size_t quanta = virtual_bytes / kQuantum;
  table_ = static_cast<Block**>(reserve_zero_pages(quanta * sizeof(Block*)));
  generations_ = static_cast<std::atomic<uint64_t>*>(
      reserve_zero_pages(quanta * sizeof(std::atomic<uint64_t>)));
  chunk_reserved_.resize(virtual_bytes / kChunk);
  const bool guarded = guards() != Guards::kNone;
  if (guarded) {
    TORCH_CHECK(mprotect(base_, virtual_bytes_, PROT_NONE) == 0, "mprotect failed");
  }
  // Between guards the first page stays closed, for the block behind it.
  const size_t skipped = guarded ? kPage : 0;
  free_.insert(new_block(base_ + skipped, virtual_bytes_ - skipped));
}

Block* Arena::new_block(char* ptr, size_t size) {
  Block* block = nullptr;
  if (spare_.empty()) {
    block = &storage_.emplace_back();
  } else {
    block = spare_.back();
    spare_.pop_back();
    block->prev = block->next = block->slab = block->bin_next = nullptr;
    block->live = 0;
    block->is_free = true;
    block->is_slab = block->reserved = false;
  }
  block->ptr = ptr;
  block->size = size;
  table_[index_of(ptr)] = block;
  return block;
}

void Arena::recycle(Block* block) {
  table_[index_of(block->ptr)] = nullptr;
  block->ptr = nullptr;
  spare_.push_back(block);
}

void Arena::count(const Block* block, bool up) {
  const auto pool = static_cast<size_t>(block->slab ? StatType::SMALL_POOL : StatType::LARGE_POOL);
  const auto all = static_cast<size_t>(StatType::AGGREGATE);
  const auto apply = [&](c10::CachingAllocator::StatArray& stat, size_t amount) {
    for (const size_t i : {all, pool}) up ? stat[i].increase(amount) : stat[i].decrease(amount);
  };
  apply(stats_.allocation, 1);
  apply(stats_.active, 1);
  apply(stats_.allocated_bytes, block->size);
  apply(stats_.active_bytes, block->size);
  apply(stats_.requested_bytes, block->requested);
  registry::Core& core = registry::core(device_);
  if (block->category.load(std::memory_order_relaxed) == Category::kScratchpad) {
    up ? registry::add(core.scratchpad_bytes, block->size)
       : registry::subtract(core.scratchpad_bytes, block->size);
  }
  const Stat& bytes = stats_.allocated_bytes[all];
  registry::set(core.allocated_bytes, static_cast<uint64_t>(bytes.current));
  registry::set(core.allocated_peak, static_cast<uint64_t>(bytes.peak));
  registry::set(core.allocated_total, static_cast<uint64_t>(bytes.allocated));
}

void Arena::become_tensor(void* ptr) {
  Block* const block = find(ptr);
  if (block == nullptr || block->category.exchange(Category::kTensors) == Category::kTensors)
    return;
  registry::subtract(registry::core(device_).scratchpad_bytes, block->size);
}

void* Arena::allocate(size_t bytes, Category category, int slot) {
  history::Context lines;
  if (history::recording()) lines = history::lines(history::RecordContext::STATE);
  std::unique_lock<std::mutex> lock(mutex_);
  out_of_host_memory_ = false;
  Block* block = nullptr;
  if (C10_LIKELY(bytes <= hbm_bytes_)) {
    const bool guarded = guards() != Guards::kNone;
    const size_t size = guarded ? round_up(bytes, kPage) + kPage : rounded(bytes);
    const auto take = [&] {
      return size <= kSmallLimit && !guarded ? take_small(size, slot) : take_large(size, slot);
    };
    block = take();
    // Give cached memory back and try again; other threads may take that first, and free more.
    if (C10_UNLIKELY(block == nullptr)) {
      ++stats_.num_alloc_retries;
      bool more = true;
      while (block == nullptr && more) {
        release_empty_slabs();
        more = decommit_free_blocks(lock);
        out_of_host_memory_ = false;
        block = take();
      }
    }
  }
  if (C10_UNLIKELY(block == nullptr)) {
    ++stats_.num_ooms;
    if (history::recording()) {
      const size_t allowed = allowed_bytes(device_, hbm_bytes_);
      const auto used = static_cast<size_t>(stats_.allocated_bytes[0].current);
      history::out_of_memory(device_, allowed - std::min(allowed, used), bytes, std::move(lines));
    }
    out_of_memory(bytes, out_of_host_memory_);
  }
  block->requested = bytes;
  block->is_free = false;
  block->serial = ++serials_;
  block->slot = slot;
  if (C10_UNLIKELY(has_stream_order())) order_.taken(block->ptr, block->size);
  block->category.store(category, std::memory_order_relaxed);
  count(block, true);
  if (C10_UNLIKELY(guards() != Guards::kNone)) {
    const Guarded guarded(*block);
    guarded.protect(PROT_READ | PROT_WRITE);
    guarded.around([](char* begin, char* end) { std::fill(begin, end, kFill); });
    table_[index_of(guarded.data)] = block;
    generation(guarded.data).store(next_generation(), std::memory_order_relaxed);
    if (history::recording())
      history::allocated(device_, guarded.data, block->size, std::move(lines));
    return guarded.data;
  }
  generation(block->ptr).store(next_generation(), std::memory_order_relaxed);
  if (history::recording()) history::allocated(device_, block->ptr, block->size, std::move(lines));
  return block->ptr;
}

// The link to the first free block of a size class that the stream may have; null, or to null, if
// there is none. It looks at the last that were freed: a list of thousands costs more than fresh
// memory.
Block** Arena::find_small(size_t size, int slot) {
  Block** link = &bins_[size / kQuantum];
  if (C10_LIKELY(!has_stream_order())) return link;
  constexpr int kMostLooks = 32;
  for (int i = 0; *link != nullptr; ++i, link = &(*link)->bin_next) {
    if (order_.find((*link)->ptr, size, size, slot) == 0) return link;
    if (i == kMostLooks) break;
  }
  return nullptr;
}

Block* Arena::take_small(size_t size, int slot) {
  const auto is_none = [](Block** found) { return found == nullptr || *found == nullptr; };
  Block** link = find_small(size, slot);
  if (is_none(link) && (slab_ == nullptr || slab_used_ + size > kChunk)) {
    // Slabs that emptied meanwhile go back first: a program that moves from one tensor size to
    // another would otherwise keep a slab for every size it ever used.
    release_empty_slabs();
    link = find_small(size, slot);
    if (is_none(link)) {
      Block* slab = take_large(kChunk, kNoStream);
      if (slab == nullptr) return nullptr;
      slab->is_slab = true;
      slab->is_free = false;
      slabs_.push_back(slab);
      count_chunks(stats_, StatType::LARGE_POOL, 1, false);
      count_chunks(stats_, StatType::SMALL_POOL, 1, true);
      slab_ = slab;
      slab_used_ = 0;
    }
  }
  if (is_none(link)) {
    Block* block = new_block(slab_->ptr + slab_used_, size);  // takes over the slab's table entry
    block->slab = slab_;
    slab_used_ += size;
    ++slab_->live;
    return block;
  }
  Block* block = *link;
  *link = block->bin_next;
  block->bin_next = nullptr;
  ++block->slab->live;
  return block;
}

Block* Arena::take_large(size_t size, int slot) {
  Block key;
  key.size = size;
  auto it = free_.lower_bound(&key);
  size_t skipped = 0;
  if (C10_UNLIKELY(has_stream_order())) {
    for (; it != free_.end(); ++it) {
      skipped = order_.find((*it)->ptr, (*it)->size, size, slot);
      if (skipped < (*it)->size) break;
    }
  }
  if (it == free_.end()) return nullptr;
  Block* block = *it;
  free_.erase(it);
  if (skipped > 0) {
    Block* used = block;
    block = cut(used, skipped);
    free_.insert(used);
  }
  if (block->size > size) free_.insert(cut(block, size));
  if (!block->reserved && !reserve(block)) {
    give_back(block);
    return nullptr;
  }
  return block;
}

// Cuts a block in two; returns the second, which begins after `size` bytes.
Block* Arena::cut(Block* block, size_t size) {
  Block* rest = new_block(block->ptr + size, block->size - size);
  rest->prev = block;
  rest->next = block->next;
  if (rest->next) rest->next->prev = rest;
  rest->reserved = block->reserved;
  rest->freed = block->freed;
  block->next = rest;
  block->size = size;
  return rest;
}

bool Arena::reserve(Block* block) {
  const size_t first = static_cast<size_t>(block->ptr - base_) / kChunk;
  const size_t last = static_cast<size_t>(block->ptr - base_ + block->size - 1) / kChunk;
  size_t fresh = 0;
  for (size_t i = first; i <= last; ++i) fresh += chunk_reserved_[i] ? 0 : kChunk;
  if (fresh > 0 && reserved_ + fresh > allowed_bytes(device_, hbm_bytes_)) return false;
  if (fresh >= kHostCheckStep || reserved_ + fresh > checked_host_at_ + kHostCheckStep) {
    const size_t available = host_available_bytes();
    if (fresh + kHostMargin > available) {
      out_of_host_memory_ = true;
      return false;
    }
    checked_host_at_ = reserved_ + fresh;
  }
  for (size_t i = first; i <= last; ++i) {  // runs of fresh chunks
    size_t j = i;
    while (j <= last && !chunk_reserved_[j]) chunk_reserved_[j++] = true;
    if (j > i) {
      commit_chunks(i, j);
      if (history::recording())
        history::mapped(device_, base_ + i * kChunk, (j - i) * kChunk, true);
    }
    i = j;
  }
  reserved_ += fresh;
  registry::set(registry::core(device_).reserved_bytes, reserved_);
  if (fresh > 0) {
    count_chunks(stats_, StatType::AGGREGATE, fresh / kChunk, true);
    count_chunks(stats_, StatType::LARGE_POOL, fresh / kChunk, true);
    ++stats_.num_device_alloc;
  }
  block->reserved = true;
  return true;
}

void Arena::deallocate(void* ptr) {
  history::Context lines;
  if (history::recording()) lines = history::lines(history::RecordContext::ALL);
  std::lock_guard<std::mutex> lock(mutex_);
  Block* block = find(ptr);
  // A foreign or twice freed pointer would corrupt the emulated memory: refuse loudly.
  TORCH_INTERNAL_ASSERT(block != nullptr && !block->is_free,
                        "invalid pointer freed on neuron:", device_);
  if (C10_UNLIKELY(guards() != Guards::kNone)) {
    const Guarded guarded(*block);
    guarded.around([&](const char* begin, const char* end) {
      const bool whole = std::all_of(begin, end, [](char c) { return c == kFill; });
      TORCH_INTERNAL_ASSERT(whole, "something wrote beside a block of ", guarded.bytes,
                            " bytes on neuron:", device_);
    });
    guarded.protect(PROT_NONE);
    if (index_of(guarded.data) != index_of(block->ptr)) table_[index_of(guarded.data)] = nullptr;
  }
  count(block, false);
  if (C10_UNLIKELY(has_stream_order())) order_.freed(block->ptr, block->size, block->slot);
  if (history::recording()) history::freed(device_, ptr, block->size, std::move(lines));
  block->is_free = true;
  if (block->slab != nullptr) {
    --block->slab->live;
    Block*& bin = bins_[block->size / kQuantum];
    block->bin_next = bin;
    bin = block;
  } else {
    give_back(block);
  }
}

bool Arena::is_in_use(const void* ptr, uint64_t serial) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Block* block = find(ptr);
  if (block != nullptr && !block->is_free && block->serial == serial) return true;
  return has_stream_order() &&
         order_.is_used_by_others(static_cast<const char*>(ptr),
                                  current_slot(static_cast<c10::DeviceIndex>(device_)));
}

void Arena::use(const void* ptr, int slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Block* block = find(ptr);
  if (block != nullptr && !block->is_free && block->slot != slot) order_.use(block->ptr, slot);
}

void Arena::give_back(Block* block) {
  block->is_free = true;
  block->is_slab = false;
  block->freed = ++returns_;
  const auto absorb = [&](Block* left, Block* right) {
    left->size += right->size;
    left->freed = returns_;
    left->reserved = left->reserved && right->reserved;
    left->next = right->next;
    if (left->next) left->next->prev = left;
    recycle(right);
  };
  if (Block* next = block->next; next && next->is_free) {
    free_.erase(next);
    absorb(block, next);
  }
  if (Block* prev = block->prev; prev && prev->is_free) {
    free_.erase(prev);
    absorb(prev, block);
    block = prev;
  }
  free_.insert(block);
}

void Arena::release_slab(Block* slab) {
  // The small block at the slab's own address owns the table entry; all small blocks go.
  table_[index_of(slab->ptr)] = slab;
  if (slab_ == slab) slab_ = nullptr;
  count_chunks(stats_, StatType::SMALL_POOL, 1, false);
  count_chunks(stats_, StatType::LARGE_POOL, 1, true);
  give_back(slab);
}

void Arena::release_empty_slabs() {
  const auto empty =
      std::partition(slabs_.begin(), slabs_.end(), [](Block* s) { return s->live > 0; });
  if (empty == slabs_.end()) return;
  for (Block*& bin : bins_) {
    Block** link = &bin;
    while (Block* block = *link) {
      if (block->slab->live == 0) {
        *link = block->bin_next;
        recycle(block);
      } else {
        link = &block->bin_next;
      }
    }
  }
  for (auto it = empty; it != slabs_.end(); ++it) release_slab(*it);
  slabs_.erase(empty, slabs_.end());
}

bool Arena::decommit_free_blocks(std::unique_lock<std::mutex>& lock) {
  // Queued calls may still read what was freed behind them. What runs them asks for this lock, or
  // waits for other ranks, whose collectives do, or for Python's.
  const uint64_t now = returns_;
  lock.unlock();
  {
    const WithoutPythonLock released;
    queue::wait_holding_locks();
  }
  lock.lock();
  size_t released = 0;
  for (Block* block : free_) {
    if (block->freed > now) continue;  // by another thread, perhaps behind calls of its own
    const size_t begin = round_up(static_cast<size_t>(block->ptr - base_), kChunk) / kChunk;
    const size_t end = static_cast<size_t>(block->ptr - base_ + block->size) / kChunk;
    for (size_t i = begin; i < end;) {  // runs of reserved chunks, one madvise each
      size_t j = i;
      while (j < end && chunk_reserved_[j]) chunk_reserved_[j++] = false;
      if (j > i) {
        TORCH_CHECK(decommit_chunks(i, j), "madvise failed");
        if (history::recording())
          history::mapped(device_, base_ + i * kChunk, (j - i) * kChunk, false);
        released += (j - i) * kChunk;
        block->reserved = false;
      }
      i = j + 1;
    }
  }
  if (released == 0) return false;
  reserved_ -= released;
  registry::set(registry::core(device_).reserved_bytes, reserved_);
  checked_host_at_ = std::min(checked_host_at_, reserved_);
  count_chunks(stats_, StatType::AGGREGATE, released / kChunk, false);
  count_chunks(stats_, StatType::LARGE_POOL, released / kChunk, false);
  ++stats_.num_device_free;
  return true;
}

void Arena::empty_cache() {
  std::unique_lock<std::mutex> lock(mutex_);
  release_empty_slabs();
  (void)decommit_free_blocks(lock);
}

// What is free and cannot be given back, because memory in use shares its chunk, is found when
// somebody asks, so its peak is that of the moments at which somebody did.
c10::CachingDeviceAllocator::DeviceStats Arena::stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<bool> held(chunk_reserved_.size());
  const auto first_chunk = [&](const Block& b) { return size_t(b.ptr - base_) / kChunk; };
  const auto last_chunk = [&](const Block& b) {
    return size_t(b.ptr - base_ + b.size - 1) / kChunk;
  };
  const auto is_held = [](const Block& b) { return b.is_slab ? b.live > 0 : !b.is_free; };
  size_t chunks = 0, pieces = 0;
  for (const Block& block : storage_) {
    if (block.ptr == nullptr || block.slab != nullptr || !is_held(block)) continue;
    for (size_t i = first_chunk(block); i <= last_chunk(block); ++i) {
      chunks += held[i] ? 0 : 1;
      held[i] = true;
    }
  }
  for (const Block& block : storage_) {
    if (block.ptr == nullptr || !block.is_free) continue;
    const bool shares = block.slab != nullptr ? block.slab->live > 0
                                              : held[first_chunk(block)] || held[last_chunk(block)];
    pieces += shares ? 1 : 0;
  }
  const auto all = static_cast<size_t>(StatType::AGGREGATE);
  const auto used = static_cast<size_t>(stats_.allocated_bytes[all].current);
  set_current(stats_.inactive_split_bytes[all], chunks * kChunk - used);
  set_current(stats_.inactive_split[all], pieces);
  return stats_;
}

namespace {
template <class Fn>
void for_each_stat(c10::CachingDeviceAllocator::DeviceStats& s, Fn fn) {
  for (auto* array :
       {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes,
        &s.reserved_bytes, &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes})
    for (Stat& stat : *array) fn(stat);
}
}  // namespace

void Arena::reset_accumulated_stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  for_each_stat(stats_, [](Stat& s) { s.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

void Arena::reset_peak_stats() {
  std::lock_guard<std::mutex> lock(mutex_);
  for_each_stat(stats_, [](Stat& s) { s.reset_peak(); });
}

size_t Arena::reserved_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return reserved_;
}

std::array<size_t, static_cast<size_t>(Category::kCount)> Arena::bytes_by_category_locked() const {
  std::array<size_t, static_cast<size_t>(Category::kCount)> bytes{};
  for (const Block& block : storage_) {
    if (block.is_free || block.is_slab) continue;
    bytes[static_cast<size_t>(block.category.load(std::memory_order_relaxed))] += block.size;
  }
  return bytes;
}

std::array<size_t, static_cast<size_t>(Category::kCount)> Arena::bytes_by_category() {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_by_category_locked();
}

// The views of one large block: itself, or what its slab is cut into.
void Arena::view(const Block& block, std::vector<BlockView>* views) const {
  const auto add = [&](char* ptr, size_t size, const Block* b) {
    const bool in_use = b != nullptr && !b->is_free;
    views->push_back({reinterpret_cast<size_t>(ptr), size, in_use ? b->requested : 0, in_use,
                      b ? b->category.load(std::memory_order_relaxed) : Category::kTensors});
  };
  if (!block.is_slab) {
    add(block.ptr, block.size, &block);
    return;
  }
  char* const end = block.ptr + block.size;
  char* p = block.ptr;
  while (p < end) {
    const Block* small = find(p);
    if (small == nullptr || small == &block) break;  // not cut yet from here on
    add(p, small->size, small);
    p += small->size;
  }
  if (p < end) add(p, static_cast<size_t>(end - p), nullptr);
}

std::vector<SegmentView> Arena::segments() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<BlockView> views;
  std::vector<const Block*> large;
  for (const Block& block : storage_) {
    if (block.slab == nullptr && block.ptr != nullptr &&
        (block.is_slab || find(block.ptr) == &block)) {
      large.push_back(&block);
    }
  }
  std::sort(large.begin(), large.end(),
            [](const Block* a, const Block* b) { return a->ptr < b->ptr; });
  for (const Block* block : large) view(*block, &views);
  std::vector<SegmentView> segments;
  size_t next = 0;
  for (size_t i = 0; i < chunk_reserved_.size(); ++i) {
    if (!chunk_reserved_[i]) continue;
    size_t j = i;
    while (j < chunk_reserved_.size() && chunk_reserved_[j]) ++j;
    const size_t begin = reinterpret_cast<size_t>(base_) + i * kChunk;
    const size_t end = begin + (j - i) * kChunk;
    SegmentView segment{begin, end - begin, {}};
    while (next < views.size() && views[next].address + views[next].size <= begin) ++next;
    for (size_t k = next; k < views.size() && views[k].address < end; ++k) {
      BlockView v = views[k];  // a free block may reach beyond what is reserved
      const size_t from = std::max(v.address, begin), to = std::min(v.address + v.size, end);
      v.address = from;
      v.size = to - from;
      segment.blocks.push_back(v);
    }
    segments.push_back(std::move(segment));
    i = j;
  }
  return segments;
}

std::string Arena::memory_table(size_t bytes) {
  std::ostringstream text;
  const auto used = bytes_by_category_locked();
  size_t total = 0;
  const auto row = [&](const char* name, size_t value) {
    char line[80];
    std::snprintf(line, sizeof line, "  %-22s %16zu B  %s\n", name, value, gib(value).c_str());
    text << line;
  };
  text << "Memory of neuron:" << device_ << " by category:\n";
  for (size_t i = 0; i < used.size(); ++i) {
    row(category_name(static_cast<Category>(i)), used[i]);
    total += used[i];
  }
  row("Cached (free)", reserved_ - std::min(reserved_, total));
  row("Reserved in all", reserved_);
  row("Capacity (HBM)", hbm_bytes_);
  row("Requested now", bytes);
  return text.str();
}

void Arena::out_of_memory(size_t bytes, bool host) {
  registry::set_failure(4);  // NRT_RESOURCE, as the text says
  const size_t allocated = static_cast<size_t>(stats_.allocated_bytes[0].current);
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), allocated, reserved_,
                                   c10::Device(kNeuron, static_cast<c10::DeviceIndex>(device_)));
  std::ostringstream text;
  text << "NEURON out of memory. Tried to allocate " << gib(bytes) << " on neuron:" << device_
       << ". ";
  if (host) {
    text << "The emulated core still has room (" << gib(hbm_bytes_ - reserved_)
         << " of HBM), but this machine has only " << gib(host_available_bytes())
         << " of memory left, and emulated HBM is host memory. ";
  } else {
    const size_t allowed = allowed_bytes(device_, hbm_bytes_);
    text << "The emulated " << machine().name << " NeuronCore has " << gib(hbm_bytes_)
         << " of HBM, of which ";
    if (allowed < hbm_bytes_) {
      text << "set_per_process_memory_fraction allows this process " << gib(allowed) << ", and ";
    }
    text << gib(allowed - std::min(allowed, allocated)) << " is free. ";
  }
  text << "Use a smaller batch or sharding over more cores, or free tensors and call "
          "torch.neuron.empty_cache(). [NRT_RESOURCE(4)]\n"
       << memory_table(bytes);
  TORCH_CHECK_WITH(OutOfMemoryError, false, text.str());
}

}  // namespace torch_neuronx
