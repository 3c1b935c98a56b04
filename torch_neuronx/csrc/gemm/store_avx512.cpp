// out = alpha * src + beta * c0 for contiguous rows, 16 elements at a time.
#include "gemm/loads_avx512.h"

namespace torch_neuronx::gemm {
namespace {

// Round to nearest even by integer arithmetic: the conversion instruction would flush subnormals.
TN_INLINE __m256i to_bf16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i safe = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16));
}

template <Element E>
TN_INLINE void store_lanes(char* p, __mmask16 mask, __m512 v) {
  if constexpr (E == Element::kF32) {
    _mm512_mask_storeu_ps(p, mask, v);
  } else {
    const __m256i half = E == Element::kBf16
                             ? to_bf16(v)
                             : _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_mask_storeu_epi16(p, mask, half);
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
