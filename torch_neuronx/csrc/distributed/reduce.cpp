#include "distributed/reduce.h"

#include <ATen/core/TensorBase.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "distributed/reduce_table.h"

namespace torch_neuronx::distributed {
namespace {

using at::ScalarType;
using kernels::ReduceFactors;
using kernels::ReduceScale;
using kernels::ReduceTable;
using kernels::ReduceType;
using Pointers = const void* const*;
using Outputs = void* const*;

// Writes from this size on go past the cache: about a core's second-level cache, whose contents
// they would replace. `benchmarks/collectives.py --sweep` times all_reduce below and above.
constexpr size_t kStreamBytes = size_t{1} << 20;
constexpr size_t kLine = 64;

struct Call {
  Reduction op;
  ScalarType dtype;
  Pointers inputs;
  size_t n_inputs;
  Outputs outputs;
  size_t n_outputs;
  size_t count;
  double prescale, postscale;
  bool scaled() const { return prescale != 1.0 || postscale != 1.0; }
};

bool is_bitwise(Reduction op) { return op >= Reduction::kBand; }

[[noreturn]] void unsupported(const Call& c) {
  C10_THROW_ERROR(TypeError, c10::str("the reduction \"", reduction_name(c.op),
                                      "\" is not defined for ", c.dtype));
}

// The n of a postscale of 1/n, else 0.
uint64_t divisor_of(double postscale) {
  if (!(postscale > 0 && postscale <= 1)) return 0;
  const double n = std::nearbyint(1 / postscale);
  return n < 1 << 24 && 1 / n == postscale ? static_cast<uint64_t>(n) : 0;
}

struct Scales {
  ReduceFactors factors;
  ReduceScale scale = ReduceScale::None;
};

Scales float_scales(const Call& c) {
  Scales s;
  if (!c.scaled()) return s;
  const uint64_t n = divisor_of(c.postscale);
  // Dividing by a power of two is multiplying by its reciprocal, which is faster.
  const bool divide = n > 1 && (n & (n - 1)) != 0;
  s.scale = divide ? ReduceScale::Divide : ReduceScale::Multiply;
  s.factors.pre = c.prescale;
  s.factors.post = divide ? static_cast<double>(n) : c.postscale;
  return s;
}

Scales integer_scales(const Call& c) {
  Scales s;
  if (!c.scaled()) return s;
  const uint64_t n = divisor_of(c.postscale);
  if (n == 0 || c.prescale != std::trunc(c.prescale) || std::abs(c.prescale) >= 0x1p63)
    C10_THROW_ERROR(TypeError, c10::str("a reduction of ", c.dtype,
                                        " can be scaled by a whole number before and divided by a "
                                        "whole number after, not scaled by ",
                                        c.prescale, " and ", c.postscale));
  s.scale = ReduceScale::Divide;
  s.factors.int_pre = static_cast<int64_t>(c.prescale);
  s.factors.int_divisor = n;
  return s;
}

// Runs `fold` over `bytes`, past the cache where that is worth it.
void run(ReduceTable::Fold fold, const Call& c, size_t bytes, const ReduceFactors& factors = {}) {
  const auto address = [&](size_t j) { return reinterpret_cast<uintptr_t>(c.outputs[j]); };
  bool stream = bytes * c.n_outputs >= kStreamBytes;
  for (size_t j = 1; j < c.n_outputs && stream; ++j)
    stream = address(j) % kLine == address(0) % kLine;
  const size_t head = stream ? (kLine - address(0) % kLine) % kLine : 0;
  // Elements have to be whole on both sides of the split.
  if (!stream || head % c10::elementSize(c.dtype) != 0) {
    fold(c.inputs, c.n_inputs, c.outputs, c.n_outputs, bytes, factors, false);
    return;
  }
  if (head != 0) fold(c.inputs, c.n_inputs, c.outputs, c.n_outputs, head, factors, false);
  std::vector<const void*> inputs(c.inputs, c.inputs + c.n_inputs);
  std::vector<void*> outputs(c.outputs, c.outputs + c.n_outputs);
  for (auto& p : inputs) p = static_cast<const char*>(p) + head;
  for (auto& p : outputs) p = static_cast<char*>(p) + head;
  fold(inputs.data(), c.n_inputs, outputs.data(), c.n_outputs, bytes - head, factors, true);
  kernels::reduce_table().fence();
}

void reduce_arithmetic(const Call& c, ReduceType type, const Scales& s) {
  const auto fold = kernels::reduce_table().arithmetic[int(c.op)][int(type)][int(s.scale)];
  run(fold, c, c.count * c10::elementSize(c.dtype), s.factors);
}

void reduce_bits(const Call& c, int which) {
  run(kernels::reduce_table().bitwise[which], c, c.count * c10::elementSize(c.dtype));
}

void reduce_float(const Call& c, ReduceType type) {
  if (is_bitwise(c.op)) unsupported(c);
  reduce_arithmetic(c, type, float_scales(c));
}

void reduce_integer(const Call& c, ReduceType type) {
  const Scales s = integer_scales(c);
  if (!is_bitwise(c.op)) return reduce_arithmetic(c, type, s);
  if (c.scaled()) unsupported(c);
  reduce_bits(c, int(c.op) - int(Reduction::kBand));
}

void reduce_bool(const Call& c) {
  constexpr int kAnd = 0, kOr = 1, kXor = 2;
  constexpr int of[] = {kOr, kAnd, kAnd, kOr, kAnd, kOr, kXor};  // by Reduction
  if (c.scaled())
    C10_THROW_ERROR(TypeError, "a reduction of Bool cannot be scaled, and has no average");
  reduce_bits(c, of[int(c.op)]);
}

// 8-bit floating types: c10's conversions around a fold in float32, by blocks in the cache.
template <class T>
void reduce_small_float(const Call& c, ReduceType) {
  if (is_bitwise(c.op)) unsupported(c);
  static const std::array<float, 256> values = [] {
    std::array<float, 256> v;
    for (int i = 0; i < 256; ++i) v[i] = static_cast<float>(T(uint8_t(i), T::from_bits()));
    return v;
  }();
  const Scales s = float_scales(c);
  const auto& folds = kernels::reduce_table().arithmetic[int(c.op)][int(ReduceType::F32)];
  // The inputs are folded one after the other, so the scales are applied apart from that.
  const bool divide = s.scale == ReduceScale::Divide;
  const float pre = static_cast<float>(s.factors.pre), post = static_cast<float>(s.factors.post);
  constexpr size_t kBlock = 1024;
  alignas(64) float total[kBlock], next[kBlock];
  const void* both[] = {total, next};
  void* into[] = {total};
  for (size_t at = 0; at < c.count; at += kBlock) {
    const size_t n = std::min(kBlock, c.count - at);
    for (size_t k = 0; k < c.n_inputs; ++k) {
      float* to = k == 0 ? total : next;
      const auto* from = static_cast<const uint8_t*>(c.inputs[k]) + at;
      for (size_t i = 0; i < n; ++i) to[i] = values[from[i]] * pre;
      if (k > 0)
        folds[int(ReduceScale::None)](both, 2, into, 1, n * sizeof(float), s.factors, false);
    }
    T result[kBlock];
    for (size_t i = 0; i < n; ++i)
      result[i] = static_cast<T>(divide ? total[i] / post : total[i] * post);
    for (size_t j = 0; j < c.n_outputs; ++j)
      std::memcpy(static_cast<char*>(c.outputs[j]) + at, result, n);
  }
}

// `Real` is the storage of a part, `Wide` the type of the arithmetic.
template <class Real, class Wide>
void reduce_complex(const Call& c, ReduceType type) {
  const Scales s = float_scales(c);
  if (c.op == Reduction::kSum) return reduce_arithmetic(c, type, s);  // a sum of pairs
  if (c.op != Reduction::kProduct) unsupported(c);
  const auto pre = static_cast<Wide>(s.factors.pre), post = static_cast<Wide>(s.factors.post);
  const auto after = [&](Wide x) { return s.scale == ReduceScale::Divide ? x / post : x * post; };
  for (size_t i = 0; i < 2 * c.count; i += 2) {
    const auto part = [&](size_t k, size_t j) {
      return static_cast<Wide>(static_cast<const Real*>(c.inputs[k])[i + j]) * pre;
    };
    Wide re = part(0, 0), im = part(0, 1);
    for (size_t k = 1; k < c.n_inputs; ++k) {
      const Wide a = part(k, 0), b = part(k, 1), new_re = re * a - im * b;
      im = re * b + im * a;
      re = new_re;
    }
    for (size_t j = 0; j < c.n_outputs; ++j) {
      auto* out = static_cast<Real*>(c.outputs[j]) + i;
      out[0] = static_cast<Real>(after(re));
      out[1] = static_cast<Real>(after(im));
    }
  }
}

struct Entry {
  ScalarType dtype;
  void (*reduce)(const Call&, ReduceType);
  ReduceType type = ReduceType::F32;
};

constexpr Entry kEntries[] = {
    {ScalarType::Float, &reduce_float, ReduceType::F32},
    {ScalarType::BFloat16, &reduce_float, ReduceType::BF16},
    {ScalarType::Half, &reduce_float, ReduceType::F16},
    {ScalarType::Double, &reduce_float, ReduceType::F64},
    {ScalarType::Bool, [](const Call& c, ReduceType) { reduce_bool(c); }},
    {ScalarType::Byte, &reduce_integer, ReduceType::U8},
    {ScalarType::Char, &reduce_integer, ReduceType::I8},
    {ScalarType::UInt16, &reduce_integer, ReduceType::U16},
    {ScalarType::Short, &reduce_integer, ReduceType::I16},
    {ScalarType::UInt32, &reduce_integer, ReduceType::U32},
    {ScalarType::Int, &reduce_integer, ReduceType::I32},
    {ScalarType::UInt64, &reduce_integer, ReduceType::U64},
    {ScalarType::Long, &reduce_integer, ReduceType::I64},
    {ScalarType::Float8_e4m3fn, &reduce_small_float<c10::Float8_e4m3fn>},
    {ScalarType::Float8_e4m3fnuz, &reduce_small_float<c10::Float8_e4m3fnuz>},
    {ScalarType::Float8_e5m2, &reduce_small_float<c10::Float8_e5m2>},
    {ScalarType::Float8_e5m2fnuz, &reduce_small_float<c10::Float8_e5m2fnuz>},
    {ScalarType::Float8_e8m0fnu, &reduce_small_float<c10::Float8_e8m0fnu>},
    {ScalarType::ComplexHalf, &reduce_complex<c10::Half, float>, ReduceType::F16},
    {ScalarType::ComplexFloat, &reduce_complex<float, float>, ReduceType::F32},
    {ScalarType::ComplexDouble, &reduce_complex<double, double>, ReduceType::F64},
};

}  // namespace

const char* reduction_name(Reduction op) {
  constexpr const char* names[] = {"sum", "product", "min", "max", "band", "bor", "bxor"};
  return names[int(op)];
}

Reduction reduction_of(std::string_view name) {
  for (int i = 0; i <= int(Reduction::kBxor); ++i)
    if (name == reduction_name(Reduction(i))) return Reduction(i);
  TORCH_CHECK_VALUE(false, "no reduction is called \"", name, "\"");
}

void reduce(Reduction op, ScalarType dtype, Pointers inputs, size_t n_inputs, Outputs outputs,
            size_t n_outputs, size_t count, double prescale, double postscale) {
  TORCH_CHECK(n_inputs > 0, "a reduction needs at least one input");
  const Call call{op, dtype, inputs, n_inputs, outputs, n_outputs, count, prescale, postscale};
  for (const Entry& entry : kEntries)
    if (entry.dtype == dtype) return entry.reduce(call, entry.type);
  unsupported(call);
}

void copy_bytes(void* destination, const void* source, size_t bytes) {
  if (bytes < kStreamBytes) {
    if (bytes != 0) std::memcpy(destination, source, bytes);
    return;
  }
  auto* to = static_cast<char*>(destination);
  const auto* from = static_cast<const char*>(source);
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  const ReduceTable& table = kernels::reduce_table();
  table.stream_copy(to + head, from + head, bytes - head);
  table.fence();
}

}  // namespace torch_neuronx::distributed
