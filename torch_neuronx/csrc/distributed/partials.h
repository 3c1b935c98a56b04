// A reduction in two steps: over the ranks of a host, and over the hosts' partial results.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "distributed/reduce.h"

namespace torch_neuronx::distributed {

/// What is computed: postscale * fold(prescale * input of every rank).
struct Folding {
  Reduction op = Reduction::kSum;
  c10::ScalarType dtype = c10::ScalarType::Float;
  double prescale = 1.0;
  double postscale = 1.0;

  /// The dtype of partial results. Sums and products of half precision and 8-bit floating types are
  /// kept in float32 until the last step, so that a result is rounded once and nothing overflows
  /// that the final scale (1/n of an average) would have brought back into range. Everything else
  /// is exact, or already rounded, in its own dtype.
  c10::ScalarType partial_dtype() const;
  size_t element_bytes() const;
  size_t partial_bytes() const;
  /// True if the partial result of one rank alone is its input, byte for byte.
  bool partial_is_input() const;
};

/// Scales `count` elements of each input and folds them, in order, to `out` of the partial dtype.
void fold_inputs(const Folding& folding, const std::vector<const char*>& inputs, char* out,
                 int64_t count);

/// Folds partial results, in order, scales and rounds them to `out` of the folding's dtype. `out`
/// may be one of the partial results if their dtype is its own.
void fold_partials(const Folding& folding, const std::vector<const char*>& partials, char* out,
                   int64_t count);

}  // namespace torch_neuronx::distributed
