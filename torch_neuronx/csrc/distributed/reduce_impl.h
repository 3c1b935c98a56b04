// The loops of reduce_table.h for one instruction set (TN_ISA); see kernels/vec.h for the rules.
//
// A step takes 4 registers of every input, so that with any number of inputs each is read once, a
// few whole cache lines at a time, and the partial results never leave the registers.
#include <stddef.h>

#include "distributed/reduce_table.h"
#include "kernels/vec.h"

namespace torch_neuronx::kernels::TN_ISA {
namespace {

constexpr size_t R = W * 4;  // bytes of a register
typedef uint8_t Raw __attribute__((vector_size(W * 4), may_alias));
typedef uint8_t RawAny __attribute__((vector_size(W * 4), aligned(1), may_alias));

TN_INLINE Raw load_raw(const char* p) { return *(const RawAny*)p; }
TN_INLINE void store_raw(char* p, Raw x) { *(RawAny*)p = x; }
// `p` is aligned to a register.
TN_INLINE void stream_raw(char* p, Raw x) {
#if defined(__AVX512F__)
  _mm512_stream_si512((__m512i*)p, (__m512i)x);
#elif defined(__AVX2__)
  _mm256_stream_si256((__m256i*)p, (__m256i)x);
#elif defined(__SSE2__)
  _mm_stream_si128((__m128i*)p, (__m128i)x);
#else
  *(Raw*)p = x;
#endif
}

void fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// What a register of storage holds, unpacked to the type of the arithmetic.
struct FloatFormat {
  using Value = vf;
  static TN_INLINE Value unpack(Raw x) { return (vf)x; }
  static TN_INLINE Raw pack(Value x) { return (Raw)x; }
};
struct DoubleFormat {
  using Value = vd;
  static TN_INLINE Value unpack(Raw x) { return (vd)x; }
  static TN_INLINE Raw pack(Value x) { return (Raw)x; }
};
// Any NaN of a fold is a quiet one or comes from the format, as store_pair asks for.
struct BFloatFormat {
  using Value = Pair;
  static TN_INLINE Value unpack(Raw x) {
    const vu both = (vu)x;
    return {(vf)(both << 16), (vf)(both & 0xffff0000u)};
  }
  static TN_INLINE Raw pack(Value x) {
    return (Raw)((BF16::rounded(x.a) >> 16) | (BF16::rounded(x.b) & 0xffff0000u));
  }
};
struct HalfFormat {
  using Value = Pair;
  static TN_INLINE Value unpack(Raw x) {
    uint16_t halves[2 * W] __attribute__((aligned(64)));
    *(Raw*)halves = x;
    return F16::load_pair(halves);
  }
  static TN_INLINE Raw pack(Value x) {
    uint16_t halves[2 * W] __attribute__((aligned(64)));
    F16::store_pair(halves, x);
    return *(Raw*)halves;
  }
};
// `T` is the type of the arithmetic (unsigned where it may wrap), `D` the one that is divided.
template <class T, class D>
struct IntFormat {
  typedef T Value __attribute__((vector_size(W * 4)));
  typedef D Quotient __attribute__((vector_size(W * 4)));
  static TN_INLINE Value unpack(Raw x) { return (Value)x; }
  static TN_INLINE Raw pack(Value x) { return (Raw)x; }
};

struct Sum {
  template <class V>
  static TN_INLINE V apply(V a, V b) {
    return a + b;
  }
};
struct Product {
  template <class V>
  static TN_INLINE V apply(V a, V b) {
    return a * b;
  }
};
// NaN of either wins; of two equals (zeros of both signs) the first.
struct Min {
  template <class V>
  static TN_INLINE V apply(V a, V b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};
struct Max {
  template <class V>
  static TN_INLINE V apply(V a, V b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};
struct And {
  template <class V>
  static TN_INLINE V apply(V a, V b) {
    return a & b;
  }
};
struct Or {
  template <class V>
  static TN_INLINE V apply(V a, V b) {
    return a | b;
  }
};
struct Xor {
  template <class V>
  static TN_INLINE V apply(V a, V b) {
    return a ^ b;
  }
};

template <class Op, class V>
TN_INLINE V fold2(V a, V b) {
  return Op::template apply<V>(a, b);
}
template <class Op>
TN_INLINE Pair fold2(Pair x, Pair y) {
  return {Op::template apply<vf>(x.a, y.a), Op::template apply<vf>(x.b, y.b)};
}

constexpr ReduceScale None = ReduceScale::None, Multiply = ReduceScale::Multiply,
                      Divide = ReduceScale::Divide;

// The scales as vectors, made once per call.
template <class F, ReduceScale S>
struct Scaler {
  static_assert(S == None);
  explicit Scaler(const ReduceFactors&) {}
  TN_INLINE typename F::Value before(typename F::Value x) const { return x; }
  TN_INLINE typename F::Value after(typename F::Value x) const { return x; }
};
template <class V, class T, ReduceScale S>
struct FloatScaler {
  V pre, post;
  explicit FloatScaler(const ReduceFactors& f) : pre(splat(T(f.pre))), post(splat(T(f.post))) {}
  TN_INLINE V before(V x) const { return x * pre; }
  TN_INLINE V after(V x) const { return S == Divide ? x / post : x * post; }
  TN_INLINE Pair before(Pair x) const { return {x.a * pre, x.b * pre}; }
  TN_INLINE Pair after(Pair x) const { return {after(x.a), after(x.b)}; }
};
template <ReduceScale S>
  requires(S != None)
struct Scaler<FloatFormat, S> : FloatScaler<vf, float, S> {
  using FloatScaler<vf, float, S>::FloatScaler;
};
template <ReduceScale S>
  requires(S != None)
struct Scaler<BFloatFormat, S> : FloatScaler<vf, float, S> {
  using FloatScaler<vf, float, S>::FloatScaler;
};
template <ReduceScale S>
  requires(S != None)
struct Scaler<HalfFormat, S> : FloatScaler<vf, float, S> {
  using FloatScaler<vf, float, S>::FloatScaler;
};
template <ReduceScale S>
  requires(S != None)
struct Scaler<DoubleFormat, S> : FloatScaler<vd, double, S> {
  using FloatScaler<vd, double, S>::FloatScaler;
};
template <class T, class D>
struct Scaler<IntFormat<T, D>, Divide> {
  using F = IntFormat<T, D>;
  T pre;
  uint64_t divisor;
  explicit Scaler(const ReduceFactors& f) : pre(T(f.int_pre)), divisor(f.int_divisor) {}
  TN_INLINE typename F::Value before(typename F::Value x) const { return x * pre; }
  // There is no division of vectors; a divisor that D doesn't have exceeds every value of it.
  TN_INLINE typename F::Value after(typename F::Value x) const {
    typename F::Quotient q = (typename F::Quotient)x;
    for (size_t i = 0; i < R / sizeof(D); ++i)
      q[i] = D(-1) < 0 ? D(int64_t(q[i]) / int64_t(divisor)) : D(uint64_t(q[i]) / divisor);
    return (typename F::Value)q;
  }
};

TN_INLINE Raw load_some(const char* p, size_t bytes) {
  Raw x = {};
  __builtin_memcpy(&x, p, bytes);
  return x;
}

template <class F, class Op, ReduceScale S>
void fold(const void* const* inputs, size_t n_inputs, void* const* outputs, size_t n_outputs,
          size_t bytes, const ReduceFactors& factors, bool stream) {
  using Value = typename F::Value;
  const char* const* in = (const char* const*)inputs;
  char* const* out = (char* const*)outputs;
  const Scaler<F, S> scale(factors);
  constexpr size_t step = 4 * R;
  size_t at = 0;
  for (; at + step <= bytes; at += step) {
    const char* p = in[0] + at;
    Value a = scale.before(F::unpack(load_raw(p))), b = scale.before(F::unpack(load_raw(p + R))),
          c = scale.before(F::unpack(load_raw(p + 2 * R))),
          d = scale.before(F::unpack(load_raw(p + 3 * R)));
    for (size_t k = 1; k < n_inputs; ++k) {
      p = in[k] + at;
      a = fold2<Op>(a, scale.before(F::unpack(load_raw(p))));
      b = fold2<Op>(b, scale.before(F::unpack(load_raw(p + R))));
      c = fold2<Op>(c, scale.before(F::unpack(load_raw(p + 2 * R))));
      d = fold2<Op>(d, scale.before(F::unpack(load_raw(p + 3 * R))));
    }
    const Raw ra = F::pack(scale.after(a)), rb = F::pack(scale.after(b)),
              rc = F::pack(scale.after(c)), rd = F::pack(scale.after(d));
    for (size_t j = 0; j < n_outputs; ++j) {
      char* q = out[j] + at;
      if (stream) {
        stream_raw(q, ra);
        stream_raw(q + R, rb);
        stream_raw(q + 2 * R, rc);
        stream_raw(q + 3 * R, rd);
      } else {
        store_raw(q, ra);
        store_raw(q + R, rb);
        store_raw(q + 2 * R, rc);
        store_raw(q + 3 * R, rd);
      }
    }
  }
  for (; at < bytes; at += R) {
    const size_t rest = bytes - at < R ? bytes - at : R;
    Value a = scale.before(F::unpack(load_some(in[0] + at, rest)));
    for (size_t k = 1; k < n_inputs; ++k)
      a = fold2<Op>(a, scale.before(F::unpack(load_some(in[k] + at, rest))));
    const Raw r = F::pack(scale.after(a));
    for (size_t j = 0; j < n_outputs; ++j) __builtin_memcpy(out[j] + at, &r, rest);
  }
}

// Requests a whole page of the source before it writes any of it, so that the memory turns between
// reading and writing rarely: a quarter faster. Blocks of 1 to 4 KiB do, 8 KiB are too much for the
// first-level cache.
void stream_copy(void* destination, const void* source, size_t bytes) {
  char* to = (char*)destination;
  const char* from = (const char*)source;
  constexpr size_t block = 4096, line = 64;
  size_t at = 0;
  for (; at + block <= bytes; at += block) {
    for (size_t i = 0; i < block; i += line) __builtin_prefetch(from + at + i);
    for (size_t i = 0; i < block; i += R) stream_raw(to + at + i, load_raw(from + at + i));
  }
  if (at < bytes) __builtin_memcpy(to + at, from + at, bytes - at);
}

#define TN_FLOAT(F, Op) {&fold<F, Op, None>, &fold<F, Op, Multiply>, &fold<F, Op, Divide>}
#define TN_INT(T, D, Op) \
  {&fold<IntFormat<T, D>, Op, None>, nullptr, &fold<IntFormat<T, D>, Op, Divide>}
#define TN_FLOATS(Op)                                                              \
  TN_FLOAT(FloatFormat, Op), TN_FLOAT(BFloatFormat, Op), TN_FLOAT(HalfFormat, Op), \
      TN_FLOAT(DoubleFormat, Op)
// Sums and products are those of the unsigned type, which wraps.
#define TN_WRAPPING(Op)            \
  {TN_FLOATS(Op),                  \
   TN_INT(uint8_t, uint8_t, Op),   \
   TN_INT(uint8_t, int8_t, Op),    \
   TN_INT(uint16_t, uint16_t, Op), \
   TN_INT(uint16_t, int16_t, Op),  \
   TN_INT(uint32_t, uint32_t, Op), \
   TN_INT(uint32_t, int32_t, Op),  \
   TN_INT(uint64_t, uint64_t, Op), \
   TN_INT(uint64_t, int64_t, Op)}
#define TN_SIGNED(Op)              \
  {TN_FLOATS(Op),                  \
   TN_INT(uint8_t, uint8_t, Op),   \
   TN_INT(int8_t, int8_t, Op),     \
   TN_INT(uint16_t, uint16_t, Op), \
   TN_INT(int16_t, int16_t, Op),   \
   TN_INT(uint32_t, uint32_t, Op), \
   TN_INT(int32_t, int32_t, Op),   \
   TN_INT(uint64_t, uint64_t, Op), \
   TN_INT(int64_t, int64_t, Op)}
using Bits = IntFormat<uint64_t, uint64_t>;

constexpr ReduceTable table = {
    {TN_WRAPPING(Sum), TN_WRAPPING(Product), TN_SIGNED(Min), TN_SIGNED(Max)},
    {&fold<Bits, And, None>, &fold<Bits, Or, None>, &fold<Bits, Xor, None>},
    &stream_copy,
    &fence,
};

}  // namespace

const ReduceTable& reduce_table() { return table; }

}  // namespace torch_neuronx::kernels::TN_ISA
