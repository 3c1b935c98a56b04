// The allocators PyTorch sees: device memory, and the CPU allocator's detour into it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "memory/arena.h"

namespace torch_neuronx {

c10::DeviceAllocator* device_allocator();

// Memory on core `index`; data pointer and context are equal, so raw_allocate works on it too.
c10::DataPtr allocate_on(c10::DeviceIndex index, size_t bytes, Category category);

// An uninitialised dense tensor on core `index`; empty strides mean contiguous.
at::Tensor empty_on(c10::DeviceIndex index, at::IntArrayRef sizes, at::IntArrayRef strides,
                    at::ScalarType dtype);

// A storage over memory that was allocated already.
c10::Storage make_storage(size_t bytes, c10::DataPtr data, c10::Allocator* allocator,
                          bool resizable = true);
// A dense tensor over `storage`, of a core or of the host.
at::Tensor tensor_over(c10::Storage storage, at::ScalarType dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset, bool on_core);

// The core whose HBM holds `ptr`, or -1.
c10::DeviceIndex device_of_pointer(const void* ptr);

// The arena of a core, created on first use.
Arena& arena(c10::DeviceIndex index);

// True when `data` is memory of a core: allocated there, as device memory or through ScratchScope,
// or borrowed.
bool owns(const c10::DataPtr& data);
// Where the block begins that `data` is of; null if it is no memory of a core.
const void* block_of(const c10::DataPtr& data);
// True when `data` owns the block that it points to.
bool is_block(const c10::DataPtr& data);
// True when a storage owns the block of a core that it lies in, or is empty: a queued call may
// remember its address.
bool is_block(const c10::StorageImpl& storage);
// A storage of a core over a block that starts at `start`, of which a queued call knows that it
// keeps its place.
c10::Storage borrow_storage(void* start, size_t bytes, c10::DeviceIndex core);

// To be called when work was enqueued on `stream` that uses the block in use that starts at `start`
// (or is null): it has no next owner on another stream before that is done.
void use_on(c10::Stream stream, const void* start);

// Marks the memory behind a storage, or the block that starts at `start`, as written, for caches
// derived from its content.
void mark_written(const c10::StorageImpl& storage);
void mark_written(const void* start);
// Identity of the content: changes with every write through the device; 0 for foreign memory.
uint64_t generation_of(const c10::StorageImpl& storage);

// While alive, this thread's CPU allocations come from a core's HBM, so that what a CPU kernel
// returns already lies in device memory.
class ScratchScope {
 public:
  explicit ScratchScope(c10::DeviceIndex index);
  ~ScratchScope();
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  c10::DeviceIndex previous_;
};

// Puts the detour in front of PyTorch's CPU allocator. Called once, at import.
void install_cpu_allocator();

}  // namespace torch_neuronx
