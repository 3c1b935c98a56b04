// B rearranged into panels once and kept, for a weight that many products read. The cache keeps
// other forms of weights too (conv/run_winograd.h), so that one limit covers all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "gemm/gemm.h"
#include "gemm/kernels.h"

namespace torch_neuronx::gemm {

// Some form of a weight that is worth keeping.
class Packed {
 public:
  Packed() = default;
  virtual ~Packed() = default;
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;
  virtual size_t bytes() const = 0;
};

class PackedB final : public Packed {
 public:
  PackedB(const Kernels* kernels, int64_t k_units, int64_t panels);
  ~PackedB() override;

  // Panel `j`, starting at unit `u` of K.
  char* at(int64_t j, int64_t u) const { return data_ + (j * k_units_ + u) * kPanelCols * 4; }
  const Kernels* kernels() const { return kernels_; }
  size_t bytes() const override { return bytes_; }

 private:
  const Kernels* kernels_;
  int64_t k_units_;
  size_t bytes_;
  char* data_;
};

// Packs p.b on ATen's threads. `p.batch` must be one. Throws std::bad_alloc.
std::shared_ptr<const PackedB> pack(const Problem& p);

// What a kept form was made from: the memory of the weight as it is laid out, and the form's kind.
struct PackedKey {
  enum class Kind : uint8_t { kPanels, kWinograd };
  Kind kind = Kind::kPanels;
  at::ScalarType dtype = at::kFloat;
  const void* data = nullptr;
  int64_t sizes[4] = {}, strides[4] = {};
  bool operator==(const PackedKey&) const = default;
};

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
  // The same for any form, which `make` makes.
  std::shared_ptr<const Packed> find(const PackedKey& key, uint64_t generation,
                                     const std::function<std::shared_ptr<const Packed>()>& make);
  CacheStats stats() const;
  size_t byte_limit() const { return byte_limit_; }
  void clear();

 private:
  PackedCache();

  struct KeyHash {
    size_t operator()(const PackedKey& key) const;
  };
  struct Entry {
    PackedKey key;
    uint64_t generation;
    std::shared_ptr<const Packed> packed;  // null: seen once
  };
  void drop_until_fits();  // with the lock held

  const size_t byte_limit_;
  mutable std::mutex mutex_;
  std::list<Entry> order_;  // most recently used first
  std::unordered_map<PackedKey, std::list<Entry>::iterator, KeyHash> entries_;
  CacheStats stats_{};
};

}  // namespace torch_neuronx::gemm
