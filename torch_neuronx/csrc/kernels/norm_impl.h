// The rows behind norm.h for one instruction set; see isa.h for how it is compiled.
#pragma once

#include "kernels/norm.h"
#include "kernels/vec_math.h"

namespace torch_neuronx::kernels::TN_ISA {
namespace {

// Elements whose sum is made in float32, 16 additions per lane of four vectors, before it goes to a
// double: the error of a sum of equal signs is under 20 * 2^-24, whatever the length.
constexpr int64_t kSumBlock = 16 * 4 * W;

// Sum over the row of f(vector at i, valid lanes in the vector), where f returns 0 in other lanes.
template <class F>
TN_INLINE double row_sum(int64_t cols, F f) {
  double total = 0;
  for (int64_t begin = 0; begin < cols; begin += kSumBlock) {
    const int64_t end = begin + kSumBlock < cols ? begin + kSumBlock : cols;
    vf a{}, b{}, c{}, d{};
    int64_t i = begin;
    for (; i + 4 * W <= end; i += 4 * W) {
      a += f(i, W);
      b += f(i + W, W);
      c += f(i + 2 * W, W);
      d += f(i + 3 * W, W);
    }
    for (; i + W <= end; i += W) a += f(i, W);
    if (i < end) b += f(i, end - i);
    total += sum((a + b) + (c + d));
  }
  return total;
}

// The sum over a row in the order of compiled code (neuronxcc/codegen/llvm/reduction.py): four
// vectors of partial sums; what is left over is a vector of the next power of two of lanes, to
// which the others are folded; then all, by halves. f as for row_sum().
constexpr int64_t kSumLanes = 4 * W;
// Longer rows are summed by row_sum(): a lane adds so many numbers one after the other at most.
constexpr int64_t kLongestRow = 128 * kSumLanes;

TN_INLINE void fold(float* lanes, int64_t* count, int64_t to) {
  while (*count > to) {
    *count /= 2;
    for (int64_t k = 0; k < *count; ++k) lanes[k] += lanes[k + *count];
  }
}

template <class F>
TN_INLINE float sum_in_order(int64_t cols, F f) {
  const int64_t full = cols / kSumLanes * kSumLanes;
  vf a{}, b{}, c{}, d{};
  for (int64_t i = 0; i < full; i += kSumLanes) {
    a += f(i, W);
    b += f(i + W, W);
    c += f(i + 2 * W, W);
    d += f(i + 3 * W, W);
  }
  float lanes[kSumLanes];
  F32::store(lanes, a);
  F32::store(lanes + W, b);
  F32::store(lanes + 2 * W, c);
  F32::store(lanes + 3 * W, d);
  int64_t count = kSumLanes;
  if (const int64_t rest = cols - full; rest > 0) {
    int64_t tail = 1;
    while (tail < rest) tail *= 2;
    fold(lanes, &count, tail);
    for (int64_t i = 0; i < rest; i += W) {
      const int64_t some = rest - i < W ? rest - i : W;
      F32::store(lanes + i, F32::load(lanes + i) + f(full + i, some));
    }
  }
  fold(lanes, &count, 1);
  return lanes[0];
}

template <class T>
TN_INLINE vf load_some(const typename T::Storage* p, int64_t count) {
  return count == W ? T::load(p) : load_part<T>(p, count);
}
template <class T>
TN_INLINE void store_some(typename T::Storage* p, int64_t count, vf x) {
  if (count == W) {
    T::store(p, x);
  } else {
    store_part<T>(p, count, x);
  }
}
template <class F>
TN_INLINE void row_each(int64_t cols, F f) {
  int64_t i = 0;
  for (; i + W <= cols; i += W) f(i, W);
  if (i < cols) f(i, cols - i);
}

TN_INLINE vf zero_beyond(vf x, int64_t count) {
  if (count == W) return x;
  for (int i = 0; i < W; ++i) x[i] = i < count ? x[i] : 0.0f;
  return x;
}

// Largest element; elements that are NaN may be missed (they reach the result through the sum).
template <class T>
TN_INLINE float row_max(const typename T::Storage* x, int64_t cols) {
  vf a = splat(-__builtin_inff()), b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 4 * W <= cols; i += 4 * W) {
    a = max2(T::load(x + i), a);
    b = max2(T::load(x + i + W), b);
    c = max2(T::load(x + i + 2 * W), c);
    d = max2(T::load(x + i + 3 * W), d);
  }
  for (; i + W <= cols; i += W) a = max2(T::load(x + i), a);
  a = max2(max2(a, b), max2(c, d));
  if (i < cols) {
    const vf rest = load_part<T>(x + i, cols - i, x[cols - 1]);
    a = max2(rest, a);
  }
  float best = a[0];
  for (int k = 1; k < W; ++k) best = a[k] > best ? a[k] : best;
  return best;
}

template <bool kCondition, class A, class B>
struct Choose {
  using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using type = B;
};

template <class T, bool kLog>
void softmax_row(const void* x_, void* out_, int64_t cols, float* scratch) {
  using S = typename T::Storage;
  const S* x = static_cast<const S*>(x_);
  S* out = static_cast<S*>(out_);
  // exp(x - max) waits in the output row itself when that holds float32.
  float* e = sizeof(S) == 4 ? reinterpret_cast<float*>(out) : scratch;
  const vf top = splat(row_max<T>(x, cols));
  const double total = row_sum(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    // The logarithm of the sum must be exact to float32 where a dominant element makes it nearly 0.
    const vf y =
        exp_negative<typename Choose<kLog, F32, T>::type>(load_some<T>(x + i, count) - top);
    if constexpr (!kLog) store_some<F32>(e + i, count, y);
    return zero_beyond(y, count);
  });
  if constexpr (kLog) {
    const vf log_total = splat(static_cast<float>(__builtin_log(total)));
    row_each(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
      store_some<T>(out + i, count, load_some<T>(x + i, count) - top - log_total);
    });
  } else {
    const vf scale = splat(static_cast<float>(1.0 / total));
    row_each(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
      store_some<T>(out + i, count, load_some<F32>(e + i, count) * scale);
    });
  }
}

template <class T, bool kLog>
void softmax_grad_row(const void* grad_, const void* y_, void* out_, int64_t cols) {
  using S = typename T::Storage;
  const S* grad = static_cast<const S*>(grad_);
  const S* y = static_cast<const S*>(y_);
  S* out = static_cast<S*>(out_);
  const vf total = splat(static_cast<float>(
      row_sum(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const vf g = load_some<T>(grad + i, count);
        return kLog ? g : g * load_some<T>(y + i, count);
      })));
  row_each(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    const vf g = load_some<T>(grad + i, count), v = load_some<T>(y + i, count);
    // What is almost certain leaves the difference of two almost equal numbers, also in 16 bits.
    store_some<T>(out + i, count, kLog ? fma(exp_negative<F32>(v), -total, g) : (g - total) * v);
  });
}

template <class F>
TN_INLINE double norm_sum(int64_t cols, F f) {
  return cols <= kLongestRow ? static_cast<double>(sum_in_order(cols, f)) : row_sum(cols, f);
}

// Rows that are not too long give the bits of compiled code that computes the same
// (torch_neuronx/neuron/regions.py). Weight arrays are of the row's type T or of float32; nullptr
// stands for ones (zeros for a bias).
template <class T, class TW, bool kMean>
void norm_row(const void* x_, const void* weight_, const void* bias_, float eps, void* out_,
              float* mean_out, float* rstd_out, int64_t cols, float* scratch) {
  using S = typename T::Storage;
  using SW = typename TW::Storage;
  const S* x = static_cast<const S*>(x_);
  const SW* weight = static_cast<const SW*>(weight_);
  const SW* bias = static_cast<const SW*>(bias_);
  S* out = static_cast<S*>(out_);
  (void)scratch;
  float mean = 0;
  if constexpr (kMean) {
    mean = static_cast<float>(
        norm_sum(cols, [&](int64_t i, int64_t count)
                           __attribute__((always_inline)) { return load_some<T>(x + i, count); }) /
        static_cast<double>(cols));
    *mean_out = mean;
  }
  const vf center = splat(mean);
  const double squares =
      norm_sum(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
        const vf d = load_some<T>(x + i, count) - center;
        return zero_beyond(d * d, count);
      });
  const float rstd = static_cast<float>(
      1.0 / __builtin_sqrt(squares / static_cast<double>(cols) + static_cast<double>(eps)));
  *rstd_out = rstd;
  const vf scale = splat(rstd);
  // Three loops instead of two tests per vector.
  if (weight != nullptr && bias != nullptr) {
    row_each(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
      const vf y = (load_some<T>(x + i, count) - center) * scale;
      store_some<T>(out + i, count,
                    y * load_some<TW>(weight + i, count) + load_some<TW>(bias + i, count));
    });
  } else if (weight != nullptr) {
    row_each(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
      const vf y = (load_some<T>(x + i, count) - center) * scale;
      store_some<T>(out + i, count, y * load_some<TW>(weight + i, count));
    });
  } else {
    row_each(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
      const vf y = (load_some<T>(x + i, count) - center) * scale;
      store_some<T>(out + i, count, bias ? y + load_some<TW>(bias + i, count) : y);
    });
  }
}

// With xhat = (x - mean) rstd and g = grad * weight:
// dx = rstd (g - mean(g) - xhat mean(g xhat)), without the middle term for RMS norm.
template <class T, class TW, bool kMean>
void norm_grad_row(const void* grad_, const void* x_, float mean, float rstd, const void* weight_,
                   void* grad_in_, float* grad_weight, float* grad_bias, int64_t cols) {
  using S = typename T::Storage;
  using SW = typename TW::Storage;
  const S* grad = static_cast<const S*>(grad_);
  const S* x = static_cast<const S*>(x_);
  const SW* weight = static_cast<const SW*>(weight_);
  S* grad_in = static_cast<S*>(grad_in_);
  const vf center = splat(kMean ? mean : 0.0f), scale = splat(rstd);
  const auto scaled = [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    const vf g = load_some<T>(grad + i, count);
    return weight != nullptr ? g * load_some<TW>(weight + i, count) : g;
  };
  const auto normal = [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    return (load_some<T>(x + i, count) - center) * scale;
  };
  if (grad_weight != nullptr) {
    row_each(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
      const vf g = load_some<T>(grad + i, count);
      store_some<F32>(grad_weight + i, count,
                      fma(g, normal(i, count), load_some<F32>(grad_weight + i, count)));
    });
  }
  if (grad_bias != nullptr) {
    row_each(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
      store_some<F32>(grad_bias + i, count,
                      load_some<T>(grad + i, count) + load_some<F32>(grad_bias + i, count));
    });
  }
  if (grad_in == nullptr) return;
  const double n = static_cast<double>(cols);
  float mean_g = 0;
  if constexpr (kMean) mean_g = static_cast<float>(row_sum(cols, scaled) / n);
  const float mean_gx =
      static_cast<float>(row_sum(cols,
                                 [&](int64_t i, int64_t count) __attribute__((always_inline)) {
                                   return zero_beyond(scaled(i, count) * normal(i, count), count);
                                 }) /
                         n);
  const vf first = splat(mean_g), second = splat(-mean_gx);
  row_each(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    const vf d = fma(normal(i, count), second, scaled(i, count) - first);
    store_some<T>(grad_in + i, count, d * scale);
  });
}

template <class T>
void from_float(const float* x, void* out_, int64_t n) {
  typename T::Storage* out = static_cast<typename T::Storage*>(out_);
  row_each(n, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    store_some<T>(out + i, count, load_some<F32>(x + i, count));
  });
}

template <class T>
void sum_row(const void* x_, void* out_, int64_t cols, bool mean) {
  using S = typename T::Storage;
  const S* x = static_cast<const S*>(x_);
  float total = sum_in_order(cols, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    return load_some<T>(x + i, count);
  });
  if (mean) total /= static_cast<float>(cols);
  store_part<T>(static_cast<S*>(out_), 1, splat(total));
}

#define TN_TYPES(f, flag) {&f<F32, flag>, &f<BF16, flag>, &f<F16, flag>}
#define TN_WEIGHTED(f, flag)                                                                 \
  {                                                                                          \
    {&f<F32, F32, flag>, &f<F32, F32, flag>}, {&f<BF16, BF16, flag>, &f<BF16, F32, flag>}, { \
      &f<F16, F16, flag>, &f<F16, F32, flag>                                                 \
    }                                                                                        \
  }

const NormTable kNormTable = {
    TN_TYPES(softmax_row, false),
    TN_TYPES(softmax_row, true),
    TN_TYPES(softmax_grad_row, false),
    TN_TYPES(softmax_grad_row, true),
    TN_WEIGHTED(norm_row, true),
    TN_WEIGHTED(norm_row, false),
    TN_WEIGHTED(norm_grad_row, true),
    TN_WEIGHTED(norm_grad_row, false),
    {&from_float<F32>, &from_float<BF16>, &from_float<F16>},
    {&sum_row<F32>, &sum_row<BF16>, &sum_row<F16>},
    kSumLanes,
    kLongestRow,
};
#undef TN_TYPES
#undef TN_WEIGHTED

}  // namespace

const NormTable& norm_table() { return kNormTable; }

}  // namespace torch_neuronx::kernels::TN_ISA
