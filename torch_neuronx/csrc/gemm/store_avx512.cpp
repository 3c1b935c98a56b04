// out = alpha * src + beta * c0 for contiguous rows, 16 elements at a time.
#include "gemm/loads_avx512.h"

namespace torch_neuronx::gemm {
namespace {

template <Element E>
TN_INLINE void store_lanes(char* p, __mmask16 mask, __m512 v) {
  if constexpr (E == Element::kF32) {
    _mm512_mask_storeu_ps(p, mask, v);
  } else {
    _mm256_mask_storeu_epi16(p, mask, to_half(E, v));
  }
}

template <Element E>
void store_rows(const StoreArgs& s) {
  constexpr int64_t kBytes = Load<E>::kBytes;
  const __m512 alpha = _mm512_set1_ps(s.alpha), beta = _mm512_set1_ps(s.beta);
  for (int64_t i = 0; i < s.rows; ++i) {
    const float* src = s.src + i * s.src_row;
    const char* c0 = s.c0 == nullptr ? nullptr : s.c0 + i * s.c0_row_bytes;
    char* out = s.out + i * s.out_row_bytes;
    for (int64_t j = 0; j < s.cols; j += 16) {
      const __mmask16 mask = lanes16(s.cols - j);
      __m512 v = _mm512_mul_ps(alpha, _mm512_maskz_loadu_ps(mask, src + j));
      if (c0 != nullptr) {
        const __m512 c = s.c0_col_bytes == 0
                             ? _mm512_set1_ps(_mm512_cvtss_f32(Load<E>::part(c0, 1)))
                             : Load<E>::part(c0 + j * kBytes, s.cols - j);
        v = _mm512_fmadd_ps(beta, c, v);
      }
      store_lanes<E>(out + j * kBytes, mask, v);
    }
  }
}

}  // namespace

bool store_avx512(const StoreArgs& s) {
  if (s.src_col != 1) return false;
  if (s.c0 != nullptr && s.c0_col_bytes != 0 && s.c0_col_bytes != element_size(s.element)) {
    return false;
  }
  switch (s.element) {
    case Element::kF32:
      store_rows<Element::kF32>(s);
      break;
    case Element::kBf16:
      store_rows<Element::kBf16>(s);
      break;
    case Element::kF16:
      store_rows<Element::kF16>(s);
      break;
  }
  return true;
}

}  // namespace torch_neuronx::gemm
