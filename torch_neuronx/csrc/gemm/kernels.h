// The micro-kernels as a table of plain functions, one table per instruction set and element type.
//
// This header and the *_avx512*.cpp files use no torch header on purpose: an inline function of
// torch compiled for AVX-512 could be the copy that the linker keeps for the whole module.
#pragma once

#include <cstdint>

namespace torch_neuronx::gemm {

constexpr int64_t kPanelCols = 64;  // columns of a panel of B: four 16-lane vectors
constexpr int64_t kStripRows = 6;   // rows of a vector kernel's tile: 6 x 4 sums of 32 registers
constexpr int64_t kSmallSide = 16;  // largest min(m, n) that the dot and stream kernels accept

enum class Element : uint8_t { kF32, kBf16, kF16 };
inline int64_t element_size(Element e) { return e == Element::kF32 ? 4 : 2; }

// K is counted in units of four bytes of the rearranged operands: one float32, or two bfloat16
// of neighbouring k. Strides named *_bytes count bytes, all others elements.

// Lines of memory that will be needed next: the micro-kernels ask for one every few steps of K,
// which costs them nothing, while asking for all at once would stop them.
struct Ahead {
  const char* row;
  int64_t row_bytes;  // from one row to the next
  int64_t width;      // bytes of a row
  int64_t rows;       // left
  int64_t done = 0;   // bytes of this row
};

// c[i][j] = init[i][j] + sum_p a[i][p] * b[p][j]; columns of c and of float32 init contiguous.
struct TileArgs {
  int64_t k_units;
  const char* a;
  int64_t a_row_bytes;  // units of a row are neighbours
  const char* b;        // a panel: k_units x kPanelCols units
  const float* init;    // null for zero
  int64_t init_row;
  void* c;
  int64_t c_row;
  Element out_element;  // of c: float32, or rounded once to the dtype (if rounds_itself)
  Ahead* ahead = nullptr;
};

// A matrix in the caller's memory on its way into units.
struct PackArgs {
  Element element;
  const char* src;
  int64_t k_bytes, other_bytes;  // strides along K and along the other dimension
  int64_t k, other;              // elements; `other` is at most kPanelCols for a panel of B
  uint32_t* dst;
  int64_t dst_row;  // units from one row of A to the next; of a panel always kPanelCols
};

// result[s][l] = sum_k small[s][k] * large[l][k], small side up to kSmallSide. stream() may add
// that to what the result holds: an operand whose rows lie in several places is streamed place by
// place.
struct ThinArgs {
  Element element;  // of `large`
  const char* large;
  int64_t large_k_bytes, large_l_bytes;
  const char* small;  // rows of units (dot) or of float32 (stream), K contiguous
  int64_t small_row_bytes;
  int64_t k, lines, small_rows;
  float* result;
  int64_t result_row;
  bool add = false;
  // dot() asks for lines ahead: the hardware's prefetcher stops at the end of a page, where a line
  // of 2048 half-width elements ends. What the caches hold is read sooner without.
  bool far = false;
};

// out = alpha * src + beta * c0, rounded once to the element type of out and c0.
struct StoreArgs {
  Element element;
  const float* src;
  int64_t src_row, src_col;
  int64_t rows, cols;
  char* out;
  int64_t out_row_bytes;
  const char* c0;  // null for none
  int64_t c0_row_bytes, c0_col_bytes;
  float alpha, beta;
};

struct Kernels {
  const char* name;
  int64_t unit;        // elements of K in one unit
  Element direct_a;    // row-major A of this element type (whole units) is read where it is
  bool any_row;        // tile() takes A at any row stride; otherwise only as pack_a_rows leaves it
  bool rounds_itself;  // tile() writes half-width results too
  bool thin;           // has dot() and stream()
  void (*tile)(int64_t m, int64_t n, const TileArgs&);
  void (*pack_b)(const PackArgs&);       // -> k_units x kPanelCols, zeros in the rest
  void (*pack_a_rows)(const PackArgs&);  // -> other x k_units, zeros in the last unit's rest
  void (*dot)(const ThinArgs&);          // large_k_bytes is the element size
  void (*stream)(const ThinArgs&);       // large_l_bytes is the element size
  // Null, or a dot() for long lines that reads the small side as `pack_columns` leaves it: its rows
  // of pairs as columns, 16 units of K at a time with zeros in the last ones' rest.
  void (*dot_columns)(const ThinArgs&) = nullptr;
  void (*pack_columns)(const PackArgs&) = nullptr;
  // Null, or a stream() of long lines whose small side has rows of pairs, and whose result has room
  // for whole 32 lines. It does not add.
  void (*stream_pairs)(const ThinArgs&) = nullptr;
  int64_t strip_rows = kStripRows;  // rows that tile() computes at once
  double speed = 1;                 // of tile(), against vectors
};

// Null where the processor lacks the instructions or the build has no such file.
const Kernels* avx512_kernels();      // float32 arithmetic; operands f32, f16, bf16
const Kernels* avx512bf16_kernels();  // products of bfloat16 pairs, float32 accumulation
const Kernels* amx_kernels();         // the same in matrix tiles
// The fastest of these for operands of an element type, which they may widen to float32.
const Kernels* own_kernels(Element element, bool with_amx);
const Kernels* brgemm_f32_kernels();
const Kernels* brgemm_bf16_kernels();

void store(const StoreArgs&);         // picks the vector form where there is one
bool store_avx512(const StoreArgs&);  // false: strides it has no vector form for
void store_portable(const StoreArgs&);
void pack_b_portable(const PackArgs&, int64_t unit);
void pack_a_rows_portable(const PackArgs&, int64_t unit);
void to_f32_rows(const PackArgs&);  // other x k float32, for stream()

// What this processor has and TORCH_NEURONX_ISA allows.
bool host_has_avx512();
bool host_has_avx512bf16();
bool host_has_amx();

}  // namespace torch_neuronx::gemm
