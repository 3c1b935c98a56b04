// Random numbers from the counter-based generator Philox4x32-10 (Salmon et al., SC'11).
//
// Element i of a fill depends on (seed, offset, i) and the parameters only: not on the number of
// threads, and, for everything computed without transcendental functions, not on the instruction
// set. Those with transcendental functions may differ between instruction sets in the last bits.
//
// One Philox block gives four 32-bit words and is named by a 128-bit counter: its upper half is
// offset / 4, its lower half counts the blocks of the fill from 0. So fills at different offsets,
// however close and of whatever length and dtype, have no block in common, and a caller advances
// its offset by 4 for each. DTensor relies on it: it gives the shards of a tensor offsets that are
// only as far apart as a shard has elements, rounded to multiples of 4.
//
// 16 consecutive blocks make a group of 64 words, word j of block 16 g + l being number
// 64 g + 16 j + l of the stream (so that vectors of blocks need no transposition). Element i of a
// 32-bit distribution uses word i; element i of a 64-bit distribution uses the words of rows 2 h
// and 2 h + 1 of its group, with h = (i / 16) % 2: group i / 32, lane i % 16, first word low.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "kernels/isa.h"

namespace torch_neuronx::kernels {

struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0;  // a multiple of 4
};

/// One block: out = Philox4x32-10(counter, key). For tests.
void philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/// The raw stream of 32-bit words.
void philox_words(PhiloxState state, uint32_t* out, int64_t n);

/// Uniform on [from, to): 24 random bits for Float, 53 for Double; BFloat16 and Half are rounded
/// from Float. Never gives `to` unless from == to.
void philox_uniform(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double from,
                    double to);

/// mean + std * z by Box-Muller; |z| < 6.7 in Float and 16-bit types, < 9.3 in Double.
void philox_normal(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double mean,
                   double std);

/// exp(mean + std * z).
void philox_log_normal(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double mean,
                       double std);

/// -log(u) / lambda, u in (0, 1]; positive before rounding to the dtype.
void philox_exponential(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n,
                        double lambda);

/// median + sigma * tan(pi (u - 1/2)).
void philox_cauchy(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double median,
                   double sigma);

/// Number of trials until the first success, >= 1. Integral types too (values clamped to the type).
void philox_geometric(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double p);

/// 1 with probability p, else 0, in any real dtype or Bool. The probability is p rounded to 32
/// bits.
void philox_bernoulli(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n, double p);

/// The same with a probability per element; p_dtype is Float, Double, BFloat16 or Half. Gives
/// exactly what philox_bernoulli gives for a constant p. Values outside [0, 1] are the caller's to
/// refuse.
void philox_bernoulli_tensor(PhiloxState state, c10::ScalarType dtype, void* out,
                             c10::ScalarType p_dtype, const void* p, int64_t n);

/// Integers from base .. base + range - 1 in any real dtype or Bool; range 0 stands for 2^64.
/// 64 random bits per element (32 when range <= 2^16), scaled by multiplication; the probabilities
/// of two values differ by a factor of at most 1 + range / 2^64 (1 + 2^-16).
void philox_random_from_to(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n,
                           uint64_t range, int64_t base);

/// Tensor.random_(): all of an integral type's non-negative values, 0 and 1 for Bool, and
/// 0 .. 2^digits for floating-point types (2^24, 2^53, 2^8, 2^11).
void philox_random_full(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n);

/// A random permutation of 0 .. n - 1 (Fisher-Yates; serial by nature) in any integral or
/// floating-point dtype that can hold n - 1.
void philox_randperm(PhiloxState state, c10::ScalarType dtype, void* out, int64_t n);

/// Serial functions over whole groups of 64 words, one table per instruction set. `block` is the
/// number of the first block in its fill.
struct PhiloxTable {
  using Words = void (*)(PhiloxState state, uint64_t block, int64_t groups, uint32_t* out);
  /// a, b: the distribution's parameters.
  using Fill = void (*)(PhiloxState state, uint64_t block, int64_t groups, float a, float b,
                        float* out);
  /// out[i] = word < threshold.
  using Bernoulli = void (*)(PhiloxState state, uint64_t block, int64_t groups, uint64_t threshold,
                             uint8_t* out);
  using Round = void (*)(const float* x, void* out, int64_t n);
  /// Box-Muller in Double: a = u in (0, 1], b = angle / pi in [-1, 1] become the two normals; n is
  /// a multiple of 8.
  using Pairs = void (*)(double* a, double* b, int64_t n);
  Words words;
  Fill uniform;      // a = from, b = to - from
  Fill normal;       // a = mean, b = std
  Fill log_normal;   // a = mean, b = std
  Fill exponential;  // a = 1 / lambda
  Fill cauchy;       // a = median, b = sigma
  Fill geometric;    // a = 1 / log(1 - p)
  Bernoulli bernoulli;
  Pairs normal_pairs;
  Round round[3];  // by kernel_dtype_index()
};

TN_DECLARE_TABLES(PhiloxTable, philox_table)

}  // namespace torch_neuronx::kernels
