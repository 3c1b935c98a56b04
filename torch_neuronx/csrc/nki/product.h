// Products of tiles that lie in the cache: out[M, N] (=|+=) a[K, M]^T b[K, N], called many times in
// a row. Sums are float32, and added to the float32 value of `out` before they are rounded.
#pragma once

#include <cstdint>

#include "gemm/kernels.h"

namespace torch_neuronx::nki {

struct Product {
  int64_t m = 0, n = 0, k = 0;
  gemm::Element element = gemm::Element::kF32;      // of a and b
  gemm::Element out_element = gemm::Element::kF32;  // float32 or bfloat16
  // Elements.
  int64_t out_m = 0, out_n = 0, a_k = 0, a_m = 0, b_k = 0, b_n = 0;
  bool accumulate = false;
  bool swapped = false;  // M and N have changed places: a is the call's b, and b its a

  // Puts the dimension whose elements are neighbours in `out` last.
  void prepare();
  double multiplications() const { return double(m) * double(n) * double(k); }
};

// Does part `part` of `parts` that together are the product. Parts may run at once.
void run_product(const Product& p, char* out, const char* a, const char* b, int64_t part,
                 int64_t parts);

}  // namespace torch_neuronx::nki
