#include "memory/host_allocator.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "device/pending.h"
#include "device/state.h"
#include "device/stream.h"
#include "queue/queue.h"
#include "registry/registry.h"

namespace torch_neuronx {
namespace {

// Every range of pinned memory that exists, by its start, whether in use or cached.
std::shared_mutex g_ranges_mutex;
std::map<const char*, size_t> g_ranges;
size_t g_pinned = 0;  // bytes of all of them

struct HostImpl : at::CachingHostAllocatorImpl<c10::Stream, std::shared_ptr<Completion>> {
  void allocate_host_memory(size_t size, void** ptr) override {
    constexpr size_t kPage = 4096;
    *ptr = std::aligned_alloc(kPage, (size + kPage - 1) / kPage * kPage);
    TORCH_CHECK_WITH(OutOfMemoryError, *ptr != nullptr, "can't allocate ", size,
                     " bytes of pinned host memory");
    std::unique_lock lock(g_ranges_mutex);
    g_ranges[static_cast<const char*>(*ptr)] = size;
    registry::set_pinned_bytes(g_pinned += size);
  }
  void free_block(at::HostBlock<c10::Stream>* block) override {
    {
      std::unique_lock lock(g_ranges_mutex);
      const auto range = g_ranges.find(static_cast<const char*>(block->ptr_));
      registry::set_pinned_bytes(g_pinned -= range->second);
      g_ranges.erase(range);
    }
    std::free(block->ptr_);
  }
  // Of a block that is freed while copies from or to it may be enqueued.
  void record_stream(std::optional<std::vector<std::shared_ptr<Completion>>>& events,
                     c10::Stream stream) override {
    events->push_back(queue::end_of(stream));
  }
  bool query_event(std::shared_ptr<Completion>& event) override {
    return event == nullptr || event->done();
  }
  c10::Stream get_current_stream() const override { return current_stream(current_device()); }
  bool stream_is_capturing(c10::Stream) const override { return false; }
};

void delete_host_block(void* ctx);
using Interface = at::CachingHostAllocatorInterface<HostImpl, delete_host_block>;
Interface& instance() {
  static auto* allocator = new Interface();  // outlives every tensor
  return *allocator;
}
void delete_host_block(void* ctx) { instance().free(ctx); }

}  // namespace

at::HostAllocator* host_allocator() { return &instance(); }

bool is_pinned_pointer(const void* ptr) {
  std::shared_lock lock(g_ranges_mutex);
  auto it = g_ranges.upper_bound(static_cast<const char*>(ptr));
  if (it == g_ranges.begin()) return false;
  --it;
  return static_cast<const char*>(ptr) < it->first + it->second;
}

}  // namespace torch_neuronx
