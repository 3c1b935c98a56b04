// Matrix products: our tiles with an epilogue or plain, or ATen's operator where it is faster.
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include "gemm/aten_gemm.h"
#include "gemm/methods.h"
#include "kernels/parallel.h"
#include "memory/allocator.h"
#include "program/steps.h"
#include "registry/registry.h"

namespace torch_neuronx::program {
namespace {

using gemm::Matrix;
using gemm::Problem;

Matrix matrix_of(const View& view) {
  const Geometry& g = view.geometry;
  return {nullptr, g.sizes[1], g.sizes[2], g.strides[1], g.strides[2]};
}

Matrix transposed_of(const Matrix& x) {
  return {x.data, x.cols, x.rows, x.col_stride, x.row_stride};
}

bool contiguous(int64_t count, int64_t stride) { return stride == 1 || count == 1; }

// Stores a tile where the product itself cannot: other types, or gaps between columns.
struct OddStore {
  char* out;
  const char* c0;
  const Geometry* out_geometry;
  const Geometry* c0_geometry;
};

float load(const char* base, const Geometry& g, int64_t b, int64_t i, int64_t j) {
  const char* p = base + (b * g.strides[0] + i * g.strides[1] + j * g.strides[2]) * g.itemsize();
  switch (g.dtype) {
    case at::kFloat:
      return *reinterpret_cast<const float*>(p);
    case at::kBFloat16:
      return static_cast<float>(*reinterpret_cast<const c10::BFloat16*>(p));
    default:
      return static_cast<float>(*reinterpret_cast<const c10::Half*>(p));
  }
}

void store(char* base, const Geometry& g, int64_t b, int64_t i, int64_t j, float value) {
  char* p = base + (b * g.strides[0] + i * g.strides[1] + j * g.strides[2]) * g.itemsize();
  switch (g.dtype) {
    case at::kFloat:
      *reinterpret_cast<float*>(p) = value;
      break;
    case at::kBFloat16:
      *reinterpret_cast<c10::BFloat16*>(p) = static_cast<c10::BFloat16>(value);
      break;
    default:
      *reinterpret_cast<c10::Half*>(p) = static_cast<c10::Half>(value);
  }
}

void store_odd(void* const* buffers, int64_t batch, int64_t row0, int64_t rows, int64_t col0,
               int64_t cols, const float* tile, int64_t tile_stride) {
  const auto& to = *static_cast<const OddStore*>(buffers[0]);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      float value = tile[i * tile_stride + j];
      if (to.c0 != nullptr) value += load(to.c0, *to.c0_geometry, batch, row0 + i, col0 + j);
      store(to.out, *to.out_geometry, batch, row0 + i, col0 + j, value);
    }
  }
}

at::Tensor matrices(const Problem& p, const void* data, int64_t batch_stride, int64_t rows,
                    int64_t cols, int64_t row_stride, int64_t col_stride) {
  const auto options = at::TensorOptions().dtype(p.dtype);
  void* memory = const_cast<void*>(data);
  if (p.batch == 1) return at::from_blob(memory, {rows, cols}, {row_stride, col_stride}, options);
  return at::from_blob(memory, {p.batch, rows, cols}, {batch_stride, row_stride, col_stride},
                       options);
}
at::Tensor matrices(const Problem& p, const Matrix& x, int64_t batch_stride) {
  return matrices(p, x.data, batch_stride, x.rows, x.cols, x.row_stride, x.col_stride);
}

void multiply(const Problem& p, at::Tensor out) {
  const at::Tensor a = matrices(p, p.a, p.a_batch_stride), b = matrices(p, p.b, p.b_batch_stride);
  if (p.c0 == nullptr) {
    p.batch == 1 ? at::mm_out(out, a, b) : at::bmm_out(out, a, b);
    return;
  }
  const at::Tensor c0 =
      matrices(p, p.c0, p.c0_batch_stride, p.m, p.n, p.c0_row_stride, p.c0_col_stride);
  p.batch == 1 ? at::addmm_out(out, c0, a, b) : at::baddbmm_out(out, c0, a, b);
}

// For hosts without micro-kernels: the whole product in float32, then the epilogue over it.
void multiply_then_epilogue(const Problem& p) {
  const auto floats = [](at::Tensor t) { return t.to(at::kFloat); };
  at::Tensor product = at::matmul(floats(matrices(p, p.a, p.a_batch_stride)),
                                  floats(matrices(p, p.b, p.b_batch_stride)));
  if (p.c0 != nullptr) {
    product.add_(
        floats(matrices(p, p.c0, p.c0_batch_stride, p.m, p.n, p.c0_row_stride, p.c0_col_stride)));
  }
  product = product.contiguous();
  const float* sums = product.const_data_ptr<float>();
  constexpr int64_t kRows = 16;
  for (int64_t b = 0; b < p.batch; ++b) {
    kernels::parallel_chunks(p.m, kRows, [&](int64_t begin, int64_t end) {
      p.epilogue.function(p.epilogue.buffers, b, begin, end - begin, 0, p.n,
                          sums + (b * p.m + begin) * p.n, p.n);
    });
  }
}

// Buffers of an operand that is made; `along_k`: its function's columns are K.
gemm::Prologue prologue(const Frame& frame, const GemmStep::Made& made, bool along_k,
                        c10::SmallVector<void*, 4>& pointers) {
  if (made.function == nullptr) return {};
  pointers.resize(made.operands.size());
  resolve(frame, made.operands, pointers.data());
  return {made.function, pointers.data(), along_k};
}

// For hosts without micro-kernels: makes an operand in memory, as its View says.
at::Tensor make(gemm::Prologue& from, Matrix& x, bool by_rows, int64_t batch, int64_t batch_stride,
                at::ScalarType dtype) {
  if (from.function == nullptr) return {};
  at::Tensor memory = at::empty({batch, batch_stride}, at::TensorOptions().dtype(dtype));
  const int64_t rows = by_rows ? x.rows : x.cols, cols = by_rows ? x.cols : x.rows;
  constexpr int64_t kRows = 16;
  for (int64_t b = 0; b < batch; ++b) {
    char* to = static_cast<char*>(memory.data_ptr()) + b * batch_stride * memory.element_size();
    kernels::parallel_chunks(rows, kRows, [&](int64_t begin, int64_t end) {
      from.function(from.buffers, b, begin, end - begin, 0, cols,
                    to + begin * cols * memory.element_size(), cols);
    });
  }
  x.data = memory.data_ptr();
  from = {};
  return memory;
}

}  // namespace

void GemmStep::prepare() {
  Problem& p = problem;
  const Geometry &ga = a.geometry, &gb = b.geometry;
  p.dtype = ga.dtype;
  p.batch = ga.sizes[0];
  p.m = ga.sizes[1];
  p.k = ga.sizes[2];
  p.n = gb.sizes[2];
  p.a = matrix_of(a);
  p.b = matrix_of(b);
  p.a_batch_stride = ga.strides[0];
  p.b_batch_stride = gb.strides[0];
  if (c0 && c0->geometry.dtype == p.dtype) {
    p.c0_batch_stride = c0->geometry.strides[0];
    p.c0_row_stride = c0->geometry.strides[1];
    p.c0_col_stride = c0->geometry.strides[2];
    p.beta = 1.0F;
  }
  if (!out) return;
  const Geometry& go = out->geometry;
  const bool by_rows = contiguous(p.n, go.strides[2]) && (p.m == 1 || go.strides[1] >= p.n);
  const bool by_columns =
      !by_rows && contiguous(p.m, go.strides[1]) && (p.n == 1 || go.strides[2] >= p.m);
  const int64_t lines = by_rows ? p.m : p.n, length = by_rows ? p.n : p.m;
  const int64_t line = by_rows ? go.strides[1] : go.strides[2];
  // Matrices one after another, or side by side in the lines of each other (heads of attention).
  const bool apart = p.batch <= 1 || go.strides[0] >= (lines - 1) * line + length ||
                     (go.strides[0] >= length && line >= (p.batch - 1) * go.strides[0] + length);
  const bool one_type = go.dtype == p.dtype && (!c0 || c0->geometry.dtype == p.dtype);
  plain = one_type && apart && (by_rows || by_columns);
  transposed = plain && by_columns;
  if (transposed) {  // out^T = B^T A^T
    const Matrix a_transposed = transposed_of(p.a);
    p.a = transposed_of(p.b);
    p.b = a_transposed;
    std::swap(p.m, p.n);
    std::swap(p.a_batch_stride, p.b_batch_stride);
    std::swap(p.c0_row_stride, p.c0_col_stride);
  }
  p.out_row_stride = line;
  p.out_batch_stride = go.strides[0];
  if (!plain) p.beta = 0.0F;  // store_odd adds c0
}

void GemmStep::run(Frame& frame) const {
  if (out) frame.ensure(out->buffer);
  for (const Operand& operand : operands) {
    if (operand.written) frame.ensure(operand.buffer);
  }
  Problem p = problem;
  const Made &left = transposed ? made_b : made_a, &right = transposed ? made_a : made_b;
  c10::SmallVector<void*, 4> left_pointers, right_pointers;
  p.a_from = prologue(frame, left, left.by_columns == transposed, left_pointers);
  p.b_from = prologue(frame, right, right.by_columns != transposed, right_pointers);
  if (left.function == nullptr) p.a.data = frame.at(transposed ? b : a);
  if (right.function == nullptr) p.b.data = frame.at(transposed ? a : b);
  if (c0 && p.beta != 0.0F) p.c0 = frame.at(*c0);
  OddStore odd{};
  void* odd_buffers[1] = {&odd};
  c10::SmallVector<void*, 12> pointers(operands.size());
  if (epilogue != nullptr) {
    resolve(frame, operands, pointers.data());
    p.epilogue.function = epilogue;
    p.epilogue.buffers = pointers.data();
  } else if (plain) {
    p.out = frame.at(*out);
  } else {
    odd = {frame.at(*out), c0 ? frame.at(*c0) : nullptr, &out->geometry,
           c0 ? &c0->geometry : nullptr};
    p.epilogue.function = &store_odd;
    p.epilogue.buffers = odd_buffers;
  }
  // The packed form of B is kept under its content's number, which only whole allocations have.
  const bool keep =
      constant_b && !transposed && made_b.function == nullptr && frame.stable(b.buffer);
  registry::count_flops(2.0 * double(p.batch) * double(p.m) * double(p.n) * double(p.k));
  if (gemm::run_if_faster(p, keep ? generation_of(*frame.owner(b.buffer)) : 0)) return;

  std::optional<ScratchScope> scratch;
  if (frame.program().on_neuron()) scratch.emplace(frame.program().device);
  const at::DisableRecordFunctionGuard quiet;
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::DispatchKeySet({c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1}));
  const at::Tensor made_left =
      make(p.a_from, p.a, p.a_from.along_k, p.batch, p.a_batch_stride, p.dtype);
  const at::Tensor made_right =
      make(p.b_from, p.b, !p.b_from.along_k, p.batch, p.b_batch_stride, p.dtype);
  if (p.epilogue.function != nullptr) {
    if (p.m > 0 && p.n > 0) multiply_then_epilogue(p);
    return;
  }
  p = gemm::normalised(p);
  multiply(p, matrices(p, p.out, p.out_batch_stride, p.m, p.n, p.out_row_stride, 1));
}

}  // namespace torch_neuronx::program
