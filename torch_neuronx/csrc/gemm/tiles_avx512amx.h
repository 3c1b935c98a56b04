// Numbers and shapes of matrix tiles, and what the *_avx512amx.cpp files have of each other.
#pragma once

#include "gemm/avx512_templates.h"

namespace torch_neuronx::gemm {

void dot_columns(const ThinArgs&);
void pack_columns(const PackArgs&);
void stream_pairs(const ThinArgs&);

namespace {

constexpr int64_t kTileRows = 16, kTileCols = 16;
constexpr int64_t kTileUnits = 16;              // of K: 64 bytes of a row of A, 16 rows of B
constexpr int64_t kTileDepth = 2 * kTileUnits;  // elements of K
constexpr int64_t kRowBytes = 64;               // of a tile

// Numbers of the tiles: four of sums, two of A, two of B. GCC's intrinsics paste their text into
// assembly, so that they are macros.
#define TN_SUMS00 0
#define TN_SUMS01 1
#define TN_SUMS10 2
#define TN_SUMS11 3
#define TN_A0 4
#define TN_A1 5
#define TN_B0 6
#define TN_B1 7

// What LDTILECFG reads (Intel's manual, volume 1, "Tile configuration").
struct alignas(64) Shapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr void set(int tile, int64_t its_rows, int64_t its_row_bytes) {
    rows[tile] = uint8_t(its_rows);
    row_bytes[tile] = uint16_t(its_rows > 0 ? its_row_bytes : 0);
  }
};

// GCC does not know that its intrinsics read memory: what was just written has to be there.
TN_INLINE void written() { __asm__ volatile("" ::: "memory"); }

// 16 units of K. `LOWER`: the block has more than 16 rows; `RIGHT`: more than 16 columns.
template <bool LOWER, bool RIGHT>
TN_INLINE void step(const char* a, int64_t a_row_bytes, const char* b, int64_t b_row_bytes) {
  _tile_loadd(TN_A0, a, a_row_bytes);
  _tile_loadd(TN_B0, b, b_row_bytes);
  if constexpr (RIGHT) _tile_loadd(TN_B1, b + kRowBytes, b_row_bytes);
  if constexpr (LOWER) _tile_loadd(TN_A1, a + kTileRows * a_row_bytes, a_row_bytes);
  _tile_dpbf16ps(TN_SUMS00, TN_A0, TN_B0);
  if constexpr (RIGHT) _tile_dpbf16ps(TN_SUMS01, TN_A0, TN_B1);
  if constexpr (LOWER) _tile_dpbf16ps(TN_SUMS10, TN_A1, TN_B0);
  if constexpr (LOWER && RIGHT) _tile_dpbf16ps(TN_SUMS11, TN_A1, TN_B1);
}

}  // namespace
}  // namespace torch_neuronx::gemm
