#include "gemm/packed_b.h"

#include <c10/util/hash.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <string>

#include "gemm/methods.h"

namespace torch_neuronx::gemm {
namespace {

// Entries that were only seen, not packed, cost no bytes worth counting but must not pile up.
constexpr size_t kMaxEntries = 4096;

size_t byte_limit_from_environment() {
  constexpr size_t kDefaultMiB = 512;
  const char* text = std::getenv("TORCH_NEURONX_GEMM_CACHE_MB");
  if (text == nullptr || *text == '\0') return kDefaultMiB << 20;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  TORCH_CHECK(*end == '\0' && *text != '-' && value < (1ULL << 30),
              "TORCH_NEURONX_GEMM_CACHE_MB must be a whole number of MiB, got \"", text, "\"");
  return size_t(value) << 20;
}

}  // namespace

PackedB::PackedB(const Kernels* kernels, int64_t k_units, int64_t panels)
    : kernels_(kernels),
      k_units_(k_units),
      bytes_(size_t(k_units) * panels * kPanelCols * 4),
      data_(nullptr) {
  constexpr size_t kHuge = size_t(2) << 20;
  const size_t alignment = bytes_ >= kHuge ? kHuge : 64;
  const size_t rounded = (bytes_ + alignment - 1) / alignment * alignment;
  data_ = static_cast<char*>(std::aligned_alloc(alignment, rounded));
  if (data_ == nullptr) throw std::bad_alloc();
  // Every product reads all of it: with small pages the page table would not stay in the caches.
  if (alignment == kHuge) (void)madvise(data_, rounded, MADV_HUGEPAGE);
}

PackedB::~PackedB() { std::free(data_); }

std::shared_ptr<const PackedB> pack(const Problem& p) {
  const Kernels* kernels = kernels_for(p.dtype);
  const int64_t units = (p.k + kernels->unit - 1) / kernels->unit;
  const int64_t panels = (p.n + kPanelCols - 1) / kPanelCols;
  auto packed = std::make_shared<PackedB>(kernels, units, panels);
  for_tasks(panels, true, [&](int64_t j) {
    pack_panel(*kernels, p, 0, j, 0, units, reinterpret_cast<uint32_t*>(packed->at(j, 0)));
  });
  return packed;
}

PackedCache::PackedCache() : byte_limit_(byte_limit_from_environment()) {}

PackedCache& PackedCache::instance() {
  // Never destroyed: a thread may still multiply while the process ends.
  static PackedCache* cache = new PackedCache();
  return *cache;
}

size_t PackedCache::KeyHash::operator()(const PackedKey& key) const {
  return c10::get_hash(reinterpret_cast<uintptr_t>(key.data), int(key.kind), int(key.dtype),
                       key.sizes[0], key.sizes[1], key.strides[0], key.strides[1]);
}

std::shared_ptr<const PackedB> PackedCache::find(const Problem& p, uint64_t generation) {
  PackedKey key;
  key.dtype = p.dtype;
  key.data = p.b.data;
  key.sizes[0] = p.k;
  key.sizes[1] = p.n;
  key.strides[0] = p.b.row_stride;
  key.strides[1] = p.b.col_stride;
  return std::static_pointer_cast<const PackedB>(find(key, generation, [&] { return pack(p); }));
}

std::shared_ptr<const Packed> PackedCache::find(
    const PackedKey& key, uint64_t generation,
    const std::function<std::shared_ptr<const Packed>()>& make) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end() || found->second->generation != generation) {
      ++stats_.misses;
      if (found != entries_.end()) {
        if (found->second->packed) stats_.bytes -= found->second->packed->bytes();
        order_.erase(found->second);
        entries_.erase(found);
      }
      if (byte_limit_ == 0) return nullptr;
      order_.push_front({key, generation, nullptr});
      entries_[key] = order_.begin();
      drop_until_fits();
      return nullptr;
    }
    order_.splice(order_.begin(), order_, found->second);
    if (found->second->packed) {
      ++stats_.hits;
      return found->second->packed;
    }
    ++stats_.misses;
  }
  // Packed outside the lock; two threads may do it at once, and the later one is kept.
  std::shared_ptr<const Packed> packed = make();
  const std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.packed;
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second->generation != generation ||
      packed->bytes() > byte_limit_) {
    return packed;
  }
  if (found->second->packed) stats_.bytes -= found->second->packed->bytes();
  found->second->packed = packed;
  stats_.bytes += packed->bytes();
  drop_until_fits();
  return packed;
}

void PackedCache::drop_until_fits() {
  while (!order_.empty() && (stats_.bytes > byte_limit_ || order_.size() > kMaxEntries)) {
    const Entry& last = order_.back();
    if (last.packed) {
      stats_.bytes -= last.packed->bytes();
      ++stats_.evicted;
    }
    entries_.erase(last.key);
    order_.pop_back();
  }
}

CacheStats PackedCache::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  CacheStats stats = stats_;
  stats.entries = order_.size();
  stats.byte_limit = byte_limit_;
  return stats;
}

void PackedCache::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  order_.clear();
  entries_.clear();
  stats_ = {};
}

}  // namespace torch_neuronx::gemm
