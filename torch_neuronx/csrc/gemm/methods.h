// What the drivers of the methods share: engines, parallel tasks, views of a problem.
#pragma once

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "gemm/gemm.h"
#include "gemm/kernels.h"

namespace torch_neuronx::gemm {

// Null: no micro-kernels for the dtype, or TORCH_NEURONX_GEMM_KERNELS allows none of them.
const Kernels* kernels_for(at::ScalarType dtype);

inline Element element_of(at::ScalarType dtype) {
  return dtype == at::kFloat      ? Element::kF32
         : dtype == at::kBFloat16 ? Element::kBf16
                                  : Element::kF16;
}

// Runs task(0) .. task(count - 1) in any order on ATen's threads. Every worker takes the next task
// when it is free, so a thread that the operating system stops for a while delays one task only.
// Inside a parallel region, or with one thread, the tasks run here one after another.
template <class Task>
void for_tasks(int64_t count, bool parallel, const Task& task) {
  const int64_t workers = std::min<int64_t>(at::get_num_threads(), count);
  if (!parallel || workers < 2 || at::in_parallel_region()) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::atomic<int64_t> next{0};
  at::parallel_for(0, workers, 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < count; i = next++) task(i);
  });
}

// Waking ATen's threads costs a few microseconds; below this a product is done sooner alone.
inline bool worth_threads(double multiplications, double bytes) {
  return multiplications > 400e3 || bytes > 256e3;
}

// A row or column of one element is contiguous whatever its stride says.
inline bool contiguous(int64_t count, int64_t stride) { return stride == 1 || count == 1; }
// There is nothing to multiply. As in BLAS, alpha == 0 means that A and B are not read at all.
inline bool is_empty_sum(const Problem& p) { return p.k == 0 || p.alpha == 0.0F; }
inline bool makes_operand(const Problem& p) {
  return p.a_from.function != nullptr || p.b_from.function != nullptr;
}
inline bool reads_c0(const Problem& p) { return p.c0 != nullptr && p.beta != 0.0F; }

// The float32 product can be written straight to `out`, adding c0 by starting from it.
bool writes_directly(const Problem& p);

// The address of element (i, j) of a matrix of batch b.
inline const char* address(const Problem& p, const Matrix& x, int64_t batch_stride, int64_t b,
                           int64_t i, int64_t j) {
  return static_cast<const char*>(x.data) +
         (b * batch_stride + i * x.row_stride + j * x.col_stride) *
             element_size(element_of(p.dtype));
}

// Rearranges units [u0, u1) of panel `j` of B of batch `b`.
void pack_panel(const Kernels& kernels, const Problem& p, int64_t b, int64_t j, int64_t u0,
                int64_t u1, uint32_t* dst);

// The same of an operand that is made meanwhile: units [u, u + depth) of rows [i, i + rows) of A,
// and units [u0, u1) of panel `j` of B.
void make_rows(const Kernels& kernels, const Problem& p, int64_t b, int64_t i, int64_t rows,
               int64_t u, int64_t depth, uint32_t* dst, int64_t dst_row);
void make_panel(const Kernels& kernels, const Problem& p, int64_t b, int64_t j, int64_t u0,
                int64_t u1, uint32_t* dst);

// Gives the sums of rows [i0, i0 + rows) x columns [j0, j0 + cols) to the epilogue, or scales, adds
// c0, rounds and stores them.
void finish_block(const Problem& p, int64_t b, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                  const float* src, int64_t src_row, int64_t src_col);

// Scales, adds c0, rounds and stores: rows [i0, i0 + rows) x columns [j0, j0 + cols) of `out`.
void store_block(const Problem& p, int64_t b, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                 const float* src, int64_t src_row, int64_t src_col);

// run_with() for a problem that is normalised (once: an epilogue's coordinates follow it) and not
// empty.
void run_normalised(const Problem& p, Method method);
void run_panel(const Problem& p);
void run_dot(const Problem& p);
void run_stream(const Problem& p);
void run_empty(const Problem& p);  // beta * c0

// The same product in the form the methods like best: a shared B folds the batch into the rows, a
// single column becomes a single row.
Problem normalised(Problem p);

}  // namespace torch_neuronx::gemm
