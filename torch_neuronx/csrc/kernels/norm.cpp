#include "kernels/norm.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "kernels/parallel.h"
#include "kernels/pointwise.h"

namespace torch_neuronx::kernels {
namespace {

// Elements per task; a task is whole rows.
constexpr int64_t kTaskElements = 32768;
// Weight gradients are summed over at most this many blocks of rows, whatever the thread count.
constexpr int64_t kGradBlocks = 16;

struct Rows {
  int64_t bytes;  // per row
  const char* at(const void* p, int64_t row) const {
    return p == nullptr ? nullptr : static_cast<const char*>(p) + row * bytes;
  }
  char* at(void* p, int64_t row) const {
    return p == nullptr ? nullptr : static_cast<char*>(p) + row * bytes;
  }
};

Rows rows_of(int dtype_index, int64_t cols) { return {cols * (dtype_index == 0 ? 4 : 2)}; }

int weight_index(c10::ScalarType dtype, c10::ScalarType weight_dtype, const char* what) {
  TORCH_CHECK(weight_dtype == dtype || weight_dtype == c10::ScalarType::Float, what,
              ": weights must be ", c10::toString(dtype), " like the input, or Float, got ",
              c10::toString(weight_dtype));
  return weight_dtype == dtype ? 0 : 1;
}

template <class Body>
void each_row(int64_t rows, int64_t cols, int64_t scratch, const Body& body) {
  if (rows <= 0 || cols <= 0) {
    return;
  }
  parallel_chunks(rows, std::max<int64_t>(1, kTaskElements / cols),
                  [&](int64_t begin, int64_t end) {
                    thread_local std::vector<float> buffer;
                    if (static_cast<int64_t>(buffer.size()) < scratch) {
                      buffer.resize(scratch);
                    }
                    for (int64_t row = begin; row < end; ++row) {
                      body(row, buffer.data());
                    }
                  });
}

struct NormGradArgs {
  c10::ScalarType weight_dtype;
  const void *grad_out, *x;
  const float *mean, *rstd;
  const void* weight;
  void *grad_in, *grad_weight, *grad_bias;
  int64_t rows, cols;
};

void norm_backward(NormTable::NormGrad f, int dtype_index, const NormGradArgs& a) {
  const Rows row_of = rows_of(dtype_index, a.cols);
  const bool wants_weights = a.grad_weight != nullptr || a.grad_bias != nullptr;
  const auto run = [&](int64_t row, float* grad_weight, float* grad_bias) {
    f(row_of.at(a.grad_out, row), row_of.at(a.x, row), a.mean ? a.mean[row] : 0.0f, a.rstd[row],
      a.weight, row_of.at(a.grad_in, row), grad_weight, grad_bias, a.cols);
  };
  if (!wants_weights) {
    each_row(a.rows, a.cols, 0, [&](int64_t row, float*) { run(row, nullptr, nullptr); });
    return;
  }
  const int64_t per_block = std::max<int64_t>(1, (a.rows + kGradBlocks - 1) / kGradBlocks);
  const int64_t blocks = (a.rows + per_block - 1) / per_block;
  // [block][weight, bias][cols]
  std::vector<float> partial(static_cast<size_t>(std::max<int64_t>(1, blocks) * 2 * a.cols), 0.0f);
  parallel_chunks(blocks, 1, [&](int64_t block, int64_t) {
    float* grad_weight = partial.data() + block * 2 * a.cols;
    const int64_t end = std::min(a.rows, (block + 1) * per_block);
    for (int64_t row = block * per_block; row < end; ++row) {
      run(row, a.grad_weight ? grad_weight : nullptr, a.grad_bias ? grad_weight + a.cols : nullptr);
    }
  });
  for (int64_t block = 1; block < blocks; ++block) {
    for (int64_t i = 0; i < 2 * a.cols; ++i) {
      partial[i] += partial[block * 2 * a.cols + i];
    }
  }
  const auto convert = norm_table().from_float[kernel_dtype_index(a.weight_dtype, "norm_backward")];
  if (a.grad_weight != nullptr) {
    convert(partial.data(), a.grad_weight, a.cols);
  }
  if (a.grad_bias != nullptr) {
    convert(partial.data() + a.cols, a.grad_bias, a.cols);
  }
}

}  // namespace

void softmax(c10::ScalarType dtype, const void* x, void* out, int64_t rows, int64_t cols,
             bool log) {
  const int index = kernel_dtype_index(dtype, "softmax");
  const NormTable& table = norm_table();
  const auto f = log ? table.log_softmax[index] : table.softmax[index];
  const Rows row_of = rows_of(index, cols);
  each_row(rows, cols, index == 0 || log ? 0 : cols, [&](int64_t row, float* scratch) {
    f(row_of.at(x, row), row_of.at(out, row), cols, scratch);
  });
}

void softmax_backward(c10::ScalarType dtype, const void* grad_out, const void* y, void* grad_in,
                      int64_t rows, int64_t cols, bool log) {
  const int index = kernel_dtype_index(dtype, "softmax_backward");
  const NormTable& table = norm_table();
  const auto f = log ? table.log_softmax_grad[index] : table.softmax_grad[index];
  const Rows row_of = rows_of(index, cols);
  each_row(rows, cols, 0, [&](int64_t row, float*) {
    f(row_of.at(grad_out, row), row_of.at(y, row), row_of.at(grad_in, row), cols);
  });
}

void layer_norm(c10::ScalarType dtype, c10::ScalarType weight_dtype, const void* x,
                const void* weight, const void* bias, double eps, void* out, float* mean,
                float* rstd, int64_t rows, int64_t cols) {
  const int index = kernel_dtype_index(dtype, "layer_norm");
  const auto f = norm_table().layer_norm[index][weight_index(dtype, weight_dtype, "layer_norm")];
  const Rows row_of = rows_of(index, cols);
  each_row(rows, cols, 0, [&](int64_t row, float* scratch) {
    f(row_of.at(x, row), weight, bias, static_cast<float>(eps), row_of.at(out, row), mean + row,
      rstd + row, cols, scratch);
  });
}

void layer_norm_backward(c10::ScalarType dtype, c10::ScalarType weight_dtype, const void* grad_out,
                         const void* x, const float* mean, const float* rstd, const void* weight,
                         void* grad_in, void* grad_weight, void* grad_bias, int64_t rows,
                         int64_t cols) {
  const int index = kernel_dtype_index(dtype, "layer_norm_backward");
  const int w = weight_index(dtype, weight_dtype, "layer_norm_backward");
  norm_backward(
      norm_table().layer_norm_grad[index][w], index,
      {weight_dtype, grad_out, x, mean, rstd, weight, grad_in, grad_weight, grad_bias, rows, cols});
}

void rms_norm(c10::ScalarType dtype, c10::ScalarType weight_dtype, const void* x,
              const void* weight, double eps, void* out, float* rstd, int64_t rows, int64_t cols) {
  const int index = kernel_dtype_index(dtype, "rms_norm");
  const auto f = norm_table().rms_norm[index][weight_index(dtype, weight_dtype, "rms_norm")];
  const Rows row_of = rows_of(index, cols);
  each_row(rows, cols, 0, [&](int64_t row, float* scratch) {
    f(row_of.at(x, row), weight, nullptr, static_cast<float>(eps), row_of.at(out, row), nullptr,
      rstd + row, cols, scratch);
  });
}

void rms_norm_backward(c10::ScalarType dtype, c10::ScalarType weight_dtype, const void* grad_out,
                       const void* x, const float* rstd, const void* weight, void* grad_in,
                       void* grad_weight, int64_t rows, int64_t cols) {
  const int index = kernel_dtype_index(dtype, "rms_norm_backward");
  const int w = weight_index(dtype, weight_dtype, "rms_norm_backward");
  norm_backward(norm_table().rms_norm_grad[index][w], index,
                {weight_dtype, grad_out, x, nullptr, rstd, weight, grad_in, grad_weight, nullptr,
                 rows, cols});
}

void sum_rows(c10::ScalarType dtype, const void* x, void* out, int64_t rows, int64_t cols,
              bool mean) {
  const int index = kernel_dtype_index(dtype, "sum_rows");
  const auto f = norm_table().sum[index];
  const Rows row_of = rows_of(index, cols), result_of = rows_of(index, 1);
  each_row(rows, cols, 0,
           [&](int64_t row, float*) { f(row_of.at(x, row), result_of.at(out, row), cols, mean); });
}

int64_t longest_summed_row() { return norm_table().longest_row; }

}  // namespace torch_neuronx::kernels
