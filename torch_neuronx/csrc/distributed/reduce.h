// Sums (and the like) of several arrays in one pass, and copies of large ones: what a collective
// does to memory. One thread each; the ranks of a host are the parallelism.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace torch_neuronx::distributed {

enum class Reduction : uint8_t { kSum, kProduct, kMin, kMax, kBand, kBor, kBxor };

/// "sum", "product", "min", "max", "band", "bor" or "bxor".
const char* reduction_name(Reduction op);
/// The reduction of that name; raises ValueError if there is none.
Reduction reduction_of(std::string_view name);

/// Writes the same `count` elements of `dtype` to every output:
///
///     output[i] = round(postscale * fold(prescale * inputs[0][i], prescale * inputs[1][i], ...))
///
/// folded from left to right. bfloat16, float16 and the 8-bit floating types are folded and scaled
/// in float32 and rounded once, as c10 converts them; float32 and float64 in their own type.
/// A postscale that is 1 over a whole number divides by that number, so an average is the sum
/// divided by the number of ranks as torch would divide it. Minimum and maximum propagate NaN.
///
/// Integers wrap; their prescale must be a whole number and their postscale 1 over a whole number,
/// by which is divided with truncation. Bool: sum, max and bor are "or"; product, min and band are
/// "and"; bxor is "exclusive or"; no scales. Complex numbers have sum and product. The bitwise
/// operations are for integers and bool.
///
/// An output may be one of the inputs; arrays must not overlap otherwise. Addresses need the
/// alignment of the element only. Outputs that are larger together than a core's cache are written
/// past it; everything is visible to other processors on return.
///
/// Throws c10::Error (a TypeError in Python) for an operation, or a scale, the dtype doesn't have.
void reduce(Reduction op, c10::ScalarType dtype, const void* const* inputs, size_t n_inputs,
            void* const* outputs, size_t n_outputs, size_t count, double prescale = 1.0,
            double postscale = 1.0);

/// memcpy that writes past the cache when `bytes` is large. The ranges must not overlap.
void copy_bytes(void* destination, const void* source, size_t bytes);

}  // namespace torch_neuronx::distributed
