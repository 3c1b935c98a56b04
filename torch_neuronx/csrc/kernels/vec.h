// Vectors of the widest registers of one instruction set, and conversions from and to storage.
//
// Included only by the *_impl.h files, with TN_ISA naming the namespace (avx512, avx2, portable):
// everything here lives in that namespace, so that no inline function compiled for one instruction
// set can be merged by the linker with another's. For the same reason the files that include this
// use no inline function of the standard library.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if !defined(__F16C__) && !defined(__aarch64__)
#include <c10/util/Half.h>
#endif

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own AVX-512 headers read a deliberately undefined register (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#ifndef TN_ISA
#error "define TN_ISA before including kernels/vec.h"
#endif

namespace torch_neuronx::kernels::TN_ISA {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(W * 4)));
typedef double vd __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef int64_t vl __attribute__((vector_size(W * 4)));
typedef uint64_t vul __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));
// The same types at any address.
typedef float vf_any __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef double vd_any __attribute__((vector_size(W * 4), aligned(8), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef uint16_t vh_any __attribute__((vector_size(W * 2), aligned(2), may_alias));
typedef uint32_t vu_any16 __attribute__((vector_size(W * 4), aligned(2), may_alias));

#define TN_INLINE inline __attribute__((always_inline))

TN_INLINE vf splat(float x) { return x - vf{}; }
TN_INLINE vd splat(double x) { return x - vd{}; }
TN_INLINE vi splat(int32_t x) { return x - vi{}; }
TN_INLINE vu splat(uint32_t x) { return x - vu{}; }

TN_INLINE vi bits(vf x) { return (vi)x; }
TN_INLINE vf from_bits(vi x) { return (vf)x; }

// a * b + c, rounded once (kFused) where the processor has the instruction.
#if defined(__FMA__) || defined(__aarch64__)
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif
TN_INLINE vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
TN_INLINE vd fma(vd a, vd b, vd c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#elif defined(__aarch64__)
  return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
  return a * b + c;
#endif
}
TN_INLINE vf fma(vf a, vf b, float c) { return fma(a, b, splat(c)); }
TN_INLINE vf fma(vf a, float b, vf c) { return fma(a, splat(b), c); }
TN_INLINE vf fma(vf a, float b, float c) { return fma(a, splat(b), splat(c)); }

TN_INLINE vf sqrt(vf x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#elif defined(__aarch64__)
  return (vf)vsqrtq_f32((float32x4_t)x);
#else
  vf y;
  for (int i = 0; i < W; ++i) y[i] = __builtin_sqrtf(x[i]);
  return y;
#endif
}
TN_INLINE vd sqrt(vd x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_pd(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_pd(x);
#elif defined(__aarch64__)
  return (vd)vsqrtq_f64((float64x2_t)x);
#else
  vd y;
  for (int i = 0; i < W / 2; ++i) y[i] = __builtin_sqrt(x[i]);
  return y;
#endif
}

// Whether all elements are in [low, high]; NaN is not.
TN_INLINE bool all_within(vf x, float low, float high) {
#if defined(__AVX512F__)
  return (_mm512_cmp_ps_mask(x, splat(low), _CMP_GE_OQ) &
          _mm512_cmp_ps_mask(x, splat(high), _CMP_LE_OQ)) == 0xffff;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(x, splat(low), _CMP_GE_OQ),
                                          _mm256_cmp_ps(x, splat(high), _CMP_LE_OQ))) == 0xff;
#else
  bool within = true;
  for (int i = 0; i < W; ++i) within &= x[i] >= low && x[i] <= high;
  return within;
#endif
}

// The smaller (larger) of two; the second argument when either is NaN.
TN_INLINE vf min2(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}
TN_INLINE vf max2(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

TN_INLINE vf abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
TN_INLINE vd abs(vd x) { return (vd)((vl)x & 0x7fffffffffffffffL); }

// Rough 1/x (relative error under 2^-14) made good to about 2^-26; exact division elsewhere.
// For normal, finite x of moderate size only.
TN_INLINE vf fast_reciprocal(vf x) {
#if defined(__AVX512F__)
  const vf y = _mm512_rcp14_ps(x);
  return y * _mm512_fnmadd_ps(x, y, splat(2.0f));
#else
  return 1.0f / x;
#endif
}

TN_INLINE float sum(vf x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(x);
#else
  float parts[W];
  *(vf_any*)parts = x;
  for (int step = W / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) parts[i] += parts[i + step];
  return parts[0];
#endif
}

struct Pair {
  vf a, b;
};

// Storage formats: load to and store from one vector of float (or of double) per step. load_pair
// and store_pair move two vectors in an order of their own, for elementwise work. store_pair wants
// NaNs to come from values of the format or from arithmetic (for BF16 others could round to zero).
struct F32 {
  using Scalar = float;
  using Vector = vf;
  using Storage = float;
  static constexpr int bits = 24;  // of the significand
  static constexpr int width = W;
  static TN_INLINE vf load(const float* p) { return *(const vf_any*)p; }
  static TN_INLINE void store(float* p, vf x) { *(vf_any*)p = x; }
  static TN_INLINE Pair load_pair(const float* p) { return {load(p), load(p + W)}; }
  static TN_INLINE void store_pair(float* p, Pair x) {
    store(p, x.a);
    store(p + W, x.b);
  }
};

struct F64 {
  using Scalar = double;
  using Vector = vd;
  using Storage = double;
  static constexpr int bits = 53;  // of the significand
  static constexpr int width = W / 2;
  static TN_INLINE vd load(const double* p) { return *(const vd_any*)p; }
  static TN_INLINE void store(double* p, vd x) { *(vd_any*)p = x; }
};

struct BF16 {
  using Scalar = float;
  using Vector = vf;
  using Storage = uint16_t;
  static constexpr int bits = 8;  // of the significand
  static constexpr int width = W;
  static TN_INLINE vf load(const uint16_t* p) {
#if defined(__AVX512F__)
    const __m256i narrow = _mm256_loadu_si256((const __m256i*)p);
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
#elif defined(__AVX2__)
    const __m128i narrow = _mm_loadu_si128((const __m128i*)p);
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16);
#else
    return (vf)(__builtin_convertvector(*(const vh_any*)p, vu) << 16);
#endif
  }
  // Round to nearest, ties to even; every NaN becomes a quiet one. The AVX512_BF16 instruction is
  // not used because it flushes denormals to zero whatever the processor's mode is.
  static TN_INLINE void store(uint16_t* p, vf x) {
#if defined(__AVX512F__)
    const __m512i u = (__m512i)x;
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7fc00000));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
#else
    const vu u = (vu)x;
    const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const vu safe = (x != x) ? splat(uint32_t{0x7fc0}) : rounded;
#if defined(__AVX2__)
    const __m256i packed = _mm256_packus_epi32((__m256i)safe, (__m256i)safe);
    const __m256i ordered = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(ordered));
#else
    *(vh_any*)p = __builtin_convertvector(safe, vh);
#endif
#endif
  }
  // Even elements in one vector, odd ones in the other: no lane ever moves.
  static TN_INLINE Pair load_pair(const uint16_t* p) {
    const vu both = *(const vu_any16*)p;
    return {(vf)(both << 16), (vf)(both & 0xffff0000u)};
  }
  static TN_INLINE vu rounded(vf x) {
    const vu u = (vu)x;
    return u + 0x7fffu + ((u >> 16) & 1u);
  }
  static TN_INLINE void store_pair(uint16_t* p, Pair x) {
    *(vu_any16*)p = (rounded(x.a) >> 16) | (rounded(x.b) & 0xffff0000u);
  }
};

struct F16 {
  using Scalar = float;
  using Vector = vf;
  using Storage = uint16_t;
  static constexpr int bits = 11;  // of the significand
  static constexpr int width = W;
#if defined(__AVX512F__)
  static TN_INLINE vf load(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
  }
  static TN_INLINE void store(uint16_t* p, vf x) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__F16C__)
  static TN_INLINE vf load(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
  }
  static TN_INLINE void store(uint16_t* p, vf x) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__aarch64__)
  static TN_INLINE vf load(const uint16_t* p) {
    return (vf)vcvt_f32_f16((float16x4_t)(*(const vh_any*)p));
  }
  static TN_INLINE void store(uint16_t* p, vf x) { *(vh_any*)p = (vh)vcvt_f16_f32((float32x4_t)x); }
#else
  static TN_INLINE vf load(const uint16_t* p) {
    vf x;
    for (int i = 0; i < W; ++i) x[i] = c10::detail::fp16_ieee_to_fp32_value(p[i]);
    return x;
  }
  static TN_INLINE void store(uint16_t* p, vf x) {
    for (int i = 0; i < W; ++i) p[i] = c10::detail::fp16_ieee_from_fp32_value(x[i]);
  }
#endif
  static TN_INLINE Pair load_pair(const uint16_t* p) { return {load(p), load(p + W)}; }
  static TN_INLINE void store_pair(uint16_t* p, Pair x) {
    store(p, x.a);
    store(p + W, x.b);
  }
};

// x rounded to the storage format.
template <class T>
TN_INLINE typename T::Vector rounded_to(typename T::Vector x) {
  typename T::Storage buffer[T::width];
  T::store(buffer, x);
  return T::load(buffer);
}

// The first `count` (< width) elements; the rest of the vector is `fill`.
template <class T>
TN_INLINE typename T::Vector load_part(const typename T::Storage* p, int64_t count,
                                       typename T::Storage fill = {}) {
  typename T::Storage buffer[T::width];
  for (int i = 0; i < T::width; ++i) buffer[i] = i < count ? p[i] : fill;
  return T::load(buffer);
}
template <class T>
TN_INLINE void store_part(typename T::Storage* p, int64_t count, typename T::Vector x) {
  typename T::Storage buffer[T::width];
  T::store(buffer, x);
  for (int i = 0; i < count; ++i) p[i] = buffer[i];
}

}  // namespace torch_neuronx::kernels::TN_ISA
