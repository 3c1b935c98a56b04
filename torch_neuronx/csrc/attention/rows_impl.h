// The row kernels for 512-bit vectors, instantiated by the rows_avx512*.cpp files with `Operand`,
// which says how exponentials become operands of the next product. No torch header, no inline
// function of the standard library (see gemm/kernels.h).
#pragma once

#include <cstdint>

#include "attention/rows.h"
#include "kernels/vec_math.h"

namespace torch_neuronx::attention {
namespace {

using namespace kernels::TN_ISA;

TN_INLINE __mmask16 first_lanes(int64_t n) {
  return n >= 16 ? __mmask16(0xffff) : n <= 0 ? __mmask16(0) : __mmask16((1U << n) - 1U);
}
TN_INLINE vf infinity() { return splat(__builtin_inff()); }

// 2^t for t <= 0 or NaN; exactly 0 for -inf. About 1 ulp.
TN_INLINE vf exp2_exact(vf x) {
  const vf t = max2(splat(-160.0f), x);
  const vf biased = t + kRound;
  const vf n = biased - kRound;
  const vf f = t - n;
  const vf p = horner(f, 0.0001534581242594868f, 0.0013399930903688073f, 0.009618489071726799f,
                      0.05550328642129898f, 0.24022646248340607f, 0.6931471824645996f, 1.0f);
  return scale_by_power(p, n, biased);
}

template <MaskKind K>
struct MaskLoad;
template <>
struct MaskLoad<MaskKind::kF32> {
  using Element = float;
  static TN_INLINE vf load(__mmask16 lanes, const float* p) {
    return _mm512_maskz_loadu_ps(lanes, p);
  }
  static TN_INLINE float one(const float* p) { return *p; }
};
template <>
struct MaskLoad<MaskKind::kBf16> {
  using Element = uint16_t;
  static TN_INLINE vf load(__mmask16 lanes, const uint16_t* p) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p)), 16);
  }
};
template <>
struct MaskLoad<MaskKind::kF16> {
  using Element = uint16_t;
  static TN_INLINE vf load(__mmask16 lanes, const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, p));
  }
};
template <>
struct MaskLoad<MaskKind::kBool> {
  using Element = uint8_t;
  static TN_INLINE vf load(__mmask16 lanes, const uint8_t* p) {
    const __mmask16 seen = _mm_test_epi8_mask(_mm_maskz_loadu_epi8(lanes, p), _mm_set1_epi8(-1));
    return _mm512_mask_mov_ps(-infinity(), seen, vf{});
  }
};

// 16 neighbouring elements of the mask of one row, as what is added to the scores.
template <MaskKind K>
TN_INLINE vf mask_at(const MaskBlock& mask, int64_t row, int64_t col, __mmask16 lanes) {
  using Load = MaskLoad<K>;
  const auto* p = (const typename Load::Element*)mask.data + row * mask.row;
  if (mask.col == 1) return Load::load(lanes, p + col);
  typename Load::Element gathered[16] = {};
  for (int i = 0; i < 16; ++i) {
    if ((lanes >> i) & 1) gathered[i] = p[(col + i) * mask.col];
  }
  return Load::load(lanes, gathered);
}

// scale * score + mask - less for 16 columns.
template <MaskKind K>
TN_INLINE vf score_at(const ScoreBlock& b, int64_t row, int64_t col, __mmask16 lanes, float less) {
  const vf x = _mm512_load_ps(b.scores + row * b.row + col);
  if constexpr (K == MaskKind::kNone) {
    return fma(x, b.scale, splat(-less));
  } else {
    // The mask first: it may be so large that it swallows the score, in `less` too.
    return fma(x, splat(b.scale), mask_at<K>(b.mask, row, col, lanes)) - splat(less);
  }
}

TN_INLINE int64_t seen_by(const ScoreBlock& b, int64_t row) {
  const int64_t n = b.seen + row;
  return n < 0 ? 0 : n > b.cols ? b.cols : n;
}

// Writes back what score_at gives (if `Scales`) and returns the maximum, ignoring NaN.
template <MaskKind K, bool Scales>
TN_INLINE float row_maximum(const ScoreBlock& b, float* scores, int64_t row, int64_t n) {
  vf best[2] = {-infinity(), -infinity()};
  int64_t col = 0;
  for (; col + 32 <= n; col += 32) {
    for (int u = 0; u < 2; ++u) {
      vf x;
      if constexpr (Scales) {
        x = score_at<K>(b, row, col + 16 * u, 0xffff, 0.0f);
        _mm512_store_ps(scores + col + 16 * u, x);
      } else {
        x = _mm512_load_ps(scores + col + 16 * u);
      }
      best[u] = max2(x, best[u]);
    }
  }
  for (; col < n; col += 16) {
    const __mmask16 lanes = first_lanes(n - col);
    vf x;
    if constexpr (Scales) {
      x = score_at<K>(b, row, col, lanes, 0.0f);
      _mm512_mask_store_ps(scores + col, lanes, x);
    } else {
      x = _mm512_load_ps(scores + col);
    }
    best[0] = max2(_mm512_mask_mov_ps(-infinity(), lanes, x), best[0]);
  }
  return _mm512_reduce_max_ps(max2(best[0], best[1]));
}

template <class Operand, MaskKind K, bool Scales>
TN_INLINE void softmax_rows(const SoftmaxArgs& args) {
  const ScoreBlock& b = args.block;
  const float unit = (Scales ? 1.0f : b.scale) * kLog2e;
  const int64_t padded = (b.cols + 15) / 16 * 16;
  for (int64_t row = 0; row < b.rows; ++row) {
    float* scores = b.scores + row * b.row;
    const int64_t n = seen_by(b, row);
    const float old = args.first ? -__builtin_inff() : args.max[row];
    const float block = row_maximum<K, Scales>(b, scores, row, n);
    const float maximum = block > old ? block : old;
    // Where nothing is seen yet, any base will do: every exponential is 0.
    const float base = maximum == -__builtin_inff() ? 0.0f : maximum;
    vf sum = {};
    int64_t col = 0;
    for (; col + 16 <= n; col += 16) {
      const vf e = Operand::exp2((_mm512_load_ps(scores + col) - splat(base)) * splat(unit));
      sum += e;
      Operand::store_row(scores, col, e);
    }
    if (col < n) {
      const vf t = (_mm512_load_ps(scores + col) - splat(base)) * splat(unit);
      const vf e = _mm512_maskz_mov_ps(first_lanes(n - col), Operand::exp2(t));
      sum += e;
      Operand::store_row(scores, col, e);
      col += 16;
    }
    for (; col < padded; col += 16) Operand::store_row(scores, col, vf{});
    const float total = _mm512_reduce_add_ps(sum);
    if (args.first) {
      args.sum[row] = total;
    } else {
      const float correction = _mm512_cvtss_f32(exp2_exact(splat((old - base) * unit)));
      args.correction[row] = correction;
      args.sum[row] = args.sum[row] * correction + total;
    }
    args.max[row] = maximum;
  }
}

template <class Operand>
void softmax(const SoftmaxArgs& args) {
  switch (args.block.mask.kind) {
    case MaskKind::kNone:
      return scales_first(args.block) ? softmax_rows<Operand, MaskKind::kNone, true>(args)
                                      : softmax_rows<Operand, MaskKind::kNone, false>(args);
    case MaskKind::kF32:
      return softmax_rows<Operand, MaskKind::kF32, true>(args);
    case MaskKind::kBf16:
      return softmax_rows<Operand, MaskKind::kBf16, true>(args);
    case MaskKind::kF16:
      return softmax_rows<Operand, MaskKind::kF16, true>(args);
    case MaskKind::kBool:
      return softmax_rows<Operand, MaskKind::kBool, true>(args);
  }
}

// p and ds of one vector of scores.
template <class Operand, MaskKind K>
TN_INLINE Pair gradient_at(const GradientArgs& args, int64_t row, int64_t col, int64_t seen) {
  const ScoreBlock& b = args.block;
  const __mmask16 lanes = first_lanes(seen - col);
  const vf x = score_at<K>(b, row, col, lanes, args.logsumexp[row]);
  const vf p = _mm512_maskz_mov_ps(lanes, Operand::exp2(x * splat(kLog2e)));
  const vf dp = _mm512_load_ps(args.dp + row * b.row + col);
  const vf ds = _mm512_maskz_mul_ps(lanes, p * (dp - splat(args.delta[row])), splat(b.scale));
  return {p, ds};
}

template <class Operand, MaskKind K>
TN_INLINE void gradient_rows(const GradientArgs& args) {
  const ScoreBlock& b = args.block;
  for (int64_t row = 0; row < b.rows; row += Operand::kRows) {
    const bool paired = Operand::kRows == 2 && row + 1 < b.rows;
    const int64_t seen = seen_by(b, row), seen_next = paired ? seen_by(b, row + 1) : 0;
    for (int64_t col = 0; col < b.cols; col += 16) {
      const Pair first = gradient_at<Operand, K>(args, row, col, seen);
      if constexpr (Operand::kRows == 1) {
        _mm512_store_ps(b.scores + row * b.row + col, first.a);
        _mm512_store_ps(args.dp + row * b.row + col, first.b);
      } else {
        const Pair second =
            paired ? gradient_at<Operand, K>(args, row + 1, col, seen_next) : Pair{vf{}, vf{}};
        Operand::store_pairs(args, row, col, first, second, paired);
      }
    }
  }
}

template <class Operand>
void gradient(const GradientArgs& args) {
  switch (args.block.mask.kind) {
    case MaskKind::kNone:
      return gradient_rows<Operand, MaskKind::kNone>(args);
    case MaskKind::kF32:
      return gradient_rows<Operand, MaskKind::kF32>(args);
    case MaskKind::kBf16:
      return gradient_rows<Operand, MaskKind::kBf16>(args);
    case MaskKind::kF16:
      return gradient_rows<Operand, MaskKind::kF16>(args);
    case MaskKind::kBool:
      return gradient_rows<Operand, MaskKind::kBool>(args);
  }
}

}  // namespace
}  // namespace torch_neuronx::attention
