#include "gemm/scratch.h"

#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <new>

namespace torch_neuronx::gemm {
namespace {

constexpr size_t kHuge = size_t(2) << 20;

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }

  char* at_least(size_t bytes) {
    if (bytes <= capacity_) return data_;
    release();
    const size_t alignment = bytes >= kHuge ? kHuge : 64;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_ = static_cast<char*>(std::aligned_alloc(alignment, rounded));
    if (data_ == nullptr) throw std::bad_alloc();
    capacity_ = rounded;
    // Fewer page faults and TLB misses where the kernel grants it; no harm where it does not.
    if (alignment == kHuge) (void)madvise(data_, rounded, MADV_HUGEPAGE);
    return data_;
  }

  void release() {
    std::free(data_);
    data_ = nullptr;
    capacity_ = 0;
  }

 private:
  char* data_ = nullptr;
  size_t capacity_ = 0;
};

thread_local std::array<Buffer, size_t(Slot::kCount)> buffers;

}  // namespace

char* scratch(Slot slot, size_t bytes) { return buffers[size_t(slot)].at_least(bytes); }

void release_scratch() {
  for (Buffer& buffer : buffers) buffer.release();
}

}  // namespace torch_neuronx::gemm
