#include "memory/shared.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "device/state.h"
#include "dispatch/deferred.h"
#include "memory/allocator.h"
#include "memory/arena.h"
#include "memory/guards.h"
#include "memory/memory_file.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; older C libraries don't name it
#endif

namespace torch_neuronx {
namespace {

// What fork() must know. Guarded by g_moving, which fork() waits for as well, so that a child never
// sees an arena between two states.
struct Mapping {
  int fd = -1;
  char* base = nullptr;
  size_t bytes = 0;  // from `base` on lie in the file; the rest of the arena is private memory
};
std::mutex g_moving;
std::array<Mapping, kMaxDevices> g_mappings;

void before_fork() { g_moving.lock(); }
void after_fork_in_parent() { g_moving.unlock(); }

// A shared mapping stays shared across fork(): turn it into one that copies on write. The child
// can't use the device, but it may hold pointers into it. Only system calls here.
void after_fork_in_child() {
  for (const Mapping& m : g_mappings) {
    if (m.bytes == 0) continue;
    if (mmap(m.base, m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, m.fd,
             0) == MAP_FAILED &&
        munmap(m.base, m.bytes) != 0) {
      std::abort();  // better no child than one that writes into its parent
    }
  }
  g_moving.unlock();
}

void watch_forks() {
  static const int registered =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  TORCH_CHECK(registered == 0, "pthread_atfork failed");
}

// Gives `chunks` chunks at `p`, which lie in a memory file, huge pages. The kernel does so by
// itself for private memory only (shmem_enabled is `never` nearly everywhere), and a first touch of
// 512 small pages takes seven times as long as that of a huge one. Collapsing wants one page
// present. Best effort: without huge pages everything works, slower.
void make_huge(char* p, size_t chunks) {
  for (size_t i = 0; i < chunks; ++i) {
    volatile char* first = p + i * kChunk;
    *first = *first;
  }
  (void)madvise(p, chunks * kChunk, MADV_COLLAPSE);
}

// Addresses at which one chunk of the file is mapped while it is filled.
class Window {
 public:
  Window() {
    void* p =
        mmap(nullptr, 2 * kChunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(p != MAP_FAILED, "can't map a window of ", 2 * kChunk, " bytes");
    range_ = static_cast<char*>(p);
    at_ = reinterpret_cast<char*>((reinterpret_cast<size_t>(p) + kChunk - 1) / kChunk * kChunk);
  }
  ~Window() { munmap(range_, 2 * kChunk); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  bool fill(int fd, size_t offset, const char* from) {
    if (mmap(at_, kChunk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
             static_cast<off_t>(offset)) == MAP_FAILED) {
      return false;
    }
    make_huge(at_, 1);
    std::memcpy(at_, from, kChunk);
    return true;
  }

 private:
  char* range_;
  char* at_;
};

}  // namespace

// From the lowest address up, so that at any time everything below `shared_bytes_` is in the file
// and everything above is not, and one number is all there is to know after a failure. Never more
// than one chunk exists twice.
SharedArena Arena::share() {
  TORCH_CHECK(guards() == Guards::kNone,
              "TORCH_NEURONX_GUARD_PAGES: memory between guard pages can't be shared with other "
              "ranks; unset it to use a process group");
  watch_forks();
  std::lock_guard<std::mutex> moving(g_moving);
  std::lock_guard<std::mutex> lock(mutex_);
  Mapping& mapping = g_mappings[static_cast<size_t>(device_)];
  if (mapping.fd < 0) {
    mapping.fd = make_memory_file("neuron-hbm-" + std::to_string(device_), virtual_bytes_,
                                  "neuron:" + std::to_string(device_));
    mapping.base = base_;
  }
  if (shared_bytes_ < virtual_bytes_) {
    Window window;
    while (shared_bytes_ < virtual_bytes_) {
      const size_t first = shared_bytes_ / kChunk;
      const bool reserved = chunk_reserved_[first];
      size_t last = first + 1;
      while (!reserved && last < chunk_reserved_.size() && !chunk_reserved_[last]) ++last;
      const size_t bytes = (last - first) * kChunk;
      char* const p = base_ + shared_bytes_;
      const bool moved =
          (!reserved || window.fill(mapping.fd, shared_bytes_, p)) &&
          mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, mapping.fd,
               static_cast<off_t>(shared_bytes_)) != MAP_FAILED;
      TORCH_CHECK(moved, "can't move the memory of neuron:", device_, " into a memory file after ",
                  shared_bytes_, " of ", virtual_bytes_, " bytes: ", std::strerror(errno));
      shared_bytes_ += bytes;
      mapping.bytes = shared_bytes_;
    }
    (void)madvise(base_, virtual_bytes_, MADV_HUGEPAGE);  // where shmem_enabled is `advise`
  }
  return {mapping.fd, virtual_bytes_, base_};
}

void Arena::commit_chunks(size_t first, size_t last) {
  const size_t end = std::min(last, shared_bytes_ / kChunk);
  if (first < end) make_huge(base_ + first * kChunk, end - first);
}

bool Arena::decommit_chunks(size_t first, size_t last) {
  const size_t middle = std::clamp(shared_bytes_ / kChunk, first, last);
  // Pages of a file that nobody maps any more are still in the file: a hole has to be made.
  const auto advise = [&](size_t from, size_t to, int advice) {
    return from == to || madvise(base_ + from * kChunk, (to - from) * kChunk, advice) == 0;
  };
  return advise(first, middle, MADV_REMOVE) && advise(middle, last, MADV_DONTNEED);
}

SharedArena share_arena(c10::DeviceIndex index) {
  check_device_index(index);
  ensure_initialized();
  // Whole once moved: every collective asks.
  static std::array<std::atomic<const SharedArena*>, kMaxDevices> moved{};
  static std::array<SharedArena, kMaxDevices> arenas;
  const auto i = static_cast<size_t>(index);
  if (const auto* known = moved[i].load(std::memory_order_acquire)) return *known;
  flush_deferred();
  queue::wait_all();  // of all streams
  const SharedArena made = arena(index).share();
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (moved[i].load() == nullptr) {
    arenas[i] = made;
    moved[i].store(&arenas[i], std::memory_order_release);
  }
  return made;
}

}  // namespace torch_neuronx
