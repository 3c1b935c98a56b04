#include "kernels/pointwise.h"

#include <c10/util/Exception.h>

#include "kernels/parallel.h"

namespace torch_neuronx::kernels {
namespace {

// Elements per task: large enough to hide fetching the next one, small enough to balance threads.
constexpr int64_t kChunk = 32768;

const char* at_byte(const void* p, int64_t bytes) { return static_cast<const char*>(p) + bytes; }
char* at_byte(void* p, int64_t bytes) { return static_cast<char*>(p) + bytes; }

int64_t item_size(int dtype_index) { return dtype_index == 0 ? 4 : 2; }

}  // namespace

int kernel_dtype_index(c10::ScalarType dtype, const char* what) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return 0;
    case c10::ScalarType::BFloat16:
      return 1;
    case c10::ScalarType::Half:
      return 2;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, '"', what, "\" not implemented for '",
                                  c10::toString(dtype), "'");
  }
}

bool pointwise_supports(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Float || dtype == c10::ScalarType::BFloat16 ||
         dtype == c10::ScalarType::Half;
}

void unary(UnaryOp op, c10::ScalarType dtype, const void* x, void* out, int64_t n) {
  const int index = kernel_dtype_index(dtype, "unary");
  const int64_t size = item_size(index);
  const auto f = pointwise_table().unary[int(op)][index];
  parallel_chunks(n, kChunk, [&](int64_t begin, int64_t end) {
    f(at_byte(x, begin * size), at_byte(out, begin * size), end - begin);
  });
}

void unary_grad(UnaryGradOp op, c10::ScalarType dtype, const void* grad, const void* saved,
                void* out, int64_t n) {
  const int index = kernel_dtype_index(dtype, "unary_grad");
  const int64_t size = item_size(index);
  const auto f = pointwise_table().grad[int(op)][index];
  parallel_chunks(n, kChunk, [&](int64_t begin, int64_t end) {
    f(at_byte(grad, begin * size), at_byte(saved, begin * size), at_byte(out, begin * size),
      end - begin);
  });
}

void binary(BinaryOp op, c10::ScalarType dtype, const void* a, const void* b, void* out, int64_t n,
            double alpha) {
  const int index = kernel_dtype_index(dtype, "binary");
  const int64_t size = item_size(index);
  const auto f = pointwise_table().binary[int(op)][index];
  parallel_chunks(n, kChunk, [&](int64_t begin, int64_t end) {
    f(at_byte(a, begin * size), at_byte(b, begin * size), at_byte(out, begin * size), end - begin,
      static_cast<float>(alpha));
  });
}

void binary_scalar(BinaryOp op, c10::ScalarType dtype, const void* a, double scalar, void* out,
                   int64_t n, double alpha, bool reverse) {
  const int index = kernel_dtype_index(dtype, "binary_scalar");
  const int64_t size = item_size(index);
  const PointwiseTable& table = pointwise_table();
  const auto f = reverse ? table.scalar_reverse[int(op)][index] : table.scalar[int(op)][index];
  parallel_chunks(n, kChunk, [&](int64_t begin, int64_t end) {
    f(at_byte(a, begin * size), static_cast<float>(scalar), at_byte(out, begin * size), end - begin,
      static_cast<float>(alpha));
  });
}

void binary_row(BinaryOp op, c10::ScalarType dtype, const void* a, const void* row, void* out,
                int64_t rows, int64_t cols, double alpha, bool reverse) {
  const int index = kernel_dtype_index(dtype, "binary_row");
  const int64_t size = item_size(index);
  const auto f = pointwise_table().binary[int(op)][index];
  if (cols <= 0) {
    return;
  }
  parallel_chunks(rows, std::max<int64_t>(1, kChunk / cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const void* x = at_byte(a, r * cols * size);
      f(reverse ? row : x, reverse ? x : row, at_byte(out, r * cols * size), cols,
        static_cast<float>(alpha));
    }
  });
}

}  // namespace torch_neuronx::kernels
