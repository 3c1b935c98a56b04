// Dense matrix products on raw host memory: out[b] = alpha * A[b] @ B[b] + beta * C0[b].
//
// Our own tile loop over AVX-512 micro-kernels (float32 and bfloat16 pairs), over matrix tiles
// (AMX) for bfloat16, or over ATen's brgemm where those do not exist (AVX2 machines). The whole of
// K is accumulated in float32 and rounded once. The order of the additions of one output element
// depends on the shape and the chosen method only, never on the number of threads.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>

namespace torch_neuronx::gemm {

// A view of a matrix; strides count elements and may be anything, zero and negative included.
struct Matrix {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
};

// What becomes of finished sums instead of being stored in `out`. Called from several threads, for
// blocks that cover the product once: rows [row0, row0 + rows) x columns [col0, col0 + cols) of
// matrix `batch`, whose sums are tile[r * tile_stride + c]. Rows and columns are the caller's,
// whatever form the product is computed in. (This is the signature of generated code.)
using EpilogueFunction = void (*)(void* const* buffers, int64_t batch, int64_t row0, int64_t rows,
                                  int64_t col0, int64_t cols, const float* tile,
                                  int64_t tile_stride);
struct Epilogue {
  EpilogueFunction function = nullptr;
  void* const* buffers = nullptr;
  // How a row of the Problem becomes the caller's; see normalised().
  int64_t folded_rows = 0;  // rows of one batch, if batches were laid one after another
  bool swapped = false;     // the only row is the caller's only column
};

// How an operand that is not in memory comes to be, while the panel method rearranges it. Called
// from several threads, and for the same elements more than once: rows [row0, row0 + rows) x
// columns [col0, col0 + cols) of matrix `batch` go to tile[r * tile_stride + c], which are elements
// of the Problem's dtype. (This is the signature of generated code.)
using PrologueFunction = void (*)(void* const* buffers, int64_t batch, int64_t row0, int64_t rows,
                                  int64_t col0, int64_t cols, void* tile, int64_t tile_stride);
struct Prologue {
  PrologueFunction function = nullptr;
  void* const* buffers = nullptr;
  bool along_k = false;  // its columns are K: those of A, or B by the columns of B
};

class PackedB;  // B rearranged into panels once, for several calls (packed_b.h)

struct Problem {
  at::ScalarType dtype = at::kFloat;  // of A, B, C0 and out: kFloat, kBFloat16 or kHalf
  int64_t batch = 1, m = 0, n = 0, k = 0;
  Matrix a;  // m x k
  Matrix b;  // k x n
  int64_t a_batch_stride = 0, b_batch_stride = 0;
  Prologue a_from, b_from;  // set: the data of `a` or `b` is not used
  void* out = nullptr;  // columns contiguous; may be the same memory as c0 with the same strides
  int64_t out_row_stride = 0, out_batch_stride = 0;
  const void* c0 = nullptr;  // null, or any broadcast through zero strides; not read if beta is 0
  int64_t c0_row_stride = 0, c0_col_stride = 0, c0_batch_stride = 0;
  float alpha = 1.0F, beta = 0.0F;
  Epilogue epilogue;  // set: `out` is not used
  // Set by a caller that knows B to be a weight used again; must have been packed from this B.
  std::shared_ptr<const PackedB> packed_b;
};

// How one problem is computed. The names appear in the probe's file and report.
enum class Method : uint8_t {
  kAten,    // not by us: the caller runs ATen's operator
  kPanel,   // B rearranged into panels of 64 columns, register tiles over them
  kDot,     // min(m, n) small, the large operand contiguous along K: read once, as it is
  kStream,  // min(m, n) small, the large operand contiguous across K: read once, as it is
};
const char* method_name(Method method);

// True if this host has our micro-kernels for the dtype and our method is expected to be at least
// as fast as ATen's. May measure once per class of shapes (probe.h). Never reads or writes p.out or
// p.c0.
bool supported(const Problem& p);

// Computes the product with the method chosen for the class of shapes of `p`, on ATen's threads
// (serially inside a parallel region). A host without micro-kernels is an error; ask has_kernels.
void run(const Problem& p);
void run_with(const Problem& p, Method method);  // for the probe and tests; never kAten

// The method for a product with an epilogue: as `choose`, but never kAten.
Method choose_ours(const Problem& p);  // p normalised, nothing in it empty

bool has_kernels(at::ScalarType dtype);
bool applicable(const Problem& p, Method method);

}  // namespace torch_neuronx::gemm
