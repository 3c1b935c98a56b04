// The backward pass: a task is some keys and all queries that see them. It recomputes the scores of
// a block of queries and a panel of 64 keys from their log-sum-exp, and adds what they contribute
// to the gradients: those of its keys and values are its own; those of the queries are too if the
// task has all keys, else they are summed over the tasks afterwards, in order.
#include <c10/util/Exception.h>

#include "attention/blocks.h"
#include "registry/registry.h"

namespace torch_neuronx::attention {
namespace {

constexpr int64_t kBlockRows = kPanelCols;
constexpr int64_t kDiagonalRows = 32;  // of a causal block on the diagonal, half of which is hidden
constexpr int64_t kMinTaskKeys = 256;
constexpr int64_t kMaxParts = 8;  // tasks that share queries, whose gradients are kept apart
constexpr int64_t kMaxPartSums = int64_t(16) << 20;  // floats of those
constexpr int64_t kWantedTasks = 64;  // enough for any machine; must not depend on this one

struct Driver {
  const Problem& p;
  const BackwardArgs& args;
  Engine engine;
  gemm::Element element;
  int64_t size;
  int64_t width_units, value_units;
  int64_t query_row;  // units of a row of transposed queries
  int64_t group;      // heads that share keys
  int64_t grad_row;   // floats of a row of the queries' gradients
  int64_t task_keys, parts;
  bool pairs;
  char* all_parts = nullptr;  // [part][batch][head][query][grad_row]

  Driver(const Problem& problem, const BackwardArgs& a)
      : p(problem),
        args(a),
        engine(engine_for(p.dtype)),
        element(gemm::element_of(p.dtype)),
        size(gemm::element_size(element)),
        width_units(engine.units(p.width)),
        value_units(engine.units(p.value_width)),
        query_row(engine.units(kBlockRows) + 16),
        group(p.heads / p.kv_heads),
        grad_row(round_up(p.width, 16)),
        pairs(engine.tiles->unit == 2) {
    const int64_t sums = p.batch * p.heads * p.queries * grad_row;
    const int64_t wanted =
        std::min({kMaxParts, blocks_of(kWantedTasks, p.batch * p.kv_heads),
                  std::max<int64_t>(1, kMaxPartSums / std::max<int64_t>(1, sums))});
    const int64_t keys = std::max(kMinTaskKeys, blocks_of(p.keys, wanted));
    parts = blocks_of(p.keys, keys);
    // A causal task starts at the first row of a block.
    task_keys = round_up(blocks_of(p.keys, parts), kBlockRows);
    parts = blocks_of(p.keys, task_keys);
  }

  struct Memory {
    // Right operands: keys and values transposed (panels of 64 keys), and keys (for each panel of
    // 64 keys its panels of 64 columns).
    uint32_t *keys_t, *values_t, *keys;
    // Left operands: a block of queries and of the output's gradients, and both transposed.
    uint32_t *queries, *grads, *queries_t, *grads_t;
    float *scores, *dp;  // [kBlockRows][64]
    uint32_t *p_pairs, *ds_pairs, *ds_rows;
    float *grad_keys_t, *grad_values_t;  // per panel of keys [width][64]
    float* grad_queries;                 // [kBlockRows][grad_row]
    float *logsumexp, *delta, *transposed;
  };
  Memory carve(Carve& c) const {
    const int64_t keys = task_keys;
    const bool q = !reads_in_place(*engine.tiles, element, p.width);
    const bool g = !reads_in_place(*engine.tiles, element, p.value_width);
    Memory m;
    m.keys_t = c.take<uint32_t>(keys * width_units);
    m.values_t = c.take<uint32_t>(keys * value_units);
    m.keys = c.take<uint32_t>(engine.units(keys) * round_up(p.width, kPanelCols));
    m.queries = c.take<uint32_t>(q ? kBlockRows * width_units : 0);
    m.grads = c.take<uint32_t>(g ? kBlockRows * value_units : 0);
    m.queries_t = c.take<uint32_t>(p.width * query_row);
    m.grads_t = c.take<uint32_t>(p.value_width * query_row);
    m.scores = c.take<float>(kBlockRows * kPanelCols);
    m.dp = c.take<float>(kBlockRows * kPanelCols);
    m.p_pairs = c.take<uint32_t>(pairs ? kBlockRows / 2 * kPanelCols : 0);
    m.ds_pairs = c.take<uint32_t>(pairs ? kBlockRows / 2 * kPanelCols : 0);
    m.ds_rows = c.take<uint32_t>(pairs ? kBlockRows * kPanelCols / 2 : 0);
    m.grad_keys_t = c.take<float>(keys * p.width);
    m.grad_values_t = c.take<float>(keys * p.value_width);
    m.grad_queries = c.take<float>(kBlockRows * grad_row);
    m.logsumexp = c.take<float>(kBlockRows);
    m.delta = c.take<float>(kBlockRows);
    m.transposed = c.take<float>(kPanelCols * std::max(p.width, p.value_width));
    return m;
  }

  // Units from the panels of one group of 64 keys to the next, and of one of those panels.
  int64_t key_panel() const { return engine.units(kPanelCols) * kPanelCols; }
  int64_t key_panels() const { return key_panel() * blocks_of(p.width, kPanelCols); }

  static const char* bytes(const void* operand) { return static_cast<const char*>(operand); }

  struct Block {
    int64_t batch, head, first, rows;
    LeftRows queries, grads;
  };

  Block load(const Memory& m, int64_t batch, int64_t head, int64_t first) const {
    const gemm::Kernels& tiles = *engine.tiles;
    const int64_t rows = std::min(kBlockRows, p.queries - first);
    const Rows q = rows_of(p.query, size, batch, head);
    const Rows g = rows_of(args.grad_out, size, batch, head);
    const Rows o = rows_of(args.out, size, batch, head);
    pack_left_transposed(tiles, element, q, first, rows, p.width, m.queries_t, query_row);
    pack_left_transposed(tiles, element, g, first, rows, p.value_width, m.grads_t, query_row);
    engine.rows->dots(storage_of(p.dtype), g.at(first), g.row_bytes, o.at(first), o.row_bytes, rows,
                      p.value_width, m.delta);
    const Strides& s = args.logsumexp.strides;
    const float* lse = args.logsumexp.data + batch * s.batch + head * s.head + first * s.row;
    for (int64_t i = 0; i < rows; ++i) m.logsumexp[i] = lse[i * s.row];
    return {batch,
            head,
            first,
            rows,
            left_rows(tiles, element, q, first, rows, p.width, m.queries),
            left_rows(tiles, element, g, first, rows, p.value_width, m.grads)};
  }

  // c[m x n] (+)= a b over `units`.
  void product(int64_t m, int64_t n, int64_t units, LeftRows a, const void* b, float* c,
               int64_t c_row, bool add) const {
    engine.tiles->tile(m, n,
                       {units, a.data, a.row_bytes, bytes(b), add ? c : nullptr, c_row, c, c_row,
                        gemm::Element::kF32});
  }

  // What `count` keys from k0, panel `j` of the task, contribute to all gradients by way of `rows`
  // queries from row `skip` of the block.
  void add_panel(const Memory& m, const Block& b, int64_t j, int64_t k0, int64_t count,
                 int64_t skip, int64_t rows, bool first_keys, bool first_queries) const {
    const int64_t depth = engine.units(rows), skipped = skip / engine.tiles->unit;
    const auto from = [&](LeftRows a) {
      return LeftRows{a.data + skip * a.row_bytes, a.row_bytes};
    };
    product(rows, count, width_units, from(b.queries), m.keys_t + j * kPanelCols * width_units,
            m.scores, kPanelCols, false);
    product(rows, count, value_units, from(b.grads), m.values_t + j * kPanelCols * value_units,
            m.dp, kPanelCols, false);
    engine.rows->gradient(
        {{m.scores, kPanelCols, rows, count, p.causal ? b.first + skip + 1 - k0 : count, p.scale,
          mask_block(p.mask, b.batch, b.head, b.first + skip, k0)},
         m.dp,
         m.logsumexp + skip,
         m.delta + skip,
         m.p_pairs,
         m.ds_pairs,
         m.ds_rows,
         kPanelCols / 2});
    const void* const weights = pairs ? static_cast<void*>(m.p_pairs) : m.scores;
    const void* const ds = pairs ? static_cast<void*>(m.ds_pairs) : m.dp;
    const void* const ds_rows = pairs ? static_cast<void*>(m.ds_rows) : m.dp;
    product(p.value_width, count, depth, {bytes(m.grads_t + skipped), query_row * 4}, weights,
            m.grad_values_t + j * kPanelCols * p.value_width, kPanelCols, !first_queries);
    product(p.width, count, depth, {bytes(m.queries_t + skipped), query_row * 4}, ds,
            m.grad_keys_t + j * kPanelCols * p.width, kPanelCols, !first_queries);
    for (int64_t c = 0; c < p.width; c += kPanelCols) {
      product(rows, std::min(kPanelCols, p.width - c), engine.units(count),
              {bytes(ds_rows), engine.units(kPanelCols) * 4},
              m.keys + j * key_panels() + c / kPanelCols * key_panel(),
              m.grad_queries + skip * grad_row + c, grad_row, !first_keys);
    }
  }

  float* part_of(int64_t part, int64_t batch, int64_t head, int64_t row) const {
    return reinterpret_cast<float*>(all_parts) +
           (((part * p.batch + batch) * p.heads + head) * p.queries + row) * grad_row;
  }

  void store_queries(const Memory& m, const Block& b, int64_t part) const {
    if (all_parts != nullptr) {
      engine.rows->store(Storage::kF32, m.grad_queries, grad_row, b.rows, p.width,
                         reinterpret_cast<char*>(part_of(part, b.batch, b.head, b.first)),
                         grad_row * 4);
      return;
    }
    const Rows to = rows_of(args.grad_query, size, b.batch, b.head);
    engine.rows->store(storage_of(p.dtype), m.grad_queries, grad_row, b.rows, p.width,
                       writable(to.at(b.first)), to.row_bytes);
  }

  // Stores [width][64] sums of `count` keys as rows of keys.
  void store_keys(const Memory& m, const float* sums, const Rows& to, int64_t first, int64_t count,
                  int64_t width) const {
    char* const rows = writable(to.at(first));
    const bool direct = p.dtype == at::kFloat;
    gemm::avx512_kernels()->pack_a_rows(
        {gemm::Element::kF32, bytes(sums), kPanelCols * 4, 4, width, count,
         direct ? reinterpret_cast<uint32_t*>(rows) : reinterpret_cast<uint32_t*>(m.transposed),
         direct ? to.row_bytes / 4 : width});
    if (direct) return;
    engine.rows->store(storage_of(p.dtype), m.transposed, width, count, width, rows, to.row_bytes);
  }

  void task(int64_t batch, int64_t kv_head, int64_t part) const {
    const int64_t k0 = part * task_keys, keys = std::min(task_keys, p.keys - k0);
    const int64_t panels = blocks_of(keys, kPanelCols);
    Carve count;
    carve(count);
    Carve memory(gemm::scratch(gemm::Slot::kAttention, count.bytes()));
    const Memory m = carve(memory);
    const gemm::Kernels& tiles = *engine.tiles;
    const Rows key_rows = rows_of(p.key, size, batch, kv_head);
    const Rows value_rows = rows_of(p.value, size, batch, kv_head);
    pack_right_transposed(tiles, element, key_rows, k0, keys, p.width, m.keys_t);
    pack_right_transposed(tiles, element, value_rows, k0, keys, p.value_width, m.values_t);
    for (int64_t j = 0; j < panels; ++j) {
      const int64_t first = j * kPanelCols;
      pack_right(tiles, element, key_rows, k0 + first, std::min(kPanelCols, keys - first), p.width,
                 m.keys + j * key_panels(), engine.units(kPanelCols));
    }
    if (p.causal) {  // the first queries do not see all keys of the panel that they begin
      std::fill_n(m.grad_keys_t, panels * kPanelCols * p.width, 0.0F);
      std::fill_n(m.grad_values_t, panels * kPanelCols * p.value_width, 0.0F);
    }
    for (int64_t g = 0; g < group; ++g) {
      // Queries before the first key see none of them.
      for (int64_t first = p.causal ? k0 : 0; first < p.queries; first += kBlockRows) {
        const Block b = load(m, batch, kv_head * group + g, first);
        for (int64_t j = 0; j < panels; ++j) {
          const int64_t from = k0 + j * kPanelCols, count = std::min(kPanelCols, p.keys - from);
          if (p.causal && from > first) break;
          if (p.causal && from == first) {
            for (int64_t row = 0; row < b.rows; row += kDiagonalRows) {
              const int64_t rows = std::min(kDiagonalRows, b.rows - row);
              add_panel(m, b, j, from, std::min(count, row + rows), row, rows, j == 0, false);
            }
          } else {
            add_panel(m, b, j, from, count, 0, b.rows, j == 0, !p.causal && g == 0 && first == 0);
          }
        }
        store_queries(m, b, part);
      }
    }
    finish_keys(m, batch, kv_head, k0, keys);
  }

  void finish_keys(const Memory& m, int64_t batch, int64_t kv_head, int64_t k0,
                   int64_t keys) const {
    const Rows to_keys = rows_of(args.grad_key, size, batch, kv_head);
    const Rows to_values = rows_of(args.grad_value, size, batch, kv_head);
    for (int64_t first = 0; first < keys; first += kPanelCols) {
      const int64_t count = std::min(kPanelCols, keys - first);
      store_keys(m, m.grad_keys_t + first * p.width, to_keys, k0 + first, count, p.width);
      store_keys(m, m.grad_values_t + first * p.value_width, to_values, k0 + first, count,
                 p.value_width);
    }
  }

  // The queries' gradients as the sum of the parts that see them.
  void sum_parts(int64_t batch, int64_t head, int64_t first) const {
    const int64_t rows = std::min(kBlockRows, p.queries - first);
    float* const sum = part_of(0, batch, head, first);
    for (int64_t part = 1; part < parts; ++part) {
      if (p.causal && part * task_keys > first) break;  // as in task(): not computed
      const float* const more = part_of(part, batch, head, first);
      for (int64_t i = 0; i < rows * grad_row; ++i) sum[i] += more[i];
    }
    const Rows to = rows_of(args.grad_query, size, batch, head);
    engine.rows->store(storage_of(p.dtype), sum, grad_row, rows, p.width, writable(to.at(first)),
                       to.row_bytes);
  }

  void run() {
    const double products = double(p.batch) * p.heads * p.queries * p.keys *
                            (3 * p.width + 2 * p.value_width) * (p.causal ? 0.5 : 1.0);
    const bool parallel = gemm::worth_threads(products, 0);
    if (parts > 1) {
      all_parts = gemm::scratch(gemm::Slot::kAttentionParts,
                                size_t(parts * p.batch * p.heads * p.queries * grad_row) * 4);
    }
    const int64_t heads = p.batch * p.kv_heads;
    gemm::for_tasks(heads * parts, parallel, [&](int64_t index) {
      const int64_t head = index % heads;
      task(head / p.kv_heads, head % p.kv_heads, index / heads);
    });
    if (parts == 1) return;
    const int64_t blocks = blocks_of(p.queries, kBlockRows);
    gemm::for_tasks(p.batch * p.heads * blocks, parallel, [&](int64_t index) {
      const int64_t head = index / blocks;
      sum_parts(head / p.heads, head % p.heads, index % blocks * kBlockRows);
    });
  }
};

// Gradients of keys from `first`, which no query sees.
void zero_keys(const Problem& p, const BackwardArgs& args, int64_t first) {
  if (first >= p.keys) return;
  const int64_t size = gemm::element_size(gemm::element_of(p.dtype));
  gemm::for_tasks(p.batch * p.kv_heads, /*parallel=*/true, [&](int64_t index) {
    const int64_t batch = index / p.kv_heads, head = index % p.kv_heads;
    const Rows keys = rows_of(args.grad_key, size, batch, head);
    const Rows values = rows_of(args.grad_value, size, batch, head);
    for (int64_t row = first; row < p.keys; ++row) {
      std::fill_n(writable(keys.at(row)), p.width * size, char{0});
      std::fill_n(writable(values.at(row)), p.value_width * size, char{0});
    }
  });
}

}  // namespace

void backward(const Problem& p, const BackwardArgs& args) {
  TORCH_CHECK(supported(p) && p.shift == 0 && p.pages.table == nullptr,
              "attention: not a case for our kernels; ask supported()");
  if (p.batch == 0 || p.heads == 0) return;
  // The scores anew, and the gradients of query and key; those of value and of the weights.
  registry::count_flops(2 * pairs(p) * double(3 * p.width + 2 * p.value_width));
  Problem seen = p;
  if (p.causal || p.queries == 0) seen.keys = std::min(p.keys, p.queries);
  zero_keys(p, args, seen.keys);
  if (seen.keys == 0) return;
  if (has_few_queries(p)) return backward_few_queries(seen, args);
  Driver(seen, args).run();
}

}  // namespace torch_neuronx::attention
