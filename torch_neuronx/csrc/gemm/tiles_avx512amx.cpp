// Kernels over matrix tiles (AMX): an instruction multiplies 16 rows of 32 bfloat16 with 16 columns
// and adds to 16 x 16 float32. Subnormals count as zero, as in every bfloat16 product of the
// processor. Four tiles of sums, two of A and two of B are all eight that there are, so that four
// products need four loads.
#include "gemm/tiles_avx512amx.h"

#include <algorithm>
#include <initializer_list>

namespace torch_neuronx::gemm {
namespace {

constexpr int64_t kBlockRows = 2 * kTileRows;
// 256 units in a clock, where two vectors multiply 32.
constexpr double kSpeed = 8;
constexpr int64_t kPanelBytes = kPanelCols * 4;

// Of blocks of 1 to 32 rows.
struct AllShapes {
  Shapes of_rows[kBlockRows];

  constexpr AllShapes() {
    for (int64_t m = 1; m <= kBlockRows; ++m) {
      const int64_t upper = m < kTileRows ? m : kTileRows, lower = m - upper;
      const int64_t rows[] = {upper, upper, lower, lower, upper, lower, kTileUnits, kTileUnits};
      for (int i = 0; i < 8; ++i) of_rows[m - 1].set(i, rows[i], kRowBytes);
    }
  }
};
constexpr AllShapes kShapes;

struct Sums {
  alignas(64) float at[kBlockRows][2 * kTileCols];
};

// The last units of K, fewer than 16, between zeros: what lies behind a row of A is none of ours.
template <bool LOWER, bool RIGHT>
TN_INLINE void last_step(const char* a, int64_t a_row_bytes, const char* b, int64_t rows,
                         int64_t units) {
  alignas(64) char a_part[kBlockRows * kRowBytes];
  alignas(64) char b_part[kTileUnits * 2 * kRowBytes];
  const __mmask16 lanes = lanes16(units);
  for (int64_t i = 0; i < rows; ++i) {
    _mm512_store_si512(a_part + i * kRowBytes,
                       _mm512_maskz_loadu_epi32(lanes, a + i * a_row_bytes));
  }
  for (int64_t p = 0; p < kTileUnits; ++p) {
    for (int64_t j = 0; j < (RIGHT ? 2 : 1) * kRowBytes; j += kRowBytes) {
      const char* from = b + p * kPanelBytes + j;
      _mm512_store_si512(b_part + p * 2 * kRowBytes + j,
                         p < units ? _mm512_loadu_si512(from) : _mm512_setzero_si512());
    }
  }
  written();
  step<LOWER, RIGHT>(a_part, kRowBytes, b_part, 2 * kRowBytes);
}

template <bool LOWER, bool RIGHT>
TN_INLINE void load_sums(const float* from, int64_t row) {
  const int64_t bytes = row * 4;
  _tile_loadd(TN_SUMS00, from, bytes);
  if constexpr (RIGHT) _tile_loadd(TN_SUMS01, from + kTileCols, bytes);
  if constexpr (LOWER) _tile_loadd(TN_SUMS10, from + kTileRows * row, bytes);
  if constexpr (LOWER && RIGHT) _tile_loadd(TN_SUMS11, from + kTileRows * row + kTileCols, bytes);
}

template <bool LOWER, bool RIGHT>
TN_INLINE void store_sums(float* to, int64_t row) {
  const int64_t bytes = row * 4;
  _tile_stored(TN_SUMS00, to, bytes);
  if constexpr (RIGHT) _tile_stored(TN_SUMS01, to + kTileCols, bytes);
  if constexpr (LOWER) _tile_stored(TN_SUMS10, to + kTileRows * row, bytes);
  if constexpr (LOWER && RIGHT) _tile_stored(TN_SUMS11, to + kTileRows * row + kTileCols, bytes);
}

// Of the second tile of columns.
TN_INLINE __mmask16 right_lanes(int64_t cols) {
  return lanes16(std::max<int64_t>(cols - kTileCols, 0));
}

// Two vectors to bfloat16, nearest even. The instruction flushes subnormals, as the product has
// done. NaN becomes the one that PyTorch rounds it to.
TN_INLINE __m512i rounded(__m512 first, __m512 second) {
  const __mmask32 nan = _mm512_kunpackw(_mm512_cmp_ps_mask(second, second, _CMP_UNORD_Q),
                                        _mm512_cmp_ps_mask(first, first, _CMP_UNORD_Q));
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  return _mm512_mask_mov_epi16(halves, nan, _mm512_set1_epi16(0x7fc0));
}

TN_INLINE __m512i float16(__m512 first, __m512 second) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(to_half(Element::kF16, first)),
                            to_half(Element::kF16, second), 1);
}

// Sums that have left the tiles on their way to C. Those of a block leave when the next one's are
// stored: what reads memory that a tile has just written waits for long.
class Leaving {
 public:
  // Room for the sums of the next block.
  Sums& room() { return sums_[next_]; }

  // The room has the sums of this block.
  void put(const TileArgs& t, int64_t rows, int64_t cols) {
    finish();
    c_ = static_cast<char*>(t.c), row_ = t.c_row, element_ = t.out_element;
    rows_ = rows, cols_ = cols;
    next_ ^= 1;
  }

  void finish() {
    const Sums& sums = sums_[next_ ^ 1];
    const __mmask16 left = lanes16(cols_), right = right_lanes(cols_);
    for (int64_t i = 0; i < rows_; ++i) {
      const __m512 first = _mm512_load_ps(sums.at[i]);
      const __m512 second = _mm512_load_ps(sums.at[i] + kTileCols);
      if (element_ == Element::kF32) {
        float* to = reinterpret_cast<float*>(c_) + i * row_;
        _mm512_mask_storeu_ps(to, left, first);
        _mm512_mask_storeu_ps(to + kTileCols, right, second);
      } else {
        const __m512i halves =
            element_ == Element::kBf16 ? rounded(first, second) : float16(first, second);
        _mm512_mask_storeu_epi16(c_ + i * row_ * 2, lanes32(cols_), halves);
      }
    }
    rows_ = 0;
  }

 private:
  Sums sums_[2];
  int next_ = 0;
  char* c_ = nullptr;
  int64_t row_ = 0, rows_ = 0, cols_ = 1;
  Element element_ = Element::kF32;
};

// Up to 32 rows and 32 columns of C.
template <bool LOWER, bool RIGHT>
void block(const TileArgs& t, int64_t rows, int64_t cols, Leaving& leaving) {
  const bool whole = cols == (RIGHT ? 2 : 1) * kTileCols;
  Sums& sums = leaving.room();
  constexpr int64_t kSumsRow = 2 * kTileCols;
  if (t.init == nullptr) {
    _tile_zero(TN_SUMS00);
    if constexpr (RIGHT) _tile_zero(TN_SUMS01);
    if constexpr (LOWER) _tile_zero(TN_SUMS10);
    if constexpr (LOWER && RIGHT) _tile_zero(TN_SUMS11);
  } else if (whole) {
    load_sums<LOWER, RIGHT>(t.init, t.init_row);
  } else {
    const __mmask16 left = lanes16(cols), right = right_lanes(cols);
    for (int64_t i = 0; i < rows; ++i) {
      const float* from = t.init + i * t.init_row;
      _mm512_store_ps(sums.at[i], _mm512_maskz_loadu_ps(left, from));
      _mm512_store_ps(sums.at[i] + kTileCols, _mm512_maskz_loadu_ps(right, from + kTileCols));
    }
    written();
    load_sums<LOWER, RIGHT>(sums.at[0], kSumsRow);
  }

  if (t.k_units < kTileUnits) {
    step<LOWER, RIGHT>(t.a, t.a_row_bytes, t.b, kPanelBytes);  // the tiles are no deeper
  }
  constexpr int kAsks = 4;  // lines in a step, as the vector kernels ask for in so many products
  const char* a = t.a;
  const char* b = t.b;
  int64_t units = t.k_units < kTileUnits ? 0 : t.k_units;
  for (; units >= kTileUnits; units -= kTileUnits) {
    step<LOWER, RIGHT>(a, t.a_row_bytes, b, kPanelBytes);
    if (t.ahead != nullptr) {
      for (int i = 0; i < kAsks; ++i) ask(*t.ahead);
    }
    a += kRowBytes;
    b += kTileUnits * kPanelBytes;
  }
  if (units > 0) last_step<LOWER, RIGHT>(a, t.a_row_bytes, b, rows, units);

  if (t.out_element == Element::kF32 && whole) {
    return store_sums<LOWER, RIGHT>(static_cast<float*>(t.c), t.c_row);
  }
  store_sums<LOWER, RIGHT>(sums.at[0], kSumsRow);
  leaving.put(t, rows, cols);
}

// Up to 32 rows, all columns, two tiles of them at a time.
template <bool LOWER>
TN_INLINE void rows_of(TileArgs t, int64_t rows, int64_t n, Leaving& leaving) {
  constexpr int64_t kCols = 2 * kTileCols;
  for (int64_t j = 0; j < n; j += kCols) {
    const int64_t cols = std::min(kCols, n - j);
    if (cols > kTileCols) {
      block<LOWER, true>(t, rows, cols, leaving);
    } else {
      block<LOWER, false>(t, rows, cols, leaving);
    }
    t.b += kCols * 4;
    t.c = static_cast<char*>(t.c) + kCols * element_size(t.out_element);
    if (t.init != nullptr) t.init += kCols;
  }
}

void set_shapes(int64_t rows, int64_t units) {
  if (units >= kTileUnits) return _tile_loadconfig(&kShapes.of_rows[rows - 1]);
  Shapes shapes = kShapes.of_rows[rows - 1];
  for (const int i : {TN_A0, TN_A1}) {
    if (shapes.rows[i] > 0) shapes.row_bytes[i] = uint16_t(units * 4);
  }
  for (const int i : {TN_B0, TN_B1}) shapes.rows[i] = uint8_t(units);
  written();
  _tile_loadconfig(&shapes);
}

void tile(int64_t m, int64_t n, const TileArgs& args) {
  TileArgs t = args;
  Leaving leaving;
  if (m >= kBlockRows) set_shapes(kBlockRows, t.k_units);
  for (; m >= kBlockRows; m -= kBlockRows) {
    rows_of<true>(t, kBlockRows, n, leaving);
    t.a += kBlockRows * t.a_row_bytes;
    t.c = static_cast<char*>(t.c) + kBlockRows * t.c_row * element_size(t.out_element);
    if (t.init != nullptr) t.init += kBlockRows * t.init_row;
  }
  if (m > 0) {
    set_shapes(m, t.k_units);
    if (m > kTileRows) {
      rows_of<true>(t, m, n, leaving);
    } else {
      rows_of<false>(t, m, n, leaving);
    }
  }
  leaving.finish();
  // So that the operating system has nothing of it to keep, and nobody finds our shapes.
  _tile_release();
}

}  // namespace

const Kernels* amx_kernels() {
  const Kernels* pairs = avx512bf16_kernels();
  if (pairs == nullptr || !host_has_amx()) return nullptr;
  // Operands in pairs, as for the vector kernels, whose dot() and stream() attention calls.
  static const Kernels kernels = [&] {
    Kernels k = *pairs;
    k.name = "amx";
    k.tile = &tile;
    k.dot_columns = &dot_columns;
    k.pack_columns = &pack_columns;
    k.stream_pairs = &stream_pairs;
    k.strip_rows = kBlockRows;
    k.speed = kSpeed;
    return k;
  }();
  return &kernels;
}

}  // namespace torch_neuronx::gemm
