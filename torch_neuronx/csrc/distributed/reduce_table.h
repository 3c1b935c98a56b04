// The serial loops under reduce.h, one table per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"

namespace torch_neuronx::kernels {

/// Types that the vector loops know. Everything else is built on these in reduce.cpp.
enum class ReduceType : uint8_t {
  F32,
  BF16,
  F16,
  F64,
  U8,
  I8,
  U16,
  I16,
  U32,
  I32,
  U64,
  I64,
  kCount
};

/// What happens to inputs before, and to the result after the fold.
enum class ReduceScale : uint8_t { None, Multiply, Divide, kCount };

struct ReduceFactors {
  double pre = 1, post = 1;  // floating types; `post` divides in ReduceScale::Divide
  int64_t int_pre = 1;       // integers
  uint64_t int_divisor = 1;
};

struct ReduceTable {
  /// outputs[j][0..bytes) for all j. With `stream`, every output is aligned to 64 bytes and written
  /// past the cache; the caller orders those writes with `fence`.
  using Fold = void (*)(const void* const* inputs, size_t n_inputs, void* const* outputs,
                        size_t n_outputs, size_t bytes, const ReduceFactors& factors, bool stream);
  /// sum, product, min, max. Integers have no Multiply.
  Fold arithmetic[4][int(ReduceType::kCount)][int(ReduceScale::kCount)];
  /// and, or, exclusive or, of bytes.
  Fold bitwise[3];
  /// Copies past the cache; `destination` is aligned to 64 bytes. Needs `fence`, too.
  void (*stream_copy)(void* destination, const void* source, size_t bytes);
  void (*fence)();
};

TN_DECLARE_TABLES(ReduceTable, reduce_table)

}  // namespace torch_neuronx::kernels
