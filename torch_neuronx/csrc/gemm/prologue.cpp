// Operands that are computed while they are rearranged: generated code writes elements where the
// micro-kernels read them, or a few at a time to memory from which they are packed as usual.
#include "gemm/methods.h"
#include "gemm/scratch.h"

namespace torch_neuronx::gemm {
namespace {

constexpr int64_t kAcross = 32;  // of K made at a time if neighbours in memory lie across it
constexpr int64_t kAlong = 128;  // of K, for panels that are made along it
constexpr int64_t kLines = 16;   // rows of A made at a time if they cannot be made in place

char* made(int64_t elements, int64_t size) {
  return scratch(Slot::kMade, static_cast<size_t>(elements * size));
}

// Elements [k0, k0 + k) of K of lines [i0, i0 + lines) of an operand, as its function gives them.
struct Part {
  const Prologue& from;
  int64_t batch, k0, k, i0, lines;

  void make(void* tile, int64_t stride) const {
    from.along_k ? from.function(from.buffers, batch, i0, lines, k0, k, tile, stride)
                 : from.function(from.buffers, batch, k0, k, i0, lines, tile, stride);
  }
};

// Makes a part in memory of its own and hands it to a packing function.
void pack_made(const Part& part, Element element, void (*pack)(const PackArgs&), uint32_t* dst,
               int64_t dst_row) {
  const int64_t size = element_size(element);
  // Rows of 4 KiB would fight for the same places of the first cache.
  const int64_t stride = (part.from.along_k ? part.k : part.lines) + 16;
  char* tile = made(stride * (part.from.along_k ? part.lines : part.k), size);
  part.make(tile, stride);
  const int64_t k_bytes = part.from.along_k ? size : stride * size;
  const int64_t other_bytes = part.from.along_k ? stride * size : size;
  pack({element, tile, k_bytes, other_bytes, part.k, part.lines, dst, dst_row});
}

}  // namespace

void make_rows(const Kernels& kernels, const Problem& p, int64_t b, int64_t i, int64_t rows,
               int64_t u, int64_t depth, uint32_t* dst, int64_t dst_row) {
  const Element element = element_of(p.dtype);
  const int64_t k0 = u * kernels.unit, k = std::min(p.k - k0, depth * kernels.unit);
  if (!p.a_from.along_k) {
    for (int64_t at = 0; at < k; at += kAcross) {
      const Part part{p.a_from, b, k0 + at, std::min(kAcross, k - at), i, rows};
      pack_made(part, element, kernels.pack_a_rows, dst + at / kernels.unit, dst_row);
    }
    return;
  }
  if (kernels.unit * element_size(element) == 4) {  // units are the elements themselves
    if (k % kernels.unit != 0) {
      for (int64_t r = 0; r < rows; ++r) dst[r * dst_row + k / kernels.unit] = 0;
    }
    Part{p.a_from, b, k0, k, i, rows}.make(dst, dst_row * kernels.unit);
    return;
  }
  for (int64_t r = 0; r < rows; r += kLines) {
    const Part part{p.a_from, b, k0, k, i + r, std::min(kLines, rows - r)};
    pack_made(part, element, kernels.pack_a_rows, dst + r * dst_row, dst_row);
  }
}

void make_panel(const Kernels& kernels, const Problem& p, int64_t b, int64_t j, int64_t u0,
                int64_t u1, uint32_t* dst) {
  const Element element = element_of(p.dtype);
  const int64_t k0 = u0 * kernels.unit, k = std::min(u1 * kernels.unit, p.k) - k0;
  const int64_t j0 = j * kPanelCols, cols = std::min(kPanelCols, p.n - j0);
  if (!p.b_from.along_k && element == Element::kF32) {  // a panel is rows of 64 floats
    if (cols < kPanelCols) std::fill_n(dst, k * kPanelCols, 0U);
    Part{p.b_from, b, k0, k, j0, cols}.make(dst, kPanelCols);
    return;
  }
  const int64_t step = p.b_from.along_k ? kAlong : kAcross;
  for (int64_t at = 0; at < k; at += step) {
    const Part part{p.b_from, b, k0 + at, std::min(step, k - at), j0, cols};
    pack_made(part, element, kernels.pack_b, dst + at / kernels.unit * kPanelCols, kPanelCols);
  }
}

}  // namespace torch_neuronx::gemm
