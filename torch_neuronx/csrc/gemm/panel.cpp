// The panel method: a task is a block of rows times one panel of 64 columns of B. The thread that
// runs it rearranges the panel, one depth of K at a time, into memory that stays in its L2 cache.
#include "gemm/methods.h"
#include "gemm/packed_b.h"
#include "gemm/scratch.h"

namespace torch_neuronx::gemm {
namespace {

constexpr int64_t kDepthUnits = 512;  // 128 KiB of panel: half of a small L2 cache
constexpr int64_t kMaxRows = 85 * kStripRows;
constexpr int64_t kMinRows = 8 * kStripRows;
constexpr int64_t kStoreRows = 8 * kStripRows;         // rows stored at once while they are in L1
constexpr size_t kMaxOperandBytes = size_t(32) << 20;  // of A rearranged at a time

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// A as the micro-kernels read it: in place, or rearranged for a range of batches and rows.
struct OperandA {
  const char* data;
  int64_t batch_bytes, row_bytes;

  const char* at(int64_t batch, int64_t row, int64_t unit) const {
    return data + batch * batch_bytes + row * row_bytes + unit * 4;
  }
};

bool reads_in_place(const Kernels& kernels, const Problem& p) {
  return kernels.any_row && kernels.direct_a == element_of(p.dtype) &&
         contiguous(p.k, p.a.col_stride) && p.k % kernels.unit == 0;
}

OperandA in_place(const Problem& p) {
  const int64_t size = element_size(element_of(p.dtype));
  return {static_cast<const char*>(p.a.data), p.a_batch_stride * size, p.a.row_stride * size};
}

// Rows a multiple of a page apart would fight for the same few places of the first cache.
int64_t padded_row(int64_t units) { return round_up(units, 16) % 256 == 0 ? units + 16 : units; }

// Rearranges rows [i, i + rows) and units [u, u + depth) of A of batch b.
void pack_a(const Kernels& kernels, const Problem& p, int64_t b, int64_t i, int64_t rows, int64_t u,
            int64_t depth, char* dst, int64_t dst_row) {
  const Element element = element_of(p.dtype);
  const int64_t size = element_size(element), k0 = u * kernels.unit;
  kernels.pack_a_rows({element, address(p, p.a, p.a_batch_stride, b, i, k0), p.a.col_stride * size,
                       p.a.row_stride * size, std::min(p.k - k0, depth * kernels.unit), rows,
                       reinterpret_cast<uint32_t*>(dst), dst_row});
}

OperandA rearrange(const Kernels& kernels, const Problem& p, int64_t units) {
  const int64_t row = padded_row(units);
  OperandA a{nullptr, p.m * row * 4, row * 4};
  char* data = scratch(Slot::kOperandA, size_t(p.batch) * a.batch_bytes);
  a.data = data;
  const int64_t groups = (p.m + kMinRows - 1) / kMinRows;
  const bool parallel = worth_threads(0, double(p.batch) * a.batch_bytes);
  for_tasks(p.batch * groups, parallel, [&](int64_t task) {
    const int64_t b = task / groups, i = task % groups * kMinRows;
    pack_a(kernels, p, b, i, std::min(kMinRows, p.m - i), 0, units,
           data + b * a.batch_bytes + i * a.row_bytes, row);
  });
  return a;
}

struct Driver {
  const Kernels& kernels;
  const Problem& p;
  OperandA a;  // no data: every task rearranges its own block
  int64_t units;
  bool direct;   // float32 sums grow in `out` itself
  bool rounded;  // the last depth writes half-width results to `out`

  void task(int64_t b, int64_t i0, int64_t rows, int64_t panel) const {
    const int64_t j0 = panel * kPanelCols, cols = std::min(kPanelCols, p.n - j0);
    const bool one_depth = units <= kDepthUnits, fused = p.epilogue.function != nullptr;
    char* packed = nullptr;
    if (p.packed_b == nullptr) {
      packed = scratch(Slot::kPanel, size_t(std::min(units, kDepthUnits)) * kPanelCols * 4);
    }
    // Sums on their way: in `out` itself, or in a private block (of few rows if it is left at
    // once).
    const int64_t step = one_depth && !direct ? std::min(rows, kStoreRows) : rows;
    float* sums;
    int64_t sums_row;
    if (direct) {
      sums = static_cast<float*>(p.out) + b * p.out_batch_stride + i0 * p.out_row_stride + j0;
      sums_row = p.out_row_stride;
    } else {
      sums = reinterpret_cast<float*>(scratch(Slot::kAccumulator, size_t(step) * kPanelCols * 4));
      sums_row = kPanelCols;
    }
    for (int64_t u = 0; u < units; u += kDepthUnits) {
      const int64_t depth = std::min(kDepthUnits, units - u);
      const char* panel_b;
      if (packed != nullptr) {
        pack_panel(kernels, p, b, panel, u, u + depth, reinterpret_cast<uint32_t*>(packed));
        panel_b = packed;
      } else {
        panel_b = p.packed_b->at(panel, u);
      }
      int64_t a_row = a.row_bytes;
      const char* block_a = a.data == nullptr ? nullptr : a.at(b, i0, u);
      if (block_a == nullptr) {
        const int64_t row = padded_row(depth);
        char* memory = scratch(Slot::kBlockA, size_t(rows) * row * 4);
        for (int64_t i = 0; i < rows; i += kMinRows) {
          pack_a(kernels, p, b, i0 + i, std::min(kMinRows, rows - i), u, depth,
                 memory + i * row * 4, row);
        }
        a_row = row * 4;
        block_a = memory;
      }
      const bool last = u + depth == units;
      // An epilogue gets its sums while they are in L1, even if they grew in a larger block.
      const int64_t visit = fused && last ? std::min(step, kStoreRows) : step;
      for (int64_t i = 0; i < rows; i += visit) {
        float* block = step == rows ? sums + i * sums_row : sums;
        TileArgs t{depth,    block_a + i * a_row, a_row, panel_b, nullptr, 0, block,
                   sums_row, Element::kF32};
        if (u > 0) {
          t.init = block;
          t.init_row = sums_row;
        } else if (direct && reads_c0(p)) {
          t.init = static_cast<const float*>(p.c0) + b * p.c0_batch_stride + i0 * p.c0_row_stride +
                   j0 * p.c0_col_stride;
          t.init_row = p.c0_row_stride;
        }
        const int64_t count = std::min(visit, rows - i);
        if (rounded && last) {
          t.out_element = element_of(p.dtype);
          t.c_row = p.out_row_stride;
          t.c = static_cast<char*>(p.out) +
                (b * p.out_batch_stride + (i0 + i) * p.out_row_stride + j0) *
                    element_size(t.out_element);
        }
        kernels.tile(count, cols, t);
        if (!direct && !rounded && (one_depth || (fused && last))) {
          finish_block(p, b, i0 + i, count, j0, cols, block, sums_row, 1);
        }
      }
    }
    if (!direct && !rounded && !one_depth && !fused) {
      finish_block(p, b, i0, rows, j0, cols, sums, sums_row, 1);
    }
  }
};

// Rows of a task: many, because every task rearranges its panel again, but enough tasks for all.
int64_t rows_of_task(const Problem& p, int64_t panels) {
  const int64_t wanted = 4 * at::get_num_threads();
  int64_t rows = std::min(round_up(p.m, kStripRows), kMaxRows);
  while (rows > kMinRows && p.batch * panels * ((p.m + rows - 1) / rows) < wanted) {
    rows = std::max(kMinRows, round_up(rows / 2, kStripRows));
  }
  const int64_t blocks = (p.m + rows - 1) / rows;  // as many blocks, but of equal size
  return round_up((p.m + blocks - 1) / blocks, kStripRows);
}

void run_part(const Kernels& kernels, const Problem& p, int64_t units, bool a_in_place) {
  const int64_t panels = (p.n + kPanelCols - 1) / kPanelCols;
  // With one panel a block of A has one reader, which finds it in its own cache.
  const OperandA a = a_in_place    ? in_place(p)
                     : panels == 1 ? OperandA{nullptr, 0, 0}
                                   : rearrange(kernels, p, units);
  const bool rounded = kernels.rounds_itself && p.dtype != at::kFloat && p.alpha == 1.0F &&
                       !reads_c0(p) && p.epilogue.function == nullptr;
  const Driver driver{kernels, p, a, units, writes_directly(p), rounded};
  const int64_t rows = rows_of_task(p, panels);
  const int64_t blocks = (p.m + rows - 1) / rows;
  const double multiplications = double(p.batch) * p.m * p.n * p.k;
  const bool parallel = worth_threads(multiplications, double(p.batch) * (p.m + p.n) * units * 4);
  for_tasks(p.batch * blocks * panels, parallel, [&](int64_t task) {
    const int64_t panel = task % panels, block = task / panels % blocks;
    driver.task(task / panels / blocks, block * rows, std::min(rows, p.m - block * rows), panel);
  });
}

// The part of `p` of batches [b0, b0 + batches) and rows [i0, i0 + rows).
Problem part_of(const Problem& p, int64_t b0, int64_t batches, int64_t i0, int64_t rows) {
  const int64_t size = element_size(element_of(p.dtype));
  Problem part = p;
  part.epilogue.batch0 += b0;
  part.epilogue.row0 += i0;
  part.batch = batches;
  part.m = rows;
  part.a.data = address(p, p.a, p.a_batch_stride, b0, i0, 0);
  part.b.data = address(p, p.b, p.b_batch_stride, b0, 0, 0);
  part.out = static_cast<char*>(p.out) + (b0 * p.out_batch_stride + i0 * p.out_row_stride) * size;
  if (p.c0 != nullptr) {
    part.c0 =
        static_cast<const char*>(p.c0) + (b0 * p.c0_batch_stride + i0 * p.c0_row_stride) * size;
  }
  return part;
}

}  // namespace

void pack_panel(const Kernels& kernels, const Problem& p, int64_t b, int64_t j, int64_t u0,
                int64_t u1, uint32_t* dst) {
  const int64_t size = element_size(element_of(p.dtype));
  const int64_t k0 = u0 * kernels.unit, j0 = j * kPanelCols;
  kernels.pack_b({element_of(p.dtype), address(p, p.b, p.b_batch_stride, b, k0, j0),
                  p.b.row_stride * size, p.b.col_stride * size,
                  std::min(u1 * kernels.unit, p.k) - k0, std::min(kPanelCols, p.n - j0), dst,
                  kPanelCols});
}

void run_panel(const Problem& p) {
  const Kernels& kernels = p.packed_b ? *p.packed_b->kernels() : *engine_for(p.dtype).panel;
  const int64_t units = (p.k + kernels.unit - 1) / kernels.unit;
  if (reads_in_place(kernels, p)) return run_part(kernels, p, units, true);
  // Rearranged A is bounded: several batches at a time, or several rows of one.
  const auto limit_units = int64_t(kMaxOperandBytes / 4);
  const int64_t rows =
      std::min(p.m, std::max(kMaxRows, limit_units / padded_row(units) / kStripRows * kStripRows));
  const int64_t batches = std::clamp<int64_t>(limit_units / (padded_row(units) * rows), 1, p.batch);
  for (int64_t b = 0; b < p.batch; b += batches) {
    for (int64_t i = 0; i < p.m; i += rows) {
      run_part(kernels, part_of(p, b, std::min(batches, p.batch - b), i, std::min(rows, p.m - i)),
               units, false);
    }
  }
}

}  // namespace torch_neuronx::gemm
