#include "nki/product.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gemm/scratch.h"

namespace torch_neuronx::nki {
namespace {

using gemm::Element;
using gemm::Kernels;
using gemm::kPanelCols;

constexpr int64_t kDepthUnits = 512;  // of a panel of b: 128 KiB, half of a small L2 cache

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Rows a multiple of a page apart would fight for the same few places of the first cache.
int64_t padded_row(int64_t units) { return round_up(units, 16) % 256 == 0 ? units + 16 : units; }

struct Block {
  int64_t row, rows, col, cols;
};

// Cuts the result between threads into rows, columns or both, whatever takes the slowest thread
// least: everyone rearranges its own operands, so threads that share columns do that twice.
Block block_of(const Product& p, const Kernels* kernels, int64_t part, int64_t parts) {
  const int64_t strip = kernels != nullptr ? kernels->strip_rows : gemm::kStripRows;
  // In multiplications of a unit: what it costs to rearrange one.
  const double speed = kernels != nullptr ? kernels->speed : 1;
  const double pack_a = 21 * speed, pack_b = 12 * speed;
  const int64_t strips = (p.m + strip - 1) / strip;
  const int64_t panels = (p.n + kPanelCols - 1) / kPanelCols;
  int64_t best = 1;
  double least = 0;
  for (int64_t down = 1; down <= parts; ++down) {
    const int64_t across = parts / down;
    const auto rows = double((strips + down - 1) / down * strip);
    const auto cols = double((panels + across - 1) / across * kPanelCols);
    const double cost = rows * cols + pack_a * rows + pack_b * cols;
    if (down == 1 || cost < least) {
      least = cost;
      best = down;
    }
  }
  const int64_t down = best, across = parts / down;
  if (part >= down * across) return {0, 0, 0, 0};
  const int64_t i = part / across, j = part % across;
  const int64_t row = strips * i / down * strip, col = panels * j / across * kPanelCols;
  return {row, std::min(p.m, strips * (i + 1) / down * strip) - row, col,
          std::min(p.n, panels * (j + 1) / across * kPanelCols) - col};
}

float load(Element element, const char* p) {
  if (element == Element::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  uint32_t unit = 0;
  gemm::to_f32_rows({element, p, 2, 2, 1, 1, &unit, 1});
  float value;
  std::memcpy(&value, &unit, sizeof(value));
  return value;
}

// Adds the sums to `out`, or writes them there.
void store(const Product& p, const float* sums, int64_t sums_row, int64_t rows, int64_t cols,
           char* out) {
  const int64_t size = gemm::element_size(p.out_element);
  if (p.out_n == 1 || cols == 1) {
    gemm::store({p.out_element, sums, sums_row, 1, rows, cols, out, p.out_m * size,
                 p.accumulate ? out : nullptr, p.out_m * size, size, 1.0F, 1.0F});
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      char* at = out + (i * p.out_m + j * p.out_n) * size;
      gemm::store({p.out_element, sums + i * sums_row + j, sums_row, 1, 1, 1, at, size,
                   p.accumulate ? at : nullptr, size, size, 1.0F, 1.0F});
    }
  }
}

// For processors without micro-kernels.
void run_portable(const Product& p, char* out, const char* a, const char* b, const Block& block) {
  const int64_t size = gemm::element_size(p.element);
  const size_t bytes = size_t(block.cols) * 4;
  auto* sums = reinterpret_cast<float*>(gemm::scratch(gemm::Slot::kAccumulator, bytes));
  auto* row = reinterpret_cast<float*>(gemm::scratch(gemm::Slot::kPanel, bytes));
  for (int64_t i = block.row; i < block.row + block.rows; ++i) {
    std::fill(sums, sums + block.cols, 0.0F);
    for (int64_t q = 0; q < p.k; ++q) {
      const float factor = load(p.element, a + (q * p.a_k + i * p.a_m) * size);
      gemm::to_f32_rows({p.element, b + (q * p.b_k + block.col * p.b_n) * size, p.b_n * size, 0,
                         block.cols, 1, reinterpret_cast<uint32_t*>(row), block.cols});
      for (int64_t j = 0; j < block.cols; ++j) sums[j] += factor * row[j];
    }
    store(p, sums, block.cols, 1, block.cols,
          out + (i * p.out_m + block.col * p.out_n) * gemm::element_size(p.out_element));
  }
}

// One thread's block by register tiles: all of its rows of a are rearranged, then one panel of 64
// columns of b after the other.
void run_tiles(const Kernels& kernels, const Product& p, char* out, const char* a, const char* b,
               const Block& block) {
  const int64_t size = gemm::element_size(p.element);
  const int64_t out_size = gemm::element_size(p.out_element);
  const int64_t units = (p.k + kernels.unit - 1) / kernels.unit;
  const bool contiguous = p.out_n == 1;
  // Sums grow in `out` itself, or leave for it from the registers, or go through memory.
  const bool direct = contiguous && p.out_element == Element::kF32;
  const bool rounded = contiguous && !direct && !p.accumulate && units <= kDepthUnits;
  const char* left = a + block.row * p.a_m * size;
  int64_t left_row = p.a_m * size;
  if (kernels.direct_a != p.element || p.a_k != 1 || p.k % kernels.unit != 0) {
    const int64_t row = padded_row(units);
    char* packed = gemm::scratch(gemm::Slot::kBlockA, size_t(block.rows) * size_t(row) * 4);
    kernels.pack_a_rows({p.element, left, p.a_k * size, p.a_m * size, p.k, block.rows,
                         reinterpret_cast<uint32_t*>(packed), row});
    left = packed;
    left_row = row * 4;
  }
  auto* panel = reinterpret_cast<uint32_t*>(
      gemm::scratch(gemm::Slot::kPanel, size_t(std::min(units, kDepthUnits)) * kPanelCols * 4));
  float* sums = nullptr;
  if (!direct && !rounded) {
    sums = reinterpret_cast<float*>(
        gemm::scratch(gemm::Slot::kAccumulator, size_t(block.rows) * kPanelCols * 4));
  }
  for (int64_t j = block.col; j < block.col + block.cols; j += kPanelCols) {
    const int64_t cols = std::min(kPanelCols, block.col + block.cols - j);
    char* target = out + (block.row * p.out_m + j * p.out_n) * out_size;
    for (int64_t u = 0; u < units; u += kDepthUnits) {
      const int64_t depth = std::min(kDepthUnits, units - u), k0 = u * kernels.unit;
      kernels.pack_b({p.element, b + (k0 * p.b_k + j * p.b_n) * size, p.b_k * size, p.b_n * size,
                      std::min(p.k - k0, depth * kernels.unit), cols, panel, kPanelCols});
      gemm::TileArgs t{};
      t.k_units = depth;
      t.a = left + u * 4;
      t.a_row_bytes = left_row;
      t.b = reinterpret_cast<const char*>(panel);
      t.c = direct || rounded ? static_cast<void*>(target) : sums;
      t.c_row = direct || rounded ? p.out_m : kPanelCols;
      t.out_element = rounded ? p.out_element : Element::kF32;
      if (u > 0 || (direct && p.accumulate)) {
        t.init = static_cast<const float*>(t.c);
        t.init_row = t.c_row;
      }
      kernels.tile(block.rows, cols, t);
    }
    if (sums != nullptr) store(p, sums, kPanelCols, block.rows, cols, target);
  }
}

}  // namespace

void Product::prepare() {
  if (n == 1) out_n = 1;
  if (m == 1) out_m = n;
  if (out_n == 1 || (out_m != 1 && m != 1)) return;
  if (m == 1) out_m = 1;
  swapped = true;
  std::swap(m, n);
  std::swap(out_m, out_n);
  std::swap(a_k, b_k);
  std::swap(a_m, b_n);
}

void run_product(const Product& p, char* out, const char* a, const char* b, int64_t part,
                 int64_t parts) {
  if (p.swapped) std::swap(a, b);
  const Kernels* kernels = gemm::own_kernels(p.element, /*with_amx=*/true);
  const Block block = block_of(p, kernels, part, parts);
  if (block.rows <= 0 || block.cols <= 0) return;
  if (kernels != nullptr) {
    run_tiles(*kernels, p, out, a, b, block);
  } else {
    run_portable(p, out, a, b, block);
  }
}

}  // namespace torch_neuronx::nki
