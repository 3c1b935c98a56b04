// From the form in which a product is computed back to the caller's rows and columns.
#include "gemm/methods.h"
#include "gemm/scratch.h"

namespace torch_neuronx::gemm {
namespace {

float load(Element element, const char* p) {
  if (element == Element::kF32) return *reinterpret_cast<const float*>(p);
  if (element == Element::kBf16)
    return static_cast<float>(*reinterpret_cast<const c10::BFloat16*>(p));
  return static_cast<float>(*reinterpret_cast<const c10::Half*>(p));
}

// alpha * src + beta * c0 as rows x cols floats.
const float* scaled(const Problem& p, int64_t b, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                    const float* src, int64_t src_row, int64_t src_col) {
  auto* tile = reinterpret_cast<float*>(
      scratch(Slot::kEpilogueTile, static_cast<size_t>(rows * cols) * sizeof(float)));
  const Element element = element_of(p.dtype);
  const int64_t size = element_size(element);
  const bool adds = reads_c0(p);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      float sum = p.alpha * src[i * src_row + j * src_col];
      if (adds) {
        sum += p.beta * load(element, static_cast<const char*>(p.c0) +
                                          (b * p.c0_batch_stride + (i0 + i) * p.c0_row_stride +
                                           (j0 + j) * p.c0_col_stride) *
                                              size);
      }
      tile[i * cols + j] = sum;
    }
  }
  return tile;
}

}  // namespace

void finish_block(const Problem& p, int64_t b, int64_t i0, int64_t rows, int64_t j0, int64_t cols,
                  const float* src, int64_t src_row, int64_t src_col) {
  const Epilogue& e = p.epilogue;
  if (e.function == nullptr) {
    return store_block(p, b, i0, rows, j0, cols, src, src_row, src_col);
  }
  if (p.alpha != 1.0F || reads_c0(p) || (src_col != 1 && !e.swapped)) {
    src = scaled(p, b, i0, rows, j0, cols, src, src_row, src_col);
    src_row = cols;
    src_col = 1;
  }
  // The caller's rows: those of the Problem, or its columns. `src` steps from one to the next.
  int64_t first = i0, count = rows, step = src_row, col0 = j0, columns = cols;
  if (e.swapped) {
    first = j0, count = cols, step = src_col, col0 = 0, columns = 1;
  }
  if (e.folded_rows == 0) {
    return e.function(e.buffers, b, first, count, col0, columns, src, step);
  }
  for (int64_t done = 0; done < count;) {
    const int64_t row = first + done, inside = row % e.folded_rows;
    const int64_t part = std::min(count - done, e.folded_rows - inside);
    e.function(e.buffers, row / e.folded_rows, inside, part, col0, columns, src + done * step,
               step);
    done += part;
  }
}

}  // namespace torch_neuronx::gemm
