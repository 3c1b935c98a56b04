// The pooling kernel; included once per instruction set with TN_ISA defined.
#include <algorithm>
#include <limits>

#include "kernels/pool.h"

namespace torch_neuronx::kernels::TN_ISA {
namespace {

// Ceiling of a / b for b > 0.
inline int64_t ceil_div(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -((-a) / b); }

// One window position at a time over the whole row: branchless, so that the compiler makes vectors.
template <int kStride>
void pool_row(const PoolShape& s, const float* plane, int64_t out_row, float* __restrict best,
              int32_t* __restrict at) {
  std::fill(best, best + s.out_width, -std::numeric_limits<float>::infinity());
  const int64_t top = out_row * s.stride_h - s.pad_h;
  const int64_t first_kh = top < 0 ? ceil_div(-top, s.dilation_h) : 0;
  // An output whose inputs are all -inf still names the first of them.
  for (int64_t o = 0; o < s.out_width; ++o) {
    const int64_t left = o * kStride - s.pad_w;
    const int64_t first_kw = left < 0 ? ceil_div(-left, s.dilation_w) : 0;
    at[o] = static_cast<int32_t>((top + first_kh * s.dilation_h) * s.width + left +
                                 first_kw * s.dilation_w);
  }
  for (int64_t kh = first_kh; kh < s.kernel_h; ++kh) {
    const int64_t row = top + kh * s.dilation_h;
    if (row >= s.height) break;
    for (int64_t kw = 0; kw < s.kernel_w; ++kw) {
      // Outputs whose window position lies inside the plane: 0 <= o * stride + shift < width.
      const int64_t shift = kw * s.dilation_w - s.pad_w;
      const int64_t begin = std::max<int64_t>(0, ceil_div(-shift, kStride));
      const int64_t end = std::min(s.out_width, ceil_div(s.width - shift, kStride));
      const int64_t offset = row * s.width + shift;
      const float* const in = plane + offset;
      const auto base = static_cast<int32_t>(offset);
      for (int64_t o = begin; o < end; ++o) {
        const float v = in[o * kStride];
        const float b = best[o];
        const bool take = (v > b) | (v != v);
        best[o] = take ? v : b;
        at[o] = take ? base + static_cast<int32_t>(o * kStride) : at[o];
      }
    }
  }
}

const PoolTable kPoolTable = {{&pool_row<1>, &pool_row<2>}};

}  // namespace

const PoolTable& pool_table() { return kPoolTable; }

}  // namespace torch_neuronx::kernels::TN_ISA
