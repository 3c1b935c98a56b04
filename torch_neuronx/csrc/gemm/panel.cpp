// The panel method: a task is a block of rows times one or more panels of 64 columns of B. The
// thread that runs it rearranges one panel at a time, and its rows of A if they cannot be read
// where they are, one depth of K at a time, into memory that stays in its L2 cache.
#include "gemm/methods.h"
#include "gemm/packed_b.h"
#include "gemm/scratch.h"

namespace torch_neuronx::gemm {
namespace {

constexpr int64_t kDepthUnits = 512;  // 128 KiB of panel: half of a small L2 cache
// Rows of a task and parts of it are these numbers rounded up to the strips of the kernels.
constexpr int64_t kMaxRows = 510;
constexpr int64_t kMinRows = 48;
constexpr int64_t kMaxPackedRows = 384;  // of A rearranged: most of the L2 cache
constexpr int64_t kMaxPanels = 32;       // of a task, as their sums may be kept apart
constexpr int64_t kStoreRows = 48;       // rows stored at once while they are in L1

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
  return p.a_from.function == nullptr && kernels.any_row &&
         kernels.direct_a == element_of(p.dtype) && contiguous(p.k, p.a.col_stride) &&
         p.k % kernels.unit == 0;
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

struct Driver {
  const Kernels& kernels;
  const Problem& p;
  OperandA a;  // no data: every task rearranges its own block
  int64_t units;
  bool direct;   // float32 sums grow in `out` itself
  bool rounded;  // the last depth writes half-width results to `out`
  int64_t threads;

  bool one_depth() const { return units <= kDepthUnits; }
  int64_t store_rows() const { return round_up(kStoreRows, kernels.strip_rows); }

  // Rows [i0, i0 + rows) x panels [first, first + panels).
  void task(int64_t b, int64_t i0, int64_t rows, int64_t first, int64_t panels) const {
    char* packed = nullptr;
    if (p.packed_b == nullptr) {
      packed = scratch(Slot::kPanel, size_t(std::min(units, kDepthUnits)) * kPanelCols * 4);
    }
    // Sums on their way, unless they are in `out` itself; those that leave at once need few rows.
    const int64_t sums_rows = one_depth() ? std::min(rows, store_rows()) : rows;
    float* sums = nullptr;
    if (!direct) {
      const int64_t blocks = one_depth() ? 1 : panels;
      sums = reinterpret_cast<float*>(
          scratch(Slot::kAccumulator, size_t(blocks * sums_rows) * kPanelCols * 4));
    }
    for (int64_t u = 0; u < units; u += kDepthUnits) {
      const int64_t depth = std::min(kDepthUnits, units - u);
      const BlockA block_a = block(b, i0, rows, u, depth);
      for (int64_t j = first; j < first + panels; ++j) {
        const char* panel_b = packed;
        if (packed != nullptr) {
          pack_panel(kernels, p, b, j, u, u + depth, reinterpret_cast<uint32_t*>(packed));
        } else {
          panel_b = p.packed_b->at(j, u);
        }
        Ahead next{};
        if (packed != nullptr && j + 1 < first + panels) next = source_of(b, j + 1, u, depth);
        if (packed == nullptr) next = packed_after(j + threads, u, depth);
        float* const own = direct || one_depth() ? sums : sums + (j - first) * rows * kPanelCols;
        multiply(b, i0, rows, j, u, depth, block_a, panel_b, own, next);
      }
    }
  }

  // Where the elements of one depth of a panel of B lie.
  Ahead source_of(int64_t b, int64_t panel, int64_t u, int64_t depth) const {
    if (p.b_from.function != nullptr) return {};
    const int64_t size = element_size(element_of(p.dtype));
    const int64_t k0 = u * kernels.unit, k = std::min(p.k - k0, depth * kernels.unit);
    const int64_t j0 = panel * kPanelCols, cols = std::min(kPanelCols, p.n - j0);
    const char* from = address(p, p.b, p.b_batch_stride, b, k0, j0);
    if (contiguous(cols, p.b.col_stride)) return {from, p.b.row_stride * size, cols * size, k};
    if (contiguous(k, p.b.row_stride)) return {from, p.b.col_stride * size, k * size, cols};
    return {};
  }

  // A kept panel that this thread may take next, as the others take those between. They are read
  // once per product, so they come from far away.
  Ahead packed_after(int64_t panel, int64_t u, int64_t depth) const {
    if (panel * kPanelCols >= p.n) return {};
    return {p.packed_b->at(panel, u), 0, depth * kPanelCols * 4, 1};
  }

  struct BlockA {
    const char* data;
    int64_t row_bytes;
  };
  BlockA block(int64_t b, int64_t i0, int64_t rows, int64_t u, int64_t depth) const {
    if (a.data != nullptr) return {a.at(b, i0, u), a.row_bytes};
    const int64_t row = padded_row(depth);
    char* memory = scratch(Slot::kBlockA, size_t(rows) * row * 4);
    if (p.a_from.function != nullptr) {
      make_rows(kernels, p, b, i0, rows, u, depth, reinterpret_cast<uint32_t*>(memory), row);
    } else {
      pack_a(kernels, p, b, i0, rows, u, depth, memory, row);
    }
    return {memory, row * 4};
  }

  // Adds the products of one depth to the sums, which leave with the last.
  void multiply(int64_t b, int64_t i0, int64_t rows, int64_t panel, int64_t u, int64_t depth,
                const BlockA& block_a, const char* panel_b, float* sums, Ahead& next) const {
    const int64_t j0 = panel * kPanelCols, cols = std::min(kPanelCols, p.n - j0);
    int64_t sums_row = kPanelCols;
    if (direct) {
      sums = static_cast<float*>(p.out) + b * p.out_batch_stride + i0 * p.out_row_stride + j0;
      sums_row = p.out_row_stride;
    }
    const bool last = u + depth == units, leaves = last && !direct && !rounded;
    // Finished sums are taken away while they are in L1, unless they are written where they belong.
    const int64_t visit =
        leaves || (!direct && !rounded && one_depth()) ? std::min(rows, store_rows()) : rows;
    for (int64_t i = 0; i < rows; i += visit) {
      float* const tile = one_depth() && !direct ? sums : sums + i * sums_row;
      TileArgs t{depth,
                 block_a.data + i * block_a.row_bytes,
                 block_a.row_bytes,
                 panel_b,
                 nullptr,
                 0,
                 tile,
                 sums_row,
                 Element::kF32,
                 next.rows > 0 ? &next : nullptr};
      if (u > 0) {
        t.init = tile;
        t.init_row = sums_row;
      } else if (direct && reads_c0(p)) {
        t.init = static_cast<const float*>(p.c0) + b * p.c0_batch_stride +
                 (i0 + i) * p.c0_row_stride + j0 * p.c0_col_stride;
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
      if (leaves) finish_block(p, b, i0 + i, count, j0, cols, tile, sums_row, 1);
    }
  }
};

// How a product is cut into tasks.
struct Cut {
  int64_t rows, panels;  // of a task
};

// Rows of a task: many, because every task rearranges its panel again, but enough tasks for all.
Cut cut_in_place(const Problem& p, int64_t panels, const Kernels& kernels) {
  const int64_t strip = kernels.strip_rows, least = round_up(kMinRows, strip);
  const int64_t wanted = 4 * at::get_num_threads();
  int64_t rows = std::min(round_up(p.m, strip), round_up(kMaxRows, strip));
  while (rows > least && p.batch * panels * ((p.m + rows - 1) / rows) < wanted) {
    rows = std::max(least, round_up(rows / 2, strip));
  }
  const int64_t blocks = (p.m + rows - 1) / rows;  // as many blocks, but of equal size
  return {round_up((p.m + blocks - 1) / blocks, strip), 1};
}

// A task that rearranges its rows of A reads them against many panels. Both operands are rearranged
// more often the smaller the tasks are, but tasks must not be so large that a thread waits for the
// last one.
Cut cut_rearranged(const Problem& p, int64_t panels, const Kernels& kernels) {
  const int64_t strip = kernels.strip_rows;
  // In multiplications of a unit by vectors: what it costs to rearrange one, and how much of a task
  // a thread waits at the end.
  constexpr double kPackA = 21, kPackB = 12, kWait = 0.1;
  const double pack_a = kPackA * kernels.speed, pack_b = kPackB * kernels.speed;
  const int64_t strips = (p.m + strip - 1) / strip, threads = at::get_num_threads();
  const int64_t most_strips = kMaxPackedRows / strip;
  const int64_t fewest_blocks = (strips + most_strips - 1) / most_strips;
  const int64_t fewest_groups = (panels + kMaxPanels - 1) / kMaxPanels;
  Cut best{};
  double least = 0;
  for (int64_t blocks = fewest_blocks; blocks < fewest_blocks + 8 && blocks <= strips; ++blocks) {
    for (int64_t groups = fewest_groups; groups < fewest_groups + 8 && groups <= panels; ++groups) {
      const Cut cut{(strips + blocks - 1) / blocks * strip, (panels + groups - 1) / groups};
      const double cols = double(cut.panels) * kPanelCols;
      const int64_t tasks =
          p.batch * ((p.m + cut.rows - 1) / cut.rows) * ((panels + cut.panels - 1) / cut.panels);
      const double rounds = double((tasks + threads - 1) / threads) + kWait;
      const double cost =
          rounds * (double(cut.rows) * cols + pack_a * double(cut.rows) + pack_b * cols);
      if (best.rows == 0 || cost < least) {
        best = cut;
        least = cost;
      }
    }
  }
  return best;
}

}  // namespace

void pack_panel(const Kernels& kernels, const Problem& p, int64_t b, int64_t j, int64_t u0,
                int64_t u1, uint32_t* dst) {
  if (p.b_from.function != nullptr) return make_panel(kernels, p, b, j, u0, u1, dst);
  const int64_t size = element_size(element_of(p.dtype));
  const int64_t k0 = u0 * kernels.unit, j0 = j * kPanelCols;
  kernels.pack_b({element_of(p.dtype), address(p, p.b, p.b_batch_stride, b, k0, j0),
                  p.b.row_stride * size, p.b.col_stride * size,
                  std::min(u1 * kernels.unit, p.k) - k0, std::min(kPanelCols, p.n - j0), dst,
                  kPanelCols});
}

void run_panel(const Problem& p) {
  const Kernels& kernels = p.packed_b ? *p.packed_b->kernels() : *kernels_for(p.dtype);
  const int64_t units = (p.k + kernels.unit - 1) / kernels.unit;
  const int64_t panels = (p.n + kPanelCols - 1) / kPanelCols;
  const bool here = reads_in_place(kernels, p);
  const bool rounded = kernels.rounds_itself && p.dtype != at::kFloat && p.alpha == 1.0F &&
                       !reads_c0(p) && p.epilogue.function == nullptr;
  const Cut cut = here ? cut_in_place(p, panels, kernels) : cut_rearranged(p, panels, kernels);
  const Driver driver{kernels,
                      p,
                      here ? in_place(p) : OperandA{nullptr, 0, 0},
                      units,
                      writes_directly(p),
                      rounded,
                      at::get_num_threads()};
  const int64_t blocks = (p.m + cut.rows - 1) / cut.rows;
  const int64_t groups = (panels + cut.panels - 1) / cut.panels;
  const double multiplications = double(p.batch) * p.m * p.n * p.k;
  const bool parallel = worth_threads(multiplications, double(p.batch) * (p.m + p.n) * units * 4);
  for_tasks(p.batch * blocks * groups, parallel, [&](int64_t task) {
    const int64_t panel = task % groups * cut.panels, row = task / groups % blocks * cut.rows;
    driver.task(task / groups / blocks, row, std::min(cut.rows, p.m - row), panel,
                std::min(cut.panels, panels - panel));
  });
}

}  // namespace torch_neuronx::gemm
