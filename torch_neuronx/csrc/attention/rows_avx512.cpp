// Row kernels whose results are float32 operands, and those that do not depend on the operand.
#define TN_ISA avx512
#include "attention/rows_impl.h"
#include "gemm/kernels.h"

namespace torch_neuronx::attention {
namespace {

struct OperandF32 {
  static constexpr int kRows = 1;
  static TN_INLINE vf exp2(vf x) { return exp2_exact(x); }
  static TN_INLINE void store_row(float* row, int64_t col, vf x) { _mm512_store_ps(row + col, x); }
};

void scale(float* x, int64_t row, int64_t rows, int64_t cols, const float* factor) {
  for (int64_t i = 0; i < rows; ++i) {
    if (factor[i] == 1.0f) continue;
    float* p = x + i * row;
    for (int64_t j = 0; j < cols; j += 16) {
      const __mmask16 lanes = first_lanes(cols - j);
      _mm512_mask_storeu_ps(p + j, lanes, _mm512_maskz_loadu_ps(lanes, p + j) * splat(factor[i]));
    }
  }
}

template <Storage S>
struct Stored;
template <>
struct Stored<Storage::kF32> {
  static constexpr int64_t kBytes = 4;
  static TN_INLINE vf load(const char* p, __mmask16 lanes) {
    return _mm512_maskz_loadu_ps(lanes, p);
  }
  static TN_INLINE void store(char* p, __mmask16 lanes, vf x) {
    _mm512_mask_storeu_ps(p, lanes, x);
  }
};
template <>
struct Stored<Storage::kBf16> {
  static constexpr int64_t kBytes = 2;
  static TN_INLINE vf load(const char* p, __mmask16 lanes) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p)), 16);
  }
  static TN_INLINE void store(char* p, __mmask16 lanes, vf x) {
    const __m512i safe =
        _mm512_mask_mov_epi32((__m512i)BF16::rounded(x), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                              _mm512_set1_epi32(0x7fc00000));
    _mm256_mask_storeu_epi16(p, lanes, _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16)));
  }
};
template <>
struct Stored<Storage::kF16> {
  static constexpr int64_t kBytes = 2;
  static TN_INLINE vf load(const char* p, __mmask16 lanes) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, p));
  }
  static TN_INLINE void store(char* p, __mmask16 lanes, vf x) {
    _mm256_mask_storeu_epi16(p, lanes, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
};

// Calls f with the storage's type.
template <class F>
TN_INLINE void with_storage(Storage storage, F f) {
  switch (storage) {
    case Storage::kF32:
      return f(Stored<Storage::kF32>{});
    case Storage::kBf16:
      return f(Stored<Storage::kBf16>{});
    case Storage::kF16:
      return f(Stored<Storage::kF16>{});
  }
}

// max * unit + ln(sum) of 16 rows; 0 where nothing was seen.
void finish_logsumexp(const FinishArgs& f) {
  for (int64_t i = 0; i < f.rows; i += 16) {
    const __mmask16 lanes = first_lanes(f.rows - i);
    const vf max = _mm512_maskz_loadu_ps(lanes, f.max + i);
    const vf sum = _mm512_mask_loadu_ps(splat(1.0f), lanes, f.sum + i);
    // A sum is zero, NaN, or at least the exponential of the maximum itself, which is one.
    const vf usable = sum > 0.0f ? sum : splat(1.0f);
    vf x = fma(max == -infinity() ? vf{} : max, f.unit, log(usable));
    x = sum == sum ? x : sum;
    float values[16];
    _mm512_storeu_ps(values, x);
    for (int64_t j = 0; j < 16 && i + j < f.rows; ++j) {
      f.logsumexp[(i + j) * f.logsumexp_row] = values[j];
    }
  }
}

void finish(Storage storage, const FinishArgs& f) {
  with_storage(storage, [&](auto stored) {
    for (int64_t i = 0; i < f.rows; ++i) {
      const vf factor = splat(f.sum[i] == 0.0f ? 1.0f : 1.0f / f.sum[i]);
      const float* sums = f.sums + i * f.sums_row;
      char* out = f.out + i * f.out_row_bytes;
      for (int64_t j = 0; j < f.cols; j += 16) {
        const __mmask16 lanes = first_lanes(f.cols - j);
        stored.store(out + j * stored.kBytes, lanes,
                     _mm512_maskz_loadu_ps(lanes, sums + j) * factor);
      }
    }
  });
  if (f.logsumexp != nullptr) finish_logsumexp(f);
}

void dots(Storage storage, const char* a, int64_t a_row_bytes, const char* b, int64_t b_row_bytes,
          int64_t rows, int64_t cols, float* out) {
  with_storage(storage, [&](auto stored) {
    for (int64_t i = 0; i < rows; ++i) {
      vf sum = {};
      for (int64_t j = 0; j < cols; j += 16) {
        const __mmask16 lanes = first_lanes(cols - j);
        sum = fma(stored.load(a + i * a_row_bytes + j * stored.kBytes, lanes),
                  stored.load(b + i * b_row_bytes + j * stored.kBytes, lanes), sum);
      }
      out[i] = _mm512_reduce_add_ps(sum);
    }
  });
}

// K rows of the result, 64 columns of it.
template <int K, class S>
TN_INLINE void outer_block(const OuterArgs& o, int64_t k, int64_t col) {
  const __mmask16 lanes[4] = {first_lanes(o.cols - col), first_lanes(o.cols - col - 16),
                              first_lanes(o.cols - col - 32), first_lanes(o.cols - col - 48)};
  vf sums[K][4] = {};
  for (int64_t i = 0; i < o.rows; ++i) {
    const float* x = o.x + i * o.x_row + col;
    const float* weights = o.weights + i * o.weights_row + k;
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const vf part = _mm512_maskz_loadu_ps(lanes[v], x + 16 * v);
#pragma GCC unroll 4
      for (int j = 0; j < K; ++j) sums[j][v] = fma(splat(weights[j]), part, sums[j][v]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < K; ++j) {
    char* out = o.out + (k + j) * o.out_row_bytes + col * S::kBytes;
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) S::store(out + 16 * v * S::kBytes, lanes[v], sums[j][v]);
  }
}

void outer(Storage storage, const OuterArgs& o) {
  with_storage(storage, [&](auto stored) {
    using S = decltype(stored);
    for (int64_t col = 0; col < o.cols; col += 64) {
      int64_t k = 0;
      for (; k + 4 <= o.count; k += 4) outer_block<4, S>(o, k, col);
      for (; k < o.count; ++k) outer_block<1, S>(o, k, col);
    }
  });
}

void store(Storage storage, const float* x, int64_t row, int64_t rows, int64_t cols, char* out,
           int64_t out_row_bytes) {
  with_storage(storage, [&](auto stored) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; j += 16) {
        const __mmask16 lanes = first_lanes(cols - j);
        stored.store(out + i * out_row_bytes + j * stored.kBytes, lanes,
                     _mm512_maskz_loadu_ps(lanes, x + i * row + j));
      }
    }
  });
}

}  // namespace

const RowKernels* rows_avx512() {
  static const RowKernels kernels{
      &softmax<OperandF32>, &gradient<OperandF32>, &scale, &finish, &dots, &outer, &store};
  return gemm::host_has_avx512() ? &kernels : nullptr;
}

}  // namespace torch_neuronx::attention
