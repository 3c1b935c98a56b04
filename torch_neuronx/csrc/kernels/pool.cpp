#include "kernels/pool.h"

#include <limits>
#include <vector>

#include "kernels/parallel.h"

namespace torch_neuronx::kernels {

bool max_pool2d_supports(const PoolShape& s) {
  return (s.stride_w == 1 || s.stride_w == 2) && s.out_height > 0 && s.out_width > 0 &&
         s.height * s.width < std::numeric_limits<int32_t>::max();
}

void max_pool2d(const PoolShape& s, int64_t planes, const float* x, float* out, int64_t* indices) {
  const PoolTable::Row row = pool_table().row[s.stride_w - 1];
  parallel_chunks(planes, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> best(static_cast<size_t>(s.out_width));
    std::vector<int32_t> at(static_cast<size_t>(s.out_width));
    for (int64_t plane = begin; plane < end; ++plane) {
      for (int64_t r = 0; r < s.out_height; ++r) {
        row(s, x + plane * s.height * s.width, r, best.data(), at.data());
        const int64_t to = (plane * s.out_height + r) * s.out_width;
        for (int64_t o = 0; o < s.out_width; ++o) {
          out[to + o] = best[static_cast<size_t>(o)];
          indices[to + o] = at[static_cast<size_t>(o)];
        }
      }
    }
  });
}

}  // namespace torch_neuronx::kernels
