// B rearranged into panels once and kept, for a weight that many products read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "gemm/gemm.h"
#include "gemm/kernels.h"

namespace torch_neuronx::gemm {

class PackedB {
 public:
  PackedB(const Kernels* kernels, int64_t k_units, int64_t panels);
  ~PackedB();
  PackedB(const PackedB&) = delete;
  PackedB& operator=(const PackedB&) = delete;

  // Panel `j`, starting at unit `u` of K.
  char* at(int64_t j, int64_t u) const { return data_ + (j * k_units_ + u) * kPanelCols * 4; }
  const Kernels* kernels() const { return kernels_; }
  size_t bytes() const { return bytes_; }

 private:
  const Kernels* kernels_;
  int64_t k_units_;
  size_t bytes_;
  char* data_;
};

// Packs p.b on ATen's threads. `p.batch` must be one. Throws std::bad_alloc.
std::shared_ptr<const PackedB> pack(const Problem& p);

struct CacheStats {
  uint64_t hits, misses, packed, evicted;
  size_t entries, bytes, byte_limit;
};

// Least recently used packed weights, bounded in bytes (TORCH_NEURONX_GEMM_CACHE_MB, default 512;
// 0 keeps nothing). A weight is packed when it is seen for the second time with the same key.
class PackedCache {
 public:
  static PackedCache& instance();

  // The packed form of p.b, or null when it is not (yet) worth it. The caller guarantees that
  // `generation` differs whenever the memory was written or given to another tensor in between.
  std::shared_ptr<const PackedB> find(const Problem& p, uint64_t generation);
  CacheStats stats() const;
  void clear();

 private:
  PackedCache();

  struct Key {
    const void* data;
    int64_t k, n, row_stride, col_stride;
    at::ScalarType dtype;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    Key key;
    uint64_t generation;
    std::shared_ptr<const PackedB> packed;  // null: seen once
  };
  void drop_until_fits();  // with the lock held

  mutable std::mutex mutex_;
  std::list<Entry> order_;  // most recently used first
  std::unordered_map<Key, std::list<Entry>::iterator, KeyHash> entries_;
  CacheStats stats_{};
};

}  // namespace torch_neuronx::gemm
