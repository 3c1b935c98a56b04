// Few rows by a row-major operand in matrix tiles. Pairs of K lie in two rows of the operand there,
// so that blocks of 32 rows and columns are interleaved into two tiles each and then multiplied.
// The few rows are read as rows of A; their sums wait in the result.
#include <initializer_list>

#include "gemm/tiles_avx512amx.h"

namespace torch_neuronx::gemm {
namespace {

constexpr int64_t kBlock = 2 * kTileCols;  // columns: one vector of elements, two tiles
constexpr int64_t kTileBytes = kTileUnits * kRowBytes;
// Blocks that are interleaved before memory is written again: a tile waits for what is written just
// before it is read, and the next blocks shall not wait for it.
constexpr int64_t kRing = 8;
static_assert(kSmallSide <= kTileRows);

// The pairs of two rows, a row of each tile. Vectors are interleaved in each 16 bytes of them for
// itself, so columns 0 to 3, 8 to 11 and so on get into the first tile, the others into the second.
// With an empty mask nothing is read.
TN_INLINE void interleave(const char* row0, __mmask32 columns0, const char* row1,
                          __mmask32 columns1, char* to) {
  const __m512i low = _mm512_maskz_loadu_epi16(columns0, row0);
  const __m512i high = _mm512_maskz_loadu_epi16(columns1, row1);
  _mm512_store_si512(to, _mm512_unpacklo_epi16(low, high));
  _mm512_store_si512(to + kTileBytes, _mm512_unpackhi_epi16(low, high));
}

// 32 sums of the order above, in the order of the columns.
TN_INLINE void put_in_order(float* sums) {
  const __m512d first = _mm512_castps_pd(_mm512_loadu_ps(sums));
  const __m512d second = _mm512_castps_pd(_mm512_loadu_ps(sums + kTileCols));
  const __m512i left = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i right = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  _mm512_storeu_ps(sums, _mm512_castpd_ps(_mm512_permutex2var_pd(first, left, second)));
  _mm512_storeu_ps(sums + kTileCols,
                   _mm512_castpd_ps(_mm512_permutex2var_pd(first, right, second)));
}

// 32 rows of a block into two tiles, and asking for the block `ahead` bytes further.
TN_INLINE void make_tiles(const char* block, int64_t row_bytes, __mmask32 columns, int64_t ahead,
                          char* to) {
#pragma GCC unroll 4
  for (int64_t u = 0; u < kTileUnits; ++u) {
    const char* row = block + 2 * u * row_bytes;
    if (ahead != 0) {
      _mm_prefetch(row + ahead, _MM_HINT_T1);
      _mm_prefetch(row + row_bytes + ahead, _MM_HINT_T1);
    }
    interleave(row, columns, row + row_bytes, columns, to + u * kRowBytes);
  }
}

// The last rows, fewer than 32, between zeros.
void make_last_tiles(const char* block, int64_t row_bytes, __mmask32 columns, int64_t rows,
                     char* to) {
  for (int64_t u = 0; u < kTileUnits; ++u) {
    const char* row = block + 2 * u * row_bytes;
    interleave(row, 2 * u < rows ? columns : 0, row + row_bytes, 2 * u + 1 < rows ? columns : 0,
               to + u * kRowBytes);
  }
}

// Adds what a block gives to its sums, or begins with it.
TN_INLINE void multiply(bool first, const char* tiles, float* sums, int64_t sums_row) {
  const int64_t bytes = sums_row * 4;
  if (first) {
    _tile_zero(TN_SUMS00);
    _tile_zero(TN_SUMS01);
  } else {
    _tile_loadd(TN_SUMS00, sums, bytes);
    _tile_loadd(TN_SUMS01, sums + kTileCols, bytes);
  }
  _tile_loadd(TN_B0, tiles, kRowBytes);
  _tile_loadd(TN_B1, tiles + kTileBytes, kRowBytes);
  _tile_dpbf16ps(TN_SUMS00, TN_A0, TN_B0);
  _tile_dpbf16ps(TN_SUMS01, TN_A0, TN_B1);
  _tile_stored(TN_SUMS00, sums, bytes);
  _tile_stored(TN_SUMS01, sums + kTileCols, bytes);
}

// The few rows' next 32 elements.
void load_small(const ThinArgs& d, int64_t k) {
  const char* small = d.small + 2 * k;
  if (d.k - k >= kTileDepth) {
    _tile_loadd(TN_A0, small, d.small_row_bytes);
    return;
  }
  alignas(64) char rest[kSmallSide][kRowBytes];  // what lies behind a row is none of ours
  for (int64_t i = 0; i < d.small_rows; ++i) {
    _mm512_store_si512(rest[i],
                       _mm512_maskz_loadu_epi16(lanes32(d.k - k), small + i * d.small_row_bytes));
  }
  written();
  _tile_loadd(TN_A0, rest, kRowBytes);
}

}  // namespace

void stream_pairs(const ThinArgs& d) {
  Shapes shapes;
  for (const int sums : {TN_SUMS00, TN_SUMS01}) shapes.set(sums, d.small_rows, kRowBytes);
  shapes.set(TN_A0, d.small_rows, kRowBytes);
  for (const int b : {TN_B0, TN_B1}) shapes.set(b, kTileUnits, kRowBytes);
  written();
  _tile_loadconfig(&shapes);

  alignas(64) char ring[kRing][2 * kTileBytes];
  int64_t next = 0;
  for (int64_t k = 0; k < d.k; k += kTileDepth) {
    const int64_t rows = d.k - k, ahead = rows >= 2 * kTileDepth ? kTileDepth * d.large_k_bytes : 0;
    load_small(d, k);
    for (int64_t line = 0; line < d.lines; line += kBlock) {
      const char* block = d.large + k * d.large_k_bytes + 2 * line;
      char* tiles = ring[next++ % kRing];
      const __mmask32 columns = lanes32(d.lines - line);
      if (rows >= kTileDepth) {
        make_tiles(block, d.large_k_bytes, columns, ahead, tiles);
      } else {
        make_last_tiles(block, d.large_k_bytes, columns, rows, tiles);
      }
      written();
      multiply(k == 0, tiles, d.result + line, d.result_row);
    }
  }
  _tile_release();  // as after tiles of sums
  written();
  for (int64_t i = 0; i < d.small_rows; ++i) {
    for (int64_t line = 0; line < d.lines; line += kBlock) {
      put_in_order(d.result + i * d.result_row + line);
    }
  }
}

}  // namespace torch_neuronx::gemm
