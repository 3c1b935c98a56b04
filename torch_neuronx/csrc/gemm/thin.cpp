// The dot and stream methods: one side of the product has at most kSmallSide rows, so the time goes
// into reading the other operand. It is read once, where it is, in the order of its memory.
#include "gemm/methods.h"
#include "gemm/scratch.h"

namespace torch_neuronx::gemm {
namespace {

constexpr int64_t kPage = 4096;  // bytes
constexpr double kFar = 4e6;     // bytes of an operand that the second-level caches don't keep
constexpr int64_t kPad = 32;     // floats between rows of sums: rows a page apart share cache sets

// The large operand with its lines (columns of B, or rows of A) and the small one with its rows.
struct Sides {
  bool large_is_b;
  Matrix large;  // as lines x k
  Matrix small;  // as rows x k
  int64_t large_batch_stride, small_batch_stride;
};

Sides sides_of(const Problem& p, bool large_is_b) {
  const Matrix columns_of_b{p.b.data, p.n, p.k, p.b.col_stride, p.b.row_stride};
  if (large_is_b) return {true, columns_of_b, p.a, p.b_batch_stride, p.a_batch_stride};
  return {false, p.a, columns_of_b, p.a_batch_stride, p.b_batch_stride};
}

bool fits(const Sides& s, bool along_k) {
  return s.small.rows <= kSmallSide && (along_k ? contiguous(s.large.cols, s.large.col_stride)
                                                : contiguous(s.large.rows, s.large.row_stride));
}

// B is preferred as the large side: then results are stored row by row.
bool choose_sides(const Problem& p, bool along_k, Sides& sides) {
  sides = sides_of(p, p.m <= p.n);
  if (fits(sides, along_k)) return true;
  sides = sides_of(p, p.m > p.n);
  return fits(sides, along_k);
}

struct SmallRows {
  const char* data;
  int64_t batch_bytes, row_bytes;
};

// The small operand in the form the kernel multiplies: where it is, or converted once.
SmallRows prepare_small(const Problem& p, const Sides& s, bool pairs) {
  const Element element = element_of(p.dtype);
  const int64_t size = element_size(element);
  if (contiguous(s.small.cols, s.small.col_stride) && (pairs || element == Element::kF32)) {
    return {static_cast<const char*>(s.small.data), s.small_batch_stride * size,
            s.small.row_stride * size};
  }
  const int64_t unit = pairs ? 2 : 1;
  const int64_t row_bytes = (p.k + unit - 1) / unit * 4;
  SmallRows rows{nullptr, row_bytes * s.small.rows, row_bytes};
  char* data = scratch(Slot::kThinSmall, size_t(p.batch) * rows.batch_bytes);
  rows.data = data;
  for_tasks(p.batch, worth_threads(0, double(p.batch) * rows.batch_bytes), [&](int64_t b) {
    const PackArgs args{element,
                        address(p, s.small, s.small_batch_stride, b, 0, 0),
                        s.small.col_stride * size,
                        s.small.row_stride * size,
                        p.k,
                        s.small.rows,
                        reinterpret_cast<uint32_t*>(data + b * rows.batch_bytes),
                        row_bytes / 4};
    if (pairs) {
      pack_a_rows_portable(args, 2);
    } else {
      to_f32_rows(args);
    }
  });
  return rows;
}

// The same as columns of pairs.
SmallRows small_columns(const Problem& p, const Sides& s, const Kernels& kernels,
                        const SmallRows& rows) {
  constexpr int64_t kUnits = 16;  // of K, which are whole
  const int64_t units = (p.k + 2 * kUnits - 1) / (2 * kUnits) * kUnits;
  const int64_t unit_bytes = s.small.rows * 4;
  SmallRows columns{nullptr, units * unit_bytes, unit_bytes};
  char* data = scratch(Slot::kThinColumns, size_t(p.batch) * columns.batch_bytes);
  columns.data = data;
  for_tasks(p.batch, worth_threads(0, double(p.batch) * columns.batch_bytes), [&](int64_t b) {
    kernels.pack_columns(
        {element_of(p.dtype), rows.data + b * rows.batch_bytes, 2, rows.row_bytes, p.k,
         s.small.rows, reinterpret_cast<uint32_t*>(data + b * columns.batch_bytes), s.small.rows});
  });
  return columns;
}

void run_thin(const Problem& p, bool along_k) {
  const Kernels& kernels = *kernels_for(p.dtype);
  Sides s{};
  TORCH_INTERNAL_ASSERT(choose_sides(p, along_k, s));
  const Element element = element_of(p.dtype);
  const int64_t size = element_size(element);
  const auto in_tiles = along_k ? kernels.dot_columns : kernels.stream_pairs;
  const bool tiles = in_tiles != nullptr;
  const auto kernel = tiles ? in_tiles : along_k ? kernels.dot : kernels.stream;
  SmallRows small = prepare_small(p, s, kernels.unit == 2 && (along_k || tiles));
  if (along_k && tiles) small = small_columns(p, s, kernels, small);
  const bool direct = along_k && s.large_is_b && writes_directly(p) && !reads_c0(p);

  const int64_t lines = s.large.rows;
  const double bytes = double(p.batch) * lines * p.k * size;
  const double multiplications = double(p.batch) * p.m * p.n * p.k;
  const bool parallel = worth_threads(multiplications, bytes);
  // A task reads some 64 KiB or more. Streaming wants runs of memory as long as its sums stay in
  // the first cache levels (32 KiB of them here): every run costs the prefetcher a new start.
  const int64_t shortest = along_k ? 16 : 64;
  const int64_t longest = along_k ? 256 : 8192 / s.small.rows;
  const int64_t share = lines * p.batch / ((along_k ? 4 : 2) * at::get_num_threads());
  const int64_t enough = 65536 / std::max<int64_t>(1, p.k * size);
  int64_t chunk = std::clamp(std::max(share, enough), shortest, longest) / 16 * 16;
  chunk = std::max(chunk, shortest);
  const int64_t chunks = (lines + chunk - 1) / chunk;

  for_tasks(p.batch * chunks, parallel, [&](int64_t task) {
    const int64_t b = task / chunks, l0 = task % chunks * chunk;
    const int64_t count = std::min(chunk, lines - l0);
    ThinArgs args{element,
                  address(p, s.large, s.large_batch_stride, b, l0, 0),
                  s.large.col_stride * size,
                  s.large.row_stride * size,
                  small.data + b * small.batch_bytes,
                  small.row_bytes,
                  p.k,
                  count,
                  s.small.rows,
                  nullptr,
                  chunk + kPad};
    args.far = bytes > kFar;
    if (direct) {
      args.result = static_cast<float*>(p.out) + b * p.out_batch_stride + l0;
      args.result_row = p.out_row_stride;
    } else {
      char* memory = scratch(Slot::kThinResult,
                             size_t(s.small.rows) * args.result_row * sizeof(float) + kPage);
      // Streaming stores sums and loads operands at the same pace. If their addresses agreed in
      // the low 12 bits, the processor would take a load for one that waits for a store.
      const auto offset =
          reinterpret_cast<uintptr_t>(args.large) + kPage / 4 - reinterpret_cast<uintptr_t>(memory);
      args.result = reinterpret_cast<float*>(memory + offset % kPage / 64 * 64);
    }
    kernel(args);
    if (direct) return;
    if (s.large_is_b) {
      finish_block(p, b, 0, p.m, l0, count, args.result, args.result_row, 1);
    } else {
      finish_block(p, b, l0, count, 0, p.n, args.result, 1, args.result_row);
    }
  });
}

}  // namespace

bool applicable(const Problem& p, Method method) {
  const Kernels* kernels = kernels_for(p.dtype);
  if (p.k == 0 || kernels == nullptr) return false;
  if (makes_operand(p)) return method == Method::kPanel;
  Sides s{};
  switch (method) {
    case Method::kAten:
      return false;
    case Method::kPanel:
      return true;
    case Method::kDot:
      return kernels->thin && choose_sides(p, true, s);
    case Method::kStream:
      return kernels->thin && choose_sides(p, false, s);
  }
  return false;
}

void run_dot(const Problem& p) { run_thin(p, true); }
void run_stream(const Problem& p) { run_thin(p, false); }

}  // namespace torch_neuronx::gemm
