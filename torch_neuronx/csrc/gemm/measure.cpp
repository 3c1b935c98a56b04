// Times our methods and ATen's operator against each other on made-up operands.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include <chrono>
#include <limits>

#include "gemm/methods.h"
#include "gemm/probe.h"
#include "gemm/scratch.h"

namespace torch_neuronx::gemm {
namespace {

// Bounds of one made-up product: about half a millisecond of arithmetic and a few MiB of memory.
constexpr double kMaxMultiplications = 48e6;
constexpr int64_t kMaxBytes = int64_t(6) << 20;
constexpr int64_t kSmallestCut = 128;  // no dimension is cut below this
// Rounds over all methods of a class: the fastest of each is kept, so that one disturbed by other
// work on the machine does not decide. Two are made even if they exceed the budget.
constexpr int kRounds = 8, kLeastRounds = 2;
constexpr double kBudgetUs = 4000;

double now_us() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(since).count();
}

struct Sizes {
  int64_t batch, m, n, k;

  int64_t elements() const { return batch * (m * k + k * n + m * n); }
  double multiplications() const { return double(batch) * m * n * k; }
};

Sizes cut(const Problem& p) {
  const int64_t size = element_size(element_of(p.dtype));
  Sizes s{p.batch, p.m, p.n, p.k};
  while (s.multiplications() > kMaxMultiplications || s.elements() * size > kMaxBytes) {
    if (s.batch > 4) {
      s.batch /= 2;
      continue;
    }
    int64_t* longest = std::max({&s.m, &s.n, &s.k}, [](auto* x, auto* y) { return *x < *y; });
    if (*longest <= kSmallestCut) break;
    // Odd sizes stay odd, since their tails are part of what is measured.
    *longest = *longest / 2 | (*longest & 1);
  }
  return s;
}

// A made-up operand with its neighbours in the same direction as the real one's.
Matrix operand(char* data, int64_t rows, int64_t cols, const Matrix& like) {
  const bool by_rows = contiguous(like.cols, like.col_stride);
  const bool by_columns = !by_rows && contiguous(like.rows, like.row_stride);
  if (by_rows) return {data, rows, cols, cols, 1};
  if (by_columns) return {data, rows, cols, 1, rows};
  return {data, rows, cols, 2 * cols, 2};
}

at::Tensor tensor_of(const Problem& p, const Matrix& x, int64_t batch_stride) {
  const auto options = at::TensorOptions().dtype(p.dtype);
  return at::from_blob(const_cast<void*>(x.data), {p.batch, x.rows, x.cols},
                       {batch_stride, x.row_stride, x.col_stride}, options);
}

struct AtenProduct {
  at::Tensor out, a, b;

  explicit AtenProduct(const Problem& p)
      : out(tensor_of(p, {p.out, p.m, p.n, p.n, 1}, p.m * p.n)),
        a(tensor_of(p, p.a, p.a_batch_stride)),
        b(tensor_of(p, p.b, p.b_batch_stride)) {
    if (p.batch == 1) {
      for (at::Tensor* t : {&out, &a, &b}) *t = t->squeeze(0);
    }
  }
  void operator()() {
    if (a.dim() == 2) {
      at::mm_out(out, a, b);
    } else {
      at::bmm_out(out, a, b);
    }
  }
};

}  // namespace

std::vector<Timing> measure(const Problem& like, const std::vector<Method>& methods) {
  const Sizes s = cut(like);
  const int64_t size = element_size(element_of(like.dtype));
  const int64_t spread_a =
      contiguous(like.k, like.a.col_stride) || contiguous(like.m, like.a.row_stride) ? 1 : 2;
  const int64_t spread_b =
      contiguous(like.n, like.b.col_stride) || contiguous(like.k, like.b.row_stride) ? 1 : 2;
  const auto padded = [](int64_t bytes) { return (bytes + 127) / 64 * 64; };
  const int64_t a_batch = spread_a * spread_a * s.m * s.k;
  const int64_t b_batch = spread_b * spread_b * s.k * s.n;
  const int64_t a_bytes = padded(s.batch * a_batch * size);
  const int64_t b_bytes = padded(s.batch * b_batch * size);
  const int64_t out_bytes = padded(s.batch * s.m * s.n * size);
  char* memory = scratch(Slot::kProbe, size_t(a_bytes + b_bytes + out_bytes));
  // Small normal numbers in all three formats: 0.0078, 0.0078 and 1.
  auto* words = reinterpret_cast<uint16_t*>(memory);
  std::fill(words, words + (a_bytes + b_bytes) / 2, uint16_t(0x3c00));

  Problem p;
  p.dtype = like.dtype;
  p.batch = s.batch;
  p.m = s.m;
  p.n = s.n;
  p.k = s.k;
  p.a = operand(memory, s.m, s.k, like.a);
  p.b = operand(memory + a_bytes, s.k, s.n, like.b);
  p.a_batch_stride = a_batch;
  p.b_batch_stride = like.b_batch_stride == 0 ? 0 : b_batch;
  p.out = memory + a_bytes + b_bytes;
  p.out_row_stride = s.n;
  p.out_batch_stride = s.m * s.n;

  // The measurement is not a call of the user's: no autograd, no profiler.
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::DisableRecordFunctionGuard no_profiler;
  AtenProduct aten(p);
  std::vector<Timing> timings;
  for (const Method method : methods) {
    if (method == Method::kAten || applicable(p, method)) {
      timings.push_back({method, std::numeric_limits<double>::infinity()});
    }
  }
  const auto once = [&](Method method) {
    const double start = now_us();
    if (method == Method::kAten) {
      aten();
    } else {
      run_normalised(p, method);
    }
    return now_us() - start;
  };
  // Not counted: pages are faulted in and oneDNN generates code for its shape.
  for (const Timing& timing : timings) once(timing.method);
  double spent = 0;
  for (int round = 0; round < kRounds && (round < kLeastRounds || spent < kBudgetUs); ++round) {
    for (Timing& timing : timings) {
      const double took = once(timing.method);
      timing.microseconds = std::min(timing.microseconds, took);
      spent += took;
    }
  }
  return timings;
}

}  // namespace torch_neuronx::gemm
