// Recurrences along a partition, one partition per lane: scan and cumulate.
#pragma once

#include "nki/columns_impl.h"

namespace torch_neuronx::kernels::TN_ISA {

namespace {

// The order of SCANNED in neuronxcc/program/natives/alu.py; tests/nki/test_alu.py compares them.
enum class Alu : int64_t {
  kAdd,
  kSubtract,
  kMultiply,
  kMaximum,
  kMinimum,
  kEqual,
  kNotEqual,
  kGreaterEqual,
  kGreater,
  kLessEqual,
  kLess,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kPower,
  kAbsMax,
  kAbsMin,
  kCount,
};  // clang-format off
// clang-format on

TN_INLINE vf truth(vi mask) { return from_bits(mask & bits(splat(1.0f))); }

inline vf power(vf a, vf b) {
  for (int i = 0; i < W; ++i) {
    a[i] = static_cast<float>(__builtin_pow(static_cast<double>(a[i]), static_cast<double>(b[i])));
  }
  return a;
}

template <Alu kOp>
TN_INLINE vf apply(vf a, vf b) {
  if constexpr (kOp == Alu::kAdd) return a + b;
  if constexpr (kOp == Alu::kSubtract) return a - b;
  if constexpr (kOp == Alu::kMultiply) return a * b;
  // NaN wins, and 0.0 is greater than -0.0: numbers that are equal differ in the sign of 0 only.
  if constexpr (kOp == Alu::kMaximum) {
    const vf larger = ((a > b) | (a != a)) ? a : b;
    return (a == b) ? from_bits(bits(a) & bits(b)) : larger;
  }
  if constexpr (kOp == Alu::kMinimum) {
    const vf smaller = ((a < b) | (a != a)) ? a : b;
    return (a == b) ? from_bits(bits(a) | bits(b)) : smaller;
  }
  if constexpr (kOp == Alu::kEqual) return truth(a == b);
  if constexpr (kOp == Alu::kNotEqual) return truth(a != b);
  if constexpr (kOp == Alu::kGreaterEqual) return truth(a >= b);
  if constexpr (kOp == Alu::kGreater) return truth(a > b);
  if constexpr (kOp == Alu::kLessEqual) return truth(a <= b);
  if constexpr (kOp == Alu::kLess) return truth(a < b);
  if constexpr (kOp == Alu::kLogicalAnd) return truth((a != 0.0f) & (b != 0.0f));
  if constexpr (kOp == Alu::kLogicalOr) return truth((a != 0.0f) | (b != 0.0f));
  if constexpr (kOp == Alu::kLogicalXor) return truth((a != 0.0f) ^ (b != 0.0f));
  if constexpr (kOp == Alu::kPower) return power(a, b);
  if constexpr (kOp == Alu::kAbsMax) return (abs(a) > abs(b)) ? a : b;
  if constexpr (kOp == Alu::kAbsMin) return (abs(a) < abs(b)) ? a : b;
}

// out[i] = state = (a[i] op state), or (state op a[i]) when reversed.
using Half = void (*)(vf* out, const vf* a, int64_t count, vf& state);
// out[i] = state = ((a[i] op0 state) op1 b[i]), each operator reversed or not.
using Whole = void (*)(vf* out, const vf* a, const vf* b, int64_t count, vf& state);
using Binary = vf (*)(vf, vf);

template <Alu kOp, bool kReverse>
TN_INLINE vf ordered_apply(vf a, vf b) {
  return kReverse ? apply<kOp>(b, a) : apply<kOp>(a, b);
}

template <Alu kOp>
void half(vf* out, const vf* a, int64_t count, vf& state) {
  vf s = state;
  for (int64_t i = 0; i < count; ++i) out[i] = s = apply<kOp>(a[i], s);
  state = s;
}

template <Alu kOp0, bool kReverse0, Alu kOp1, bool kReverse1>
void whole(vf* out, const vf* a, const vf* b, int64_t count, vf& state) {
  vf s = state;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = s = ordered_apply<kOp1, kReverse1>(ordered_apply<kOp0, kReverse0>(a[i], s), b[i]);
  }
  state = s;
}

template <Alu kOp, bool kReverse>
vf binary(vf a, vf b) {
  return ordered_apply<kOp, kReverse>(a, b);
}

template <bool kReverse>
Binary binary_of(Alu op) {
  static constexpr Binary kTable[] = {
      binary<Alu::kAdd, kReverse>,       binary<Alu::kSubtract, kReverse>,
      binary<Alu::kMultiply, kReverse>,  binary<Alu::kMaximum, kReverse>,
      binary<Alu::kMinimum, kReverse>,   binary<Alu::kEqual, kReverse>,
      binary<Alu::kNotEqual, kReverse>,  binary<Alu::kGreaterEqual, kReverse>,
      binary<Alu::kGreater, kReverse>,   binary<Alu::kLessEqual, kReverse>,
      binary<Alu::kLess, kReverse>,      binary<Alu::kLogicalAnd, kReverse>,
      binary<Alu::kLogicalOr, kReverse>, binary<Alu::kLogicalXor, kReverse>,
      binary<Alu::kPower, kReverse>,     binary<Alu::kAbsMax, kReverse>,
      binary<Alu::kAbsMin, kReverse>,
  };
  static_assert(sizeof(kTable) / sizeof(kTable[0]) == static_cast<size_t>(Alu::kCount));
  return kTable[static_cast<int64_t>(op)];
}

// The pairs worth a loop of their own; any other goes through two calls per column.
template <Alu kOp0, bool kReverse0>
Whole whole_of(Alu op1, bool reverse1) {
  switch (op1) {
    case Alu::kAdd:
      return whole<kOp0, kReverse0, Alu::kAdd, false>;
    case Alu::kSubtract:
      return reverse1 ? whole<kOp0, kReverse0, Alu::kSubtract, true>
                      : whole<kOp0, kReverse0, Alu::kSubtract, false>;
    case Alu::kMultiply:
      return whole<kOp0, kReverse0, Alu::kMultiply, false>;
    case Alu::kMaximum:
      return whole<kOp0, kReverse0, Alu::kMaximum, false>;
    case Alu::kMinimum:
      return whole<kOp0, kReverse0, Alu::kMinimum, false>;
    default:
      return nullptr;
  }
}

inline Whole whole_of(Alu op0, bool reverse0, Alu op1, bool reverse1) {
  switch (op0) {
    case Alu::kAdd:
      return whole_of<Alu::kAdd, false>(op1, reverse1);
    case Alu::kSubtract:
      return reverse0 ? whole_of<Alu::kSubtract, true>(op1, reverse1)
                      : whole_of<Alu::kSubtract, false>(op1, reverse1);
    case Alu::kMultiply:
      return whole_of<Alu::kMultiply, false>(op1, reverse1);
    case Alu::kMaximum:
      return whole_of<Alu::kMaximum, false>(op1, reverse1);
    case Alu::kMinimum:
      return whole_of<Alu::kMinimum, false>(op1, reverse1);
    default:
      return nullptr;
  }
}

// slots: out, a, b, initial. params: rows, size, op0, reverse0, op1, reverse1, bytes from row to
// row of each slot (0 for an initial value that all rows share). `out` may be `a` or `b`.
bool scan(char* const* slots, const int64_t* p, nki::Fault&) {
  const auto op0 = static_cast<Alu>(p[2]), op1 = static_cast<Alu>(p[4]);
  const Whole fast = whole_of(op0, p[3] != 0, op1, p[5] != 0);
  const Binary first = p[3] ? binary_of<true>(op0) : binary_of<false>(op0);
  const Binary second = p[5] ? binary_of<true>(op1) : binary_of<false>(op1);
  for (int64_t row = 0; row < p[0]; row += W) {
    const int64_t rows = least(W, p[0] - row);
    vf state = load_lanes(rows_of<const float>(slots[3], p[9], row), rows);
    for (int64_t at = 0; at < p[1]; at += W) {
      const int64_t count = least(W, p[1] - at);
      vf a[W], b[W], out[W] = {};
      load_columns(rows_of<const float>(slots[1], p[7], row), rows, at, count, a);
      load_columns(rows_of<const float>(slots[2], p[8], row), rows, at, count, b);
      if (fast != nullptr) {
        fast(out, a, b, count, state);
      } else {
        for (int64_t i = 0; i < count; ++i) out[i] = state = second(first(a[i], state), b[i]);
      }
      store_columns(rows_of<float>(slots[0], p[6], row), rows, at, count, out);
    }
  }
  return true;
}

// slots: out, state, a, initial. params: rows, size, op, bytes from row to row of each slot.
// `state` gets the last column and may be `initial`; `out` may be `a`.
bool cumulate(char* const* slots, const int64_t* p, nki::Fault&) {
  static constexpr Half kTable[] = {half<Alu::kAdd>, half<Alu::kSubtract>, half<Alu::kMultiply>,
                                    half<Alu::kMaximum>, half<Alu::kMinimum>};
  const Half run = kTable[p[2]];
  for (int64_t row = 0; row < p[0]; row += W) {
    const int64_t rows = least(W, p[0] - row);
    vf state = load_lanes(rows_of<const float>(slots[3], p[6], row), rows);
    for (int64_t at = 0; at < p[1]; at += W) {
      const int64_t count = least(W, p[1] - at);
      vf a[W], out[W] = {};
      load_columns(rows_of<const float>(slots[2], p[5], row), rows, at, count, a);
      run(out, a, count, state);
      store_columns(rows_of<float>(slots[0], p[3], row), rows, at, count, out);
    }
    store_lanes(rows_of<float>(slots[1], p[4], row), rows, state);
  }
  return true;
}

}  // namespace

}  // namespace torch_neuronx::kernels::TN_ISA
