// Few rows in matrix tiles. The lines of the large operand are read as rows of A, from where they
// are, 32 lines at a time; the few rows are the columns of B. A tile of 16 lines takes 16 clocks,
// whatever the number of columns, so that the memory is all that is waited for.
#include <algorithm>

#include "gemm/tiles_avx512amx.h"

namespace torch_neuronx::gemm {
namespace {

constexpr int64_t kLines = 2 * kTileRows;
static_assert(kSmallSide <= kTileCols);

// Sums of a block of lines on their way to the result, where each column is a row.
struct Sums {
  alignas(64) float at[kLines][kTileCols];
  int64_t line, count;

  void leave(const ThinArgs& d) const {
    for (int64_t i = 0; i < count; i += kTileRows) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int j = 0; j < kTileRows; ++j) r[j] = _mm512_load_si512(at[i + j]);
      store_transposed(r, reinterpret_cast<uint32_t*>(d.result + line + i), d.result_row,
                       d.small_rows, lanes16(count - i));
    }
  }
};

template <bool LOWER>
TN_INLINE void block(const ThinArgs& d, Sums& sums) {
  _tile_zero(TN_SUMS00);
  if constexpr (LOWER) _tile_zero(TN_SUMS10);
  const char* lines = d.large + sums.line * d.large_l_bytes;
  const char* columns = d.small;
  int64_t k = d.k;
  for (; k >= kTileDepth; k -= kTileDepth) {
    step<LOWER, false>(lines, d.large_l_bytes, columns, d.small_row_bytes);
    lines += kRowBytes;
    columns += kTileUnits * d.small_row_bytes;
  }
  if (k > 0) {  // between zeros: what lies behind a line is none of ours
    alignas(64) char rest[kLines][kRowBytes];
    for (int64_t i = 0; i < sums.count; ++i) {
      _mm512_store_si512(rest[i],
                         _mm512_maskz_loadu_epi16(lanes32(k), lines + i * d.large_l_bytes));
    }
    written();
    step<LOWER, false>(rest[0], kRowBytes, columns, d.small_row_bytes);
  }
  _tile_stored(TN_SUMS00, sums.at[0], kRowBytes);
  if constexpr (LOWER) _tile_stored(TN_SUMS10, sums.at[kTileRows], kRowBytes);
  written();
}

// `count` lines, at most 32, by `columns` columns.
void set_shapes(int64_t count, int64_t columns) {
  const int64_t upper = std::min(count, kTileRows), lower = count - upper;
  Shapes shapes;
  shapes.set(TN_SUMS00, upper, columns * 4);
  shapes.set(TN_SUMS10, lower, columns * 4);
  shapes.set(TN_A0, upper, kRowBytes);
  shapes.set(TN_A1, lower, kRowBytes);
  shapes.set(TN_B0, kTileUnits, columns * 4);
  written();
  _tile_loadconfig(&shapes);
}

}  // namespace

void dot_columns(const ThinArgs& d) {
  // The sums of a block leave when the next one's are stored: what reads memory that a tile has
  // just written waits for long.
  Sums sums[2];
  int now = 0;
  sums[1].count = 0;
  for (int64_t line = 0; line < d.lines; line += kLines, now ^= 1) {
    sums[now].line = line;
    sums[now].count = std::min(kLines, d.lines - line);
    if (line == 0 || sums[now].count < kLines) set_shapes(sums[now].count, d.small_rows);
    if (sums[now].count > kTileRows) {
      block<true>(d, sums[now]);
    } else {
      block<false>(d, sums[now]);
    }
    sums[now ^ 1].leave(d);
  }
  sums[now ^ 1].leave(d);
  _tile_release();  // as after tiles of sums
}

// Rows of pairs become columns, with zeros up to whole tiles.
void pack_columns(const PackArgs& a) {
  for (int64_t k = 0; k < a.k; k += kTileDepth) {
    const __mmask32 mask = lanes32(a.k - k);
    __m512i r[16];
#pragma GCC unroll 16
    for (int i = 0; i < kTileCols; ++i) {
      r[i] = i < a.other ? _mm512_maskz_loadu_epi16(mask, a.src + i * a.other_bytes + 2 * k)
                         : _mm512_setzero_si512();
    }
    store_transposed(r, a.dst + k / 2 * a.dst_row, a.dst_row, kTileUnits, lanes16(a.other));
  }
}

}  // namespace torch_neuronx::gemm
