#include "memory/allocator.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>

#include "device/faults.h"
#include "device/state.h"
#include "device/stream.h"
#include "dispatch/deferred.h"
#include "memory/guards.h"
#include "memory/history.h"
#include "memory/ledger.h"
#include "queue/queue.h"

namespace torch_neuronx {
namespace {

// All cores share one range of addresses, each with an equal stride of it, so a pointer tells its
// core. A core's part is twice its HBM: free holes between live blocks cost addresses, not memory.
struct Hbm {
  char* base = nullptr;
  size_t stride = 0;
  std::array<std::unique_ptr<Arena>, kMaxDevices> arenas;
};
Hbm g_hbm;
std::once_flag g_hbm_once;
std::array<std::once_flag, kMaxDevices> g_arena_once;
std::array<std::atomic<Arena*>, kMaxDevices> g_arenas{};

void reserve_hbm() {
  const size_t stride = (2 * machine().hbm_bytes + kChunk - 1) / kChunk * kChunk;
  const size_t bytes = stride * static_cast<size_t>(machine().device_count) + kChunk;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(p != MAP_FAILED, "can't reserve ", bytes,
              " bytes of addresses for the emulated HBM; ", "check `ulimit -v`");
  const auto address = (reinterpret_cast<size_t>(p) + kChunk - 1) / kChunk * kChunk;
  g_hbm.base = reinterpret_cast<char*>(address);
  g_hbm.stride = stride;
  // Best effort: without huge pages everything works, slower.
  (void)madvise(g_hbm.base, bytes - kChunk, MADV_HUGEPAGE);
}

void delete_block(void* ptr);
// Of memory that Promises served, which the same call may have again.
bool return_promised(void* ptr) {
  Promises* promises = Promises::current();
  if (promises == nullptr || !promises->take_back(ptr)) return false;
  if (device_of_pointer(ptr) >= 0) mark_written(ptr);
  return true;
}
void return_block(void* ptr) { (void)return_promised(ptr); }
// Of memory that a queued call only borrows.
void keep_block(void*) {}

// Takes memory for the stream that is current. The error of a core that is full also says whose
// memory it is, if somebody records that. It is found here because it needs Python, which must not
// be waited for while an arena is locked.
void* allocate_told(Arena& a, size_t bytes, Category category, c10::DeviceIndex index) {
  try {
    if (faults::armed()) (void)faults::reach(faults::Point::kAllocation, "memory", index, bytes);
    return a.allocate(bytes, category, current_slot(index));
  } catch (const c10::OutOfMemoryError& error) {
    const std::string holders = history::holders(index);
    if (holders.empty()) throw;
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what_without_backtrace(), holders);
  }
}

thread_local c10::DeviceIndex t_scratch_device = -1;

class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(c10::Allocator* next) : next_(next) {}
  c10::DataPtr allocate(size_t n) override {
    if (C10_LIKELY(t_scratch_device < 0) || n == 0) return next_->allocate(n);
    if (Promises* promises = Promises::current()) {
      void* p = promises->serve(n);
      if (p == nullptr) return next_->allocate(n);
      return {p, p, &return_block, c10::Device(c10::DeviceType::CPU)};
    }
    Arena& a = arena(t_scratch_device);
    void* p = allocate_told(a, n, Category::kScratchpad, t_scratch_device);
    queue::wait_for_readers(t_scratch_device);
    c10::reportMemoryUsageToProfiler(p, static_cast<int64_t>(a.find(p)->size), 0, 0,
                                     c10::Device(kNeuron, t_scratch_device));
    if (AllocationLog* log = AllocationLog::current()) log->add(p, n);
    return {p, p, &delete_block, c10::Device(c10::DeviceType::CPU)};
  }
  // Raw allocations are freed without their context, so they must come from one place only.
  c10::DeleterFnPtr raw_deleter() const override { return &CpuAllocator::raw_delete; }
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }
  c10::Allocator* next() const { return next_; }

 private:
  static void raw_delete(void* ptr);
  c10::Allocator* const next_;
};
CpuAllocator* g_cpu_allocator = nullptr;

void CpuAllocator::raw_delete(void* ptr) {
  if (return_promised(ptr)) return;
  if (device_of_pointer(ptr) >= 0) {
    delete_block(ptr);
  } else {
    g_cpu_allocator->next()->raw_deleter()(ptr);
  }
}

void delete_block(void* ptr) {
  if (is_in_bad_fork()) return;  // the child owns nothing, and the arena's lock may be held
  if (AllocationLog* log = AllocationLog::current()) log->freed(ptr);
  // Whoever reads it behind guards now is stopped, so those who may have to be through.
  if (C10_UNLIKELY(guards() != Guards::kNone)) queue::wait_holding_locks();
  const auto index = device_of_pointer(ptr);
  Arena& a = arena(index);
  const Block* block = a.find(ptr);
  const auto size = block ? static_cast<int64_t>(block->size) : 0;
  a.deallocate(ptr);
  c10::reportMemoryUsageToProfiler(ptr, -size, 0, 0, c10::Device(kNeuron, index));
}

class NeuronAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    return allocate_on(current_device(), n, Category::kTensors);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }
  bool initialized() override { return is_initialized(); }
  void emptyCache(c10::MempoolId_t) override {
    run_deferred();
    for (auto& a : g_arenas)
      if (Arena* live = a.load()) live->empty_cache();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    use_on(stream, block_of(data));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    check_device_index(index);
    run_deferred();
    Arena* live = g_arenas[static_cast<size_t>(index)].load();
    return live ? live->stats() : c10::CachingDeviceAllocator::DeviceStats{};
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    check_device_index(index);
    if (Arena* live = g_arenas[static_cast<size_t>(index)].load()) live->reset_accumulated_stats();
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    check_device_index(index);
    if (Arena* live = g_arenas[static_cast<size_t>(index)].load()) live->reset_peak_stats();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    check_device_index(index);
    Arena* live = g_arenas[static_cast<size_t>(index)].load();
    const size_t total = machine().hbm_bytes;
    return {total - (live ? live->reserved_bytes() : 0), total};
  }
};

NeuronAllocator g_allocator;
REGISTER_ALLOCATOR(kNeuron, &g_allocator);

}  // namespace

c10::DeviceAllocator* device_allocator() { return &g_allocator; }

Arena& arena(c10::DeviceIndex index) {
  auto& slot = g_arenas[static_cast<size_t>(index)];
  if (Arena* ready = slot.load(std::memory_order_acquire); C10_LIKELY(ready != nullptr))
    return *ready;
  std::call_once(g_hbm_once, reserve_hbm);
  std::call_once(g_arena_once[static_cast<size_t>(index)], [&] {
    auto& owner = g_hbm.arenas[static_cast<size_t>(index)];
    owner = std::make_unique<Arena>(g_hbm.base + g_hbm.stride * static_cast<size_t>(index),
                                    g_hbm.stride, machine().hbm_bytes, index);
    slot.store(owner.get(), std::memory_order_release);
  });
  return *slot.load();
}

namespace {
// Deferred operators keep their temporaries; running them may make the room that is missing.
void* allocate_or_flush(Arena& a, size_t bytes, Category category, c10::DeviceIndex index) {
  const bool pending = (g_deferred_pending.load() & kDeferredProgram) != 0;
  if (pending && !faults::armed()) {
    try {
      return a.allocate(bytes, category, current_slot(index));
    } catch (const c10::OutOfMemoryError&) {
      run_deferred();
    }
  }
  return allocate_told(a, bytes, category, index);
}
}  // namespace

c10::DataPtr allocate_on(c10::DeviceIndex index, size_t bytes, Category category) {
  ensure_initialized();
  const c10::Device device(kNeuron, index);
  if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, device};
  if (Promises* promises = Promises::current()) {
    if (void* p = promises->serve(bytes)) return {p, p, &return_block, device};
    // A call that asks for more than an equal one did before gets it from the host.
    c10::DataPtr host = g_cpu_allocator->next()->allocate(bytes);
    const auto deleter = host.get_deleter();
    void* const p = host.get();
    return {p, host.release_context(), deleter, device};
  }
  Arena& a = arena(index);
  void* p = allocate_or_flush(a, bytes, category, index);
  queue::wait_for_readers(index);
  if (AllocationLog* log = AllocationLog::current()) log->add(p, bytes);
  c10::reportMemoryUsageToProfiler(p, static_cast<int64_t>(a.find(p)->size), 0, 0, device);
  return {p, p, &delete_block, device};
}

at::Tensor empty_on(c10::DeviceIndex index, at::IntArrayRef sizes, at::IntArrayRef strides,
                    at::ScalarType dtype) {
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  const c10::DeviceIndex previous = current_device();
  if (C10_UNLIKELY(index != previous)) set_current_device_unchecked(index);
  at::Tensor t = strides.empty()
                     ? at::detail::empty_generic(sizes, &g_allocator, kKeys, dtype, std::nullopt)
                     : at::Tensor(at::detail::empty_strided_generic(sizes, strides, &g_allocator,
                                                                    kKeys, dtype));
  if (C10_UNLIKELY(index != previous)) set_current_device_unchecked(previous);
  return t;
}

c10::Storage make_storage(size_t bytes, c10::DataPtr data, c10::Allocator* allocator,
                          bool resizable) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator, resizable));
}

at::Tensor tensor_over(c10::Storage storage, at::ScalarType dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset, bool on_core) {
  const c10::DispatchKeySet keys(on_core ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::CPU);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys,
                                                               c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

c10::DeviceIndex device_of_pointer(const void* ptr) {
  const auto offset = static_cast<const char*>(ptr) - g_hbm.base;
  if (g_hbm.base == nullptr || offset < 0) return -1;
  const auto index = static_cast<size_t>(offset) / g_hbm.stride;
  return index < static_cast<size_t>(machine().device_count) ? static_cast<c10::DeviceIndex>(index)
                                                             : -1;
}

bool owns(const c10::DataPtr& data) {
  const auto deleter = data.get_deleter();
  return deleter == &delete_block || deleter == &return_block || deleter == &keep_block;
}
bool is_block(const c10::DataPtr& data) { return data.get_deleter() == &delete_block; }

bool is_block(const c10::StorageImpl& storage) {
  return is_block(storage.data_ptr()) || (storage.nbytes() == 0 && storage.data() == nullptr);
}

const void* block_of(const c10::DataPtr& data) { return owns(data) ? data.get_context() : nullptr; }

c10::Storage borrow_storage(void* start, size_t bytes, c10::DeviceIndex core) {
  const c10::Device device(kNeuron, core);
  c10::DataPtr data(nullptr, device);  // of an empty tensor
  if (start != nullptr) data = {start, start, &keep_block, device};
  return make_storage(bytes, std::move(data), &g_allocator);
}

void use_on(c10::Stream stream, const void* start) {
  if (C10_LIKELY(!has_stream_order()) || start == nullptr) return;
  arena(device_of_pointer(start)).use(start, slot_of(stream.id()));
}

void mark_written(const void* start) {
  arena(device_of_pointer(start))
      .generation(start)
      .store(next_generation(), std::memory_order_relaxed);
}

void mark_written(const c10::StorageImpl& storage) {
  if (const void* block = block_of(storage.data_ptr())) mark_written(block);
}

uint64_t generation_of(const c10::StorageImpl& storage) {
  const void* block = block_of(storage.data_ptr());
  if (block == nullptr) return 0;
  return arena(device_of_pointer(block)).generation(block).load(std::memory_order_relaxed);
}

ScratchScope::ScratchScope(c10::DeviceIndex index) : previous_(t_scratch_device) {
  ensure_initialized();
  t_scratch_device = index;
}
ScratchScope::~ScratchScope() { t_scratch_device = previous_; }

void install_cpu_allocator() {
  TORCH_CHECK(g_cpu_allocator == nullptr, "the CPU allocator is already installed");
  // Lives as long as the process: PyTorch keeps the pointer in every CPU storage.
  g_cpu_allocator = new CpuAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(g_cpu_allocator, /*priority=*/1);
}

}  // namespace torch_neuronx
