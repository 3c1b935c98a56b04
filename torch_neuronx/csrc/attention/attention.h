// Attention on raw host memory: out = softmax(scale * query key^T + mask) value, and its gradients.
//
// Flash attention over the register tiles of csrc/gemm: scores exist for one block of queries and
// keys at a time. Working memory belongs to the threads (gemm/scratch.h): under 2 MB each for the
// forward pass, five times the keys of one head in float32 for the backward pass. Results depend on
// the shapes alone, never on the number of threads. A query that may see no key gives zeros, as
// with ATen's kernel.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

namespace torch_neuronx::attention {

// Strides count elements and may be anything, zero for a broadcast included; the elements of one
// row are neighbours.
struct Strides {
  int64_t batch = 0, head = 0, row = 0;
};
template <class T>
struct View {
  T* data = nullptr;
  Strides strides;
};
using Input = View<const void>;  // of the problem's dtype
using Output = View<void>;       // the same; no two rows may share memory, nor with an input

// Added to the scaled scores; kBool: false hides the key. No data: no mask. Shape [batch, heads,
// queries, keys] through strides, of which any may be zero.
struct Mask {
  const void* data = nullptr;
  at::ScalarType dtype = at::kFloat;  // kFloat, kBFloat16, kHalf or kBool
  int64_t batch = 0, head = 0, row = 0, col = 0;
};

// Keys and values that lie in pages: row i of either is row i % size of page table[i / size]. Pages
// are `key` and `value` elements apart, and the strides of the problem's key and value are those
// within a page. No table: all rows are a stride apart.
struct Pages {
  const int32_t* table = nullptr;  // checked by the caller: every page that `keys` rows need exists
  int64_t size = 0;                // rows
  int64_t key = 0, value = 0;
};

struct Problem {
  at::ScalarType dtype = at::kFloat;  // kFloat, kBFloat16 or kHalf
  int64_t batch = 0;
  int64_t heads = 0;     // of the queries, a multiple of ...
  int64_t kv_heads = 0;  // heads of key and value: consecutive query heads share one
  int64_t queries = 0, keys = 0;
  int64_t width = 0;        // of a row of query and key
  int64_t value_width = 0;  // of a row of value and out
  Input query, key, value;
  Mask mask;
  bool causal = false;  // query i sees keys 0 .. i + shift, whatever the two lengths are
  int64_t shift = 0;    // not negative; the backward pass takes 0 alone
  Pages pages;          // a batch of one, and no backward pass
  float scale = 1.0F;
};

// How many queries meet a key, in all heads; a mask changes nothing.
inline double pairs(const Problem& p) {
  double met = double(p.queries) * double(p.keys);
  if (p.causal) {
    // The first queries see a key more each, up to all.
    const int64_t left = p.keys - p.shift;
    const auto rising = double(left < 0 ? 0 : left < p.queries ? left : p.queries);
    met = rising * (rising + 1) / 2 + rising * double(p.shift) +
          (double(p.queries) - rising) * double(p.keys);
  }
  return met * double(p.batch) * double(p.heads);
}

// True if this host has our kernels for the dtype and they take the sizes (widths up to 256).
bool supported(const Problem& p);

// out: [batch, heads, queries, value_width]. logsumexp: of the scaled and masked scores, [batch,
// heads, queries], zero where no key is seen; no data: not wanted. An unsupported problem is an
// error, as it is below.
void forward(const Problem& p, const Output& out, const View<float>& logsumexp);

// Several calls of forward(), of which those of few queries are spread over the threads together:
// waking the threads for each of many short sequences takes longer than the sequence.
struct ForwardCall {
  Problem problem;
  Output out;
  View<float> logsumexp;
};
void forward_each(const std::vector<ForwardCall>& calls);

struct BackwardArgs {
  Input grad_out, out;
  View<const float> logsumexp;              // as forward() gave it
  Output grad_query, grad_key, grad_value;  // shaped as query, key and value
};
void backward(const Problem& p, const BackwardArgs& args);

}  // namespace torch_neuronx::attention
