#include "attention/blocks.h"

#include <cstring>

namespace torch_neuronx::attention {

Engine engine_for(at::ScalarType dtype) {
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) return {};
  const gemm::Kernels* tiles = gemm::kernels_for(dtype);
  if (tiles == nullptr || !tiles->thin) return {};
  return {tiles, tiles->unit == 2 ? rows_avx512bf16() : rows_avx512()};
}

MaskBlock mask_block(const Mask& mask, int64_t batch, int64_t head, int64_t row, int64_t col) {
  if (mask.data == nullptr) return {};
  const int64_t offset = batch * mask.batch + head * mask.head + row * mask.row + col * mask.col;
  const MaskKind kind = mask.dtype == at::kFloat      ? MaskKind::kF32
                        : mask.dtype == at::kBFloat16 ? MaskKind::kBf16
                        : mask.dtype == at::kHalf     ? MaskKind::kF16
                                                      : MaskKind::kBool;
  const int64_t size = kind == MaskKind::kF32 ? 4 : kind == MaskKind::kBool ? 1 : 2;
  return {kind, static_cast<const char*>(mask.data) + offset * size, mask.row, mask.col};
}

Rows neighbours(const Rows& rows, int64_t first, int64_t count, int64_t bytes, char* memory) {
  if (rows.run(first, count) == count) return {rows.at(first), rows.row_bytes};
  for_runs(rows, first, count, [&](int64_t begin, int64_t some) {
    const char* from = rows.at(first + begin);
    char* to = memory + begin * bytes;
    for (int64_t i = 0; i < some; ++i) {
      std::memcpy(to + i * bytes, from + i * rows.row_bytes, size_t(bytes));
    }
  });
  return {memory, bytes};
}

bool reads_in_place(const gemm::Kernels& tiles, gemm::Element element, int64_t width) {
  return tiles.direct_a == element && width % tiles.unit == 0;
}

LeftRows left_rows(const gemm::Kernels& tiles, gemm::Element element, const Rows& rows,
                   int64_t first, int64_t count, int64_t width, uint32_t* memory) {
  if (reads_in_place(tiles, element, width)) return {rows.at(first), rows.row_bytes};
  const int64_t units = blocks_of(width, tiles.unit);
  tiles.pack_a_rows({element, rows.at(first), gemm::element_size(element), rows.row_bytes, width,
                     count, memory, units});
  return {reinterpret_cast<const char*>(memory), units * 4};
}

LeftRows group_rows(const gemm::Kernels& tiles, gemm::Element element, const Input& from,
                    int64_t batch, int64_t head, int64_t heads, int64_t count, int64_t width,
                    uint32_t* memory) {
  const int64_t size = gemm::element_size(element), units = blocks_of(width, tiles.unit);
  if (heads == 1 && tiles.direct_a == element) {
    const Rows rows = rows_of(from, size, batch, head);
    return {rows.data, rows.row_bytes};
  }
  for (int64_t i = 0; i < heads; ++i) {
    const Rows rows = rows_of(from, size, batch, head + i);
    tiles.pack_a_rows({element, rows.data, size, rows.row_bytes, width, count,
                       memory + i * count * units, units});
  }
  return {reinterpret_cast<const char*>(memory), units * 4};
}

void pack_left_transposed(const gemm::Kernels& tiles, gemm::Element element, const Rows& rows,
                          int64_t first, int64_t count, int64_t width, uint32_t* memory,
                          int64_t row) {
  tiles.pack_a_rows({element, rows.at(first), rows.row_bytes, gemm::element_size(element), count,
                     width, memory, row});
}

void pack_right_transposed(const gemm::Kernels& tiles, gemm::Element element, const Rows& rows,
                           int64_t first, int64_t count, int64_t width, uint32_t* memory) {
  const int64_t units = blocks_of(width, tiles.unit);
  for (int64_t j = 0; j < count; j += kPanelCols) {
    tiles.pack_b({element, rows.at(first + j), gemm::element_size(element), rows.row_bytes, width,
                  std::min(kPanelCols, count - j), memory + j * units, kPanelCols});
  }
}

void pack_right(const gemm::Kernels& tiles, gemm::Element element, const Rows& rows, int64_t first,
                int64_t count, int64_t width, uint32_t* memory, int64_t depth) {
  const int64_t size = gemm::element_size(element);
  for (int64_t j = 0; j < width; j += kPanelCols) {
    tiles.pack_b({element, rows.at(first) + j * size, rows.row_bytes, size, count,
                  std::min(kPanelCols, width - j), memory + j * depth, kPanelCols});
  }
}

}  // namespace torch_neuronx::attention
