// Groups of Philox blocks for one instruction set; see isa.h for how it is compiled.
#pragma once

#include "kernels/philox.h"
#include "kernels/vec_math.h"
#include "kernels/vec_math_double.h"

namespace torch_neuronx::kernels::TN_ISA {
namespace {

constexpr uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

// Product of the low halves of 64-bit lanes.
TN_INLINE vul mul_low_halves(vul a, vul b) {
#if defined(__AVX512F__)
  return (vul)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (vul)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (vul)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// What all blocks of a fill share: the keys of the rounds and, the upper half of the counter being
// the same for all, the first round's product of it.
struct Keys {
  vul first[10], second[10];
  vul product;
};
TN_INLINE Keys make_keys(PhiloxState state) {
  Keys keys;
  uint32_t k0 = static_cast<uint32_t>(state.seed), k1 = static_cast<uint32_t>(state.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    keys.first[round] = vul{} + uint64_t{k0};
    keys.second[round] = vul{} + uint64_t{k1};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  const uint64_t upper = state.offset / 4;
  const uint64_t product = uint64_t{kMul1} * static_cast<uint32_t>(upper);
  keys.product = vul{} + product;
  keys.first[0] ^= product >> 32;
  keys.second[0] ^= upper >> 32;
  return keys;
}

// The blocks whose counters are the 64-bit lanes of `c` and, above, the offset. A word is the low
// half of its lane; the upper halves hold rubbish, which no multiplication sees.
TN_INLINE void rounds(vul c, const Keys& keys, vul out[4]) {
  const vul m0 = vul{} + uint64_t{kMul0}, m1 = vul{} + uint64_t{kMul1};
  const vul start = mul_low_halves(c, m0);
  vul c0 = (c >> 32) ^ keys.first[0], c1 = keys.product;
  vul c2 = (start >> 32) ^ keys.second[0], c3 = start;
#pragma GCC unroll 9
  for (int round = 1; round < 10; ++round) {
    const vul p0 = mul_low_halves(c0, m0), p1 = mul_low_halves(c2, m1);
    c0 = (p1 >> 32) ^ c1 ^ keys.first[round];
    c2 = (p0 >> 32) ^ c3 ^ keys.second[round];
    c1 = p1;
    c3 = p0;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

// Words 0..3 of the W blocks from `block` on, block number + l in lane l.
TN_INLINE void blocks(uint64_t block, const Keys& keys, vu out[4]) {
  vul lane;
  for (int i = 0; i < W / 2; ++i) lane[i] = 2 * i;
  const vul even_counter = lane + block;
  vul even[4], odd[4];
  rounds(even_counter, keys, even);
  rounds(even_counter + 1, keys, odd);
  for (int j = 0; j < 4; ++j) {
    out[j] = (vu)((even[j] & 0xffffffffu) | (odd[j] << 32));
  }
}

// Calls f(words, pointer offset of word 0) for each vector of blocks; word j goes to offset + 16 j.
template <class F>
TN_INLINE void each_vector(PhiloxState state, uint64_t block, int64_t groups, F f) {
  const Keys keys = make_keys(state);
  for (int64_t g = 0; g < groups; ++g) {
    for (int part = 0; part < 16; part += W) {
      vu words[4];
      blocks(block + static_cast<uint64_t>(16 * g + part), keys, words);
      f(words, 64 * g + part);
    }
  }
}

void words(PhiloxState state, uint64_t block, int64_t groups, uint32_t* out) {
  each_vector(state, block, groups, [&](const vu* w, int64_t at) __attribute__((always_inline)) {
    for (int j = 0; j < 4; ++j) *(vu_any*)(out + at + 16 * j) = w[j];
  });
}

// Multiples of 2^-24 in [0, 1).
TN_INLINE vf unit(vu w) { return __builtin_convertvector((vi)(w >> 8), vf) * 0x1p-24f; }
// In [2^-32, 1]; fine near 0, where logarithms need it.
TN_INLINE vf unit_open_zero(vu w) {
  return __builtin_convertvector((vi)(w >> 1), vf) * 0x1p-31f + 0x1p-32f;
}

// f maps a word to a float.
template <class F>
TN_INLINE void fill(PhiloxState state, uint64_t block, int64_t groups, float* out, F f) {
  each_vector(state, block, groups, [&](const vu* w, int64_t at) __attribute__((always_inline)) {
    for (int j = 0; j < 4; ++j) F32::store(out + at + 16 * j, f(w[j]));
  });
}

void uniform(PhiloxState state, uint64_t block, int64_t groups, float a, float b, float* out) {
  const vf from = splat(a), width = splat(b);
  fill(state, block, groups, out, [&](vu w) __attribute__((always_inline)) {
    // The barrier keeps the compiler from fusing, so that all instruction sets agree.
    return from + __builtin_assoc_barrier(unit(w) * width);
  });
}

template <bool kExp>
void normal(PhiloxState state, uint64_t block, int64_t groups, float a, float b, float* out) {
  const vf mean = splat(a), std = splat(b);
  each_vector(state, block, groups, [&](const vu* w, int64_t at) __attribute__((always_inline)) {
    for (int j = 0; j < 4; j += 2) {
      const vf radius = sqrt(log(unit_open_zero(w[j])) * -2.0f);
      // An angle of pi * (multiple of 2^-23 in [-1, 1)).
      const vf turn = __builtin_convertvector((vi)w[j + 1] >> 8, vf) * 0x1p-23f;
      vf s, c;
      sincospi(turn, &s, &c);
      vf x = fma(radius * c, std, mean), y = fma(radius * s, std, mean);
      if constexpr (kExp) {
        x = exp(x);
        y = exp(y);
      }
      F32::store(out + at + 16 * j, x);
      F32::store(out + at + 16 * j + 16, y);
    }
  });
}

void normal_pairs(double* a, double* b, int64_t n) {
  for (int64_t i = 0; i < n; i += F64::width) {
    const vd radius = sqrt(log(F64::load(a + i)) * -2.0);
    vd s, c;
    sincospi(F64::load(b + i), &s, &c);
    F64::store(a + i, radius * c);
    F64::store(b + i, radius * s);
  }
}

void exponential(PhiloxState state, uint64_t block, int64_t groups, float a, float, float* out) {
  const vf scale = splat(a);
  fill(state, block, groups, out, [&](vu w) __attribute__((always_inline)) {
    // u = 1 would give 0, which torch promises not to return.
    return max2(-log(unit_open_zero(w)), splat(0x1p-24f)) * scale;
  });
}

void cauchy(PhiloxState state, uint64_t block, int64_t groups, float a, float b, float* out) {
  const vf median = splat(a), sigma = splat(b);
  fill(state, block, groups, out, [&](vu w) __attribute__((always_inline)) {
    // Odd multiples of 2^-25 in (-1/2, 1/2): symmetric, and never a pole.
    const vi odd = (((vi)w >> 8) << 1) + 1;
    vf s, c;
    sincospi(__builtin_convertvector(odd, vf) * 0x1p-25f, &s, &c);
    return fma(s / c, sigma, median);
  });
}

void geometric(PhiloxState state, uint64_t block, int64_t groups, float a, float, float* out) {
  const vf scale = splat(a);
  fill(state, block, groups, out, [&](vu w) __attribute__((always_inline)) {
    const vf x = log(unit_open_zero(w)) * scale;
    // Round up; values past 2^22 are integers up to half a unit anyway.
    const vf near = (x + kRound) - kRound;
    const vf up = x < 4194304.0f ? (near < x ? near + 1.0f : near) : x;
    return max2(splat(1.0f), up);
  });
}

void bernoulli(PhiloxState state, uint64_t block, int64_t groups, uint64_t threshold,
               uint8_t* out) {
  if (threshold > 0xffffffffu) {
    for (int64_t i = 0; i < 64 * groups; ++i) out[i] = 1;
    return;
  }
  const vu limit = splat(static_cast<uint32_t>(threshold));
  each_vector(state, block, groups, [&](const vu* w, int64_t at) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    uint64_t mask = 0;
    for (int j = 0; j < 4; ++j) {
      mask |= uint64_t{_mm512_cmplt_epu32_mask((__m512i)w[j], (__m512i)limit)} << (16 * j);
    }
    _mm512_storeu_si512(out + at, _mm512_maskz_set1_epi8(mask, 1));
#else
    typedef uint8_t vb __attribute__((vector_size(W)));
    typedef uint8_t vb_any __attribute__((vector_size(W), aligned(1), may_alias));
    for (int j = 0; j < 4; ++j) {
      *(vb_any*)(out + at + 16 * j) = __builtin_convertvector((vu)(w[j] < limit) & 1u, vb);
    }
#endif
  });
}

template <class T>
void round_to(const float* x, void* out_, int64_t n) {
  typename T::Storage* out = static_cast<typename T::Storage*>(out_);
  int64_t i = 0;
  for (; i + W <= n; i += W) T::store(out + i, F32::load(x + i));
  if (i < n) store_part<T>(out + i, n - i, load_part<F32>(x + i, n - i));
}

const PhiloxTable kPhiloxTable = {
    &words,         &uniform,
    &normal<false>, &normal<true>,
    &exponential,   &cauchy,
    &geometric,     &bernoulli,
    &normal_pairs,  {&round_to<F32>, &round_to<BF16>, &round_to<F16>},
};

}  // namespace

const PhiloxTable& philox_table() { return kPhiloxTable; }

}  // namespace torch_neuronx::kernels::TN_ISA
