// Loads of 16 neighbouring elements of any element type as float32, for the *_avx512*.cpp files.
#pragma once

#include "gemm/avx512_templates.h"

namespace torch_neuronx::gemm {
namespace {

template <Element E>
struct Load;

template <>
struct Load<Element::kF32> {
  static constexpr int64_t kBytes = 4;
  static TN_INLINE __m512 full(const char* p) { return _mm512_loadu_ps(p); }
  static TN_INLINE __m512 part(const char* p, int64_t n) {
    return _mm512_maskz_loadu_ps(lanes16(n), p);
  }
};

template <>
struct Load<Element::kF16> {
  static constexpr int64_t kBytes = 2;
  static TN_INLINE __m512 full(const char* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static TN_INLINE __m512 part(const char* p, int64_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes16(n), p));
  }
};

template <>
struct Load<Element::kBf16> {
  static constexpr int64_t kBytes = 2;
  static TN_INLINE __m512 widen(__m256i v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
  }
  static TN_INLINE __m512 full(const char* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static TN_INLINE __m512 part(const char* p, int64_t n) {
    return widen(_mm256_maskz_loadu_epi16(lanes16(n), p));
  }
};

}  // namespace
}  // namespace torch_neuronx::gemm
