// What happens between the matrix products of attention, a block of scores at a time: a table of
// plain functions per instruction set, without torch headers (see gemm/kernels.h).
#pragma once

#include <cstdint>

namespace torch_neuronx::attention {

enum class MaskKind : uint8_t { kNone, kF32, kBf16, kF16, kBool };

// The mask's elements for one block of scores; strides count elements.
struct MaskBlock {
  MaskKind kind = MaskKind::kNone;
  const void* data = nullptr;
  int64_t row = 0, col = 0;
};

// A block of products of queries (rows) and keys (columns), as the tiles left it. Rows are aligned
// to 64 bytes and have room for whole vectors of 16.
struct ScoreBlock {
  float* scores;
  int64_t row;  // floats from one row to the next
  int64_t rows, cols;
  // Row i sees its first `seen + i` columns; `cols` or more: all.
  int64_t seen;
  float scale;
  MaskBlock mask;
};

// exp(score - maximum) in place of the scores, as the left operand of the next product: float32, or
// bfloat16 at the start of the row. Columns up to the next multiple of 16 become zero.
struct SoftmaxArgs {
  ScoreBlock block;
  bool first;  // max and sum are not set yet
  // Per row: the maximum so far (in units of softmax_unit), the sum of exponentials so far, and
  // what the sums of earlier blocks were multiplied by.
  float *max, *sum, *correction;
};

// With p = exp(score - logsumexp): p, and p * (dp - delta) * scale, as operands of the next
// products.
struct GradientArgs {
  ScoreBlock block;
  float* dp;  // like the scores
  const float *logsumexp, *delta;
  // For bfloat16 only, else p replaces the scores and the other replaces dp: both as panels of
  // pairs of rows (an odd last row is paired with zeros), and the latter as rows of pairs of
  // columns too.
  uint32_t *p_pairs, *ds_pairs, *ds_rows;
  int64_t pairs_row;  // units from one row of ds_rows to the next
};

struct FinishArgs {
  const float* sums;  // rows x cols, to be divided by `sum`
  int64_t sums_row;
  int64_t rows, cols;
  const float *max, *sum;
  float unit;  // a maximum times this is a natural logarithm
  char* out;   // in the element type of the table's `store`
  int64_t out_row_bytes;
  float* logsumexp;  // null: not wanted
  int64_t logsumexp_row;
};

enum class Storage : uint8_t { kF32, kBf16, kF16 };

// out[k] = sum_i weights[i][k] * x[i], for many k and few i.
struct OuterArgs {
  const float* weights;
  int64_t weights_row;
  const float* x;
  int64_t x_row;
  int64_t rows, count, cols;  // of i, k, and of a row of x
  char* out;
  int64_t out_row_bytes;
};

struct RowKernels {
  void (*softmax)(const SoftmaxArgs&);
  void (*gradient)(const GradientArgs&);
  // x[i][:] *= factor[i]
  void (*scale)(float* x, int64_t row, int64_t rows, int64_t cols, const float* factor);
  void (*finish)(Storage, const FinishArgs&);
  // out[i] = sum_j a[i][j] * b[i][j]
  void (*dots)(Storage, const char* a, int64_t a_row_bytes, const char* b, int64_t b_row_bytes,
               int64_t rows, int64_t cols, float* out);
  void (*outer)(Storage, const OuterArgs&);
  // Rounds rows of float32 to storage.
  void (*store)(Storage, const float* x, int64_t row, int64_t rows, int64_t cols, char* out,
                int64_t out_row_bytes);
};

// Null where the processor lacks the instructions or the build has no such file.
#if defined(__x86_64__)
const RowKernels* rows_avx512();      // operands of the next product in float32
const RowKernels* rows_avx512bf16();  // in bfloat16 pairs
#else
inline const RowKernels* rows_avx512() { return nullptr; }
inline const RowKernels* rows_avx512bf16() { return nullptr; }
#endif

// True if the scores are multiplied by the scale (and masked) before their maximum is taken; else
// the maximum is that of the bare products, and the scale goes into the exponent.
inline bool scales_first(const ScoreBlock& b) {
  return b.mask.kind != MaskKind::kNone || !(b.scale > 0.0F);
}
inline float softmax_unit(const ScoreBlock& b) { return scales_first(b) ? 1.0F : b.scale; }

}  // namespace torch_neuronx::attention
