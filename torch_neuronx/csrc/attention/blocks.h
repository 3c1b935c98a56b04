// What the drivers of attention share: kernels, addresses, working memory, operands of products.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/attention.h"
#include "attention/rows.h"
#include "gemm/methods.h"
#include "gemm/scratch.h"

namespace torch_neuronx::attention {

using gemm::kPanelCols;

inline int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
inline int64_t blocks_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

struct Engine {
  const gemm::Kernels* tiles;  // which have dot() and stream() too
  const RowKernels* rows;      // null: this host has no kernels for the dtype

  int64_t units(int64_t elements) const { return blocks_of(elements, tiles->unit); }
};
Engine engine_for(at::ScalarType dtype);

inline Storage storage_of(at::ScalarType dtype) {
  return dtype == at::kFloat      ? Storage::kF32
         : dtype == at::kBFloat16 ? Storage::kBf16
                                  : Storage::kF16;
}

// Rows of one head of a tensor, as bytes; in pages if there is a table.
struct Rows {
  const char* data;
  int64_t row_bytes;
  const int32_t* table = nullptr;
  int64_t page_rows = 0, page_bytes = 0;

  const char* at(int64_t row) const {
    if (table == nullptr) return data + row * row_bytes;
    return data + table[row / page_rows] * page_bytes + row % page_rows * row_bytes;
  }
  // How many of `count` rows from `row` on lie row_bytes apart.
  int64_t run(int64_t row, int64_t count) const {
    return table == nullptr ? count : std::min(count, page_rows - row % page_rows);
  }
};
template <class T>
Rows rows_of(const View<T>& v, int64_t size, int64_t batch, int64_t head) {
  return {
      static_cast<const char*>(v.data) + (batch * v.strides.batch + head * v.strides.head) * size,
      v.strides.row * size};
}
inline Rows key_rows_of(const Problem& p, int64_t size, int64_t batch, int64_t head) {
  Rows rows = rows_of(p.key, size, batch, head);
  rows.table = p.pages.table, rows.page_rows = p.pages.size, rows.page_bytes = p.pages.key * size;
  return rows;
}
inline Rows value_rows_of(const Problem& p, int64_t size, int64_t batch, int64_t head) {
  Rows rows = rows_of(p.value, size, batch, head);
  rows.table = p.pages.table, rows.page_rows = p.pages.size, rows.page_bytes = p.pages.value * size;
  return rows;
}
// Calls fn(i, n) for parts [i, i + n) of `count` rows from `first` on that lie row_bytes apart.
template <class Fn>
void for_runs(const Rows& rows, int64_t first, int64_t count, Fn&& fn) {
  for (int64_t i = 0; i < count;) {
    const int64_t n = rows.run(first + i, count - i);
    fn(i, n);
    i += n;
  }
}
// The rows where they are if they lie row_bytes apart, else copied to `memory`, `bytes` apart.
Rows neighbours(const Rows& rows, int64_t first, int64_t count, int64_t bytes, char* memory);

// Asks for rows before they are needed: short rows far apart stop the hardware's own prefetcher.
inline void prefetch(const Rows& rows, int64_t first, int64_t count, int64_t bytes) {
  for_runs(rows, first, count, [&](int64_t begin, int64_t some) {
    const char* row = rows.at(first + begin);
    for (int64_t i = 0; i < some; ++i, row += rows.row_bytes) {
      for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, 0, 2);
    }
  });
}
inline char* writable(const char* p) { return const_cast<char*>(p); }

MaskBlock mask_block(const Mask& mask, int64_t batch, int64_t head, int64_t row, int64_t col);

// Parts of a task's working memory: first count the bytes, then hand out the addresses.
class Carve {
 public:
  explicit Carve(char* base = nullptr) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    char* part = base_ + bytes_;
    bytes_ += size_t(round_up(count * int64_t(sizeof(T)), 64));
    return reinterpret_cast<T*>(part);
  }
  size_t bytes() const { return bytes_; }

 private:
  char* base_;
  size_t bytes_ = 0;
};

// The left operand of a product, rows of `width` elements: where it is, or rearranged in `memory`
// (units_row units to a row) if the kernels do not read it there.
struct LeftRows {
  const char* data;
  int64_t row_bytes;
};
bool reads_in_place(const gemm::Kernels& tiles, gemm::Element element, int64_t width);
LeftRows left_rows(const gemm::Kernels& tiles, gemm::Element element, const Rows& rows,
                   int64_t first, int64_t count, int64_t width, uint32_t* memory);
// The rows of `count` heads, one head after another; `direct_a` is read in place whatever the
// width, as dot() does.
LeftRows group_rows(const gemm::Kernels& tiles, gemm::Element element, const Input& from,
                    int64_t batch, int64_t head, int64_t heads, int64_t count, int64_t width,
                    uint32_t* memory);
// Its transpose, a row per element of `width`, `row` units apart.
void pack_left_transposed(const gemm::Kernels& tiles, gemm::Element element, const Rows& rows,
                          int64_t first, int64_t count, int64_t width, uint32_t* memory,
                          int64_t row);
// The right operand [width x count], a panel for every 64 rows: panels of units(width) units.
void pack_right_transposed(const gemm::Kernels& tiles, gemm::Element element, const Rows& rows,
                           int64_t first, int64_t count, int64_t width, uint32_t* memory);
// The right operand [count x width], a panel for every 64 columns, `depth` units apart.
void pack_right(const gemm::Kernels& tiles, gemm::Element element, const Rows& rows, int64_t first,
                int64_t count, int64_t width, uint32_t* memory, int64_t depth);

// Few queries of all heads that share keys (few_queries*.cpp): keys and values are read where they
// are, without being rearranged.
constexpr int64_t kFewQueries = 8;
inline bool has_few_queries(const Problem& p) {
  return p.heads / p.kv_heads * p.queries <= kFewQueries;
}
// They work on so many keys at a time, and ask for keys so far ahead.
constexpr int64_t kStepKeys = 8, kAheadKeys = 16;
// How many of the kStepKeys keys that are `kAheadKeys` after key `i` are among `count`.
inline int64_t keys_ahead(int64_t i, int64_t count) {
  return std::clamp<int64_t>(count - i - kAheadKeys, 0, kStepKeys);
}
void forward_few_queries(const Problem& p, const Output& out, const View<float>& logsumexp);
void backward_few_queries(const Problem& p, const BackwardArgs& args);

}  // namespace torch_neuronx::attention
