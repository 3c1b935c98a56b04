// The forward pass: a task is some queries of the heads that share one head of keys. It walks over
// the keys block by block; of each block, keys and values are rearranged once for all its queries.
#include <c10/util/Exception.h>

#include <limits>

#include "attention/blocks.h"
#include "registry/registry.h"

namespace torch_neuronx::attention {
namespace {

constexpr int64_t kMaxWidth = 256;
constexpr int64_t kFewestRows = 24;  // queries whose scores are alive at a time, in whole strips
constexpr int64_t kBlockKeys = 256;  // keys rearranged at a time
constexpr int64_t kScoreRow = kBlockKeys + 16;  // not a power of two: rows would share cache sets
constexpr int64_t kMinTaskRows = 96;            // below that, rearranging keys again costs too much
constexpr int64_t kMaxTaskRows = 512;
constexpr int64_t kMaxTaskSums = 32768;  // floats of unfinished results: they stay in the L2 cache

// Neighbouring queries of one head.
struct Block {
  int64_t head, first, rows;
  int64_t slot;  // of its first row in the task's sums
};

struct Driver {
  const Problem& p;
  const Output& out;
  const View<float>& logsumexp;
  Engine engine;
  gemm::Element element;
  int64_t size;          // bytes of an element
  int64_t block_rows;    // of scores
  int64_t width_units;   // of a row of keys
  int64_t value_panels;  // of 64 columns
  int64_t sums_row;
  int64_t group;        // heads that share keys
  int64_t head_blocks;  // of the queries of one head
  int64_t task_blocks;

  Driver(const Problem& problem, const Output& o, const View<float>& l)
      : p(problem),
        out(o),
        logsumexp(l),
        engine(engine_for(p.dtype)),
        element(gemm::element_of(p.dtype)),
        size(gemm::element_size(element)),
        block_rows(round_up(kFewestRows, engine.tiles->strip_rows)),
        width_units(engine.units(p.width)),
        value_panels(blocks_of(p.value_width, kPanelCols)),
        sums_row(round_up(p.value_width, 16)),
        group(p.heads / p.kv_heads),
        head_blocks(blocks_of(p.queries, block_rows)),
        task_blocks(blocks_of_task()) {}

  int64_t blocks_of_task() const {
    const int64_t all = group * head_blocks;
    int64_t rows = std::clamp(kMaxTaskSums / sums_row, kMinTaskRows, kMaxTaskRows);
    const int64_t threads = at::get_num_threads();
    const auto tasks_of = [&](int64_t task_rows) {
      return p.batch * p.kv_heads * blocks_of(all, task_rows / block_rows);
    };
    while (rows > kMinTaskRows && tasks_of(rows) < 4 * threads)
      rows = std::max(kMinTaskRows, rows / 2);
    // An idle thread is worse than keys rearranged twice.
    while (rows > block_rows && tasks_of(rows) < threads) rows = std::max(block_rows, rows / 2);
    return blocks_of(all, blocks_of(all, rows / block_rows));
  }

  struct Memory {
    uint32_t *keys, *values, *queries;
    float *scores, *sums, *max, *sum, *correction;
    char* neighbours;  // keys or values out of several pages
  };
  Memory carve(Carve& c) const {
    const int64_t rows = task_blocks * block_rows;
    const bool copied = !reads_in_place(*engine.tiles, element, p.width);
    Memory m;
    m.keys = c.take<uint32_t>(kBlockKeys * width_units);
    m.values = c.take<uint32_t>(value_panels * engine.units(kBlockKeys) * kPanelCols);
    m.queries = c.take<uint32_t>(copied ? block_rows * width_units : 0);
    m.scores = c.take<float>(block_rows * kScoreRow);
    m.sums = c.take<float>(rows * sums_row);
    m.max = c.take<float>(rows);
    m.sum = c.take<float>(rows);
    m.correction = c.take<float>(block_rows);
    const int64_t row_bytes = std::max(p.width, p.value_width) * size;
    m.neighbours = c.take<char>(p.pages.table == nullptr ? 0 : kBlockKeys * row_bytes);
    return m;
  }

  Block block(int64_t index, int64_t kv_head, int64_t slot) const {
    const int64_t first = index % head_blocks * block_rows;
    return {kv_head * group + index / head_blocks, first, std::min(block_rows, p.queries - first),
            slot};
  }

  // Keys that the last row of a block sees.
  int64_t seen(const Block& b) const {
    return p.causal ? std::min(p.keys, b.first + b.rows + p.shift) : p.keys;
  }

  // Adds the keys [k0, k0 + keys), which are rearranged in `m`, to the sums of one block.
  void add_keys(const Memory& m, const Block& b, int64_t batch, int64_t k0, int64_t keys) const {
    const gemm::Kernels& tiles = *engine.tiles;
    const Rows queries = rows_of(p.query, size, batch, b.head);
    const LeftRows q = left_rows(tiles, element, queries, b.first, b.rows, p.width, m.queries);
    for (int64_t j = 0; j < keys; j += kPanelCols) {
      const gemm::TileArgs t{width_units,
                             q.data,
                             q.row_bytes,
                             reinterpret_cast<const char*>(m.keys + j * width_units),
                             nullptr,
                             0,
                             m.scores + j,
                             kScoreRow,
                             gemm::Element::kF32};
      tiles.tile(b.rows, std::min(kPanelCols, keys - j), t);
    }
    const bool first = k0 == 0;
    const SoftmaxArgs softmax{scores(m, b, batch, k0, keys), first, m.max + b.slot, m.sum + b.slot,
                              m.correction};
    engine.rows->softmax(softmax);
    float* sums = m.sums + b.slot * sums_row;
    if (!first) engine.rows->scale(sums, sums_row, b.rows, p.value_width, m.correction);
    for (int64_t j = 0; j < value_panels; ++j) {
      float* part = sums + j * kPanelCols;
      const gemm::TileArgs t{engine.units(keys),
                             reinterpret_cast<const char*>(m.scores),
                             kScoreRow * 4,
                             value_panel(m, j),
                             first ? nullptr : part,
                             sums_row,
                             part,
                             sums_row,
                             gemm::Element::kF32};
      tiles.tile(b.rows, std::min(kPanelCols, p.value_width - j * kPanelCols), t);
    }
  }

  const char* value_panel(const Memory& m, int64_t j) const {
    return reinterpret_cast<const char*>(m.values + j * engine.units(kBlockKeys) * kPanelCols);
  }

  ScoreBlock scores(const Memory& m, const Block& b, int64_t batch, int64_t k0,
                    int64_t keys) const {
    return {m.scores,
            kScoreRow,
            b.rows,
            keys,
            p.causal ? b.first + 1 + p.shift - k0 : keys,
            p.scale,
            mask_block(p.mask, batch, b.head, b.first, k0)};
  }

  void finish(const Memory& m, const Block& b, int64_t batch) const {
    const Rows rows = rows_of(out, size, batch, b.head);
    const Strides& s = logsumexp.strides;
    float* lse = logsumexp.data == nullptr
                     ? nullptr
                     : logsumexp.data + batch * s.batch + b.head * s.head + b.first * s.row;
    engine.rows->finish(storage_of(p.dtype),
                        {m.sums + b.slot * sums_row, sums_row, b.rows, p.value_width,
                         m.max + b.slot, m.sum + b.slot, softmax_unit(scores(m, b, batch, 0, 0)),
                         writable(rows.at(b.first)), rows.row_bytes, lse, s.row});
  }

  void prefetch_queries(const Block& b, int64_t batch) const {
    prefetch(rows_of(p.query, size, batch, b.head), b.first, b.rows, p.width * size);
  }

  void task(int64_t batch, int64_t kv_head, int64_t begin, int64_t end) const {
    Carve count;
    carve(count);
    Carve memory(gemm::scratch(gemm::Slot::kAttention, count.bytes()));
    const Memory m = carve(memory);
    const Rows key_rows = key_rows_of(p, size, batch, kv_head);
    const Rows value_rows = value_rows_of(p, size, batch, kv_head);
    int64_t last = 0;
    for (int64_t i = begin; i < end; ++i) last = std::max(last, seen(block(i, kv_head, 0)));
    for (int64_t k0 = 0; k0 < last; k0 += kBlockKeys) {
      const int64_t keys = std::min(kBlockKeys, last - k0);
      if (k0 == 0) prefetch_queries(block(begin, kv_head, 0), batch);
      prefetch(value_rows, k0, keys, p.value_width * size);
      pack_right_transposed(*engine.tiles, element,
                            neighbours(key_rows, k0, keys, p.width * size, m.neighbours), 0, keys,
                            p.width, m.keys);
      pack_right(*engine.tiles, element,
                 neighbours(value_rows, k0, keys, p.value_width * size, m.neighbours), 0, keys,
                 p.value_width, m.values, engine.units(kBlockKeys));
      for (int64_t i = begin; i < end; ++i) {
        const Block b = block(i, kv_head, (i - begin) * block_rows);
        const int64_t visible = std::min(keys, seen(b) - k0);
        if (k0 == 0 && i + 1 < end) prefetch_queries(block(i + 1, kv_head, 0), batch);
        if (visible > 0) add_keys(m, b, batch, k0, visible);
      }
    }
    for (int64_t i = begin; i < end; ++i) {
      finish(m, block(i, kv_head, (i - begin) * block_rows), batch);
    }
  }

  void run() const {
    const int64_t all = group * head_blocks, chunks = blocks_of(all, task_blocks);
    const double products = pairs(p) * double(p.width + p.value_width);
    // The last queries of a causal problem see most keys: start with them.
    gemm::for_tasks(p.batch * p.kv_heads * chunks, gemm::worth_threads(products, 0),
                    [&](int64_t index) {
                      const int64_t chunk = chunks - 1 - index / (p.batch * p.kv_heads);
                      const int64_t head = index % (p.batch * p.kv_heads);
                      task(head / p.kv_heads, head % p.kv_heads, chunk * task_blocks,
                           std::min(all, (chunk + 1) * task_blocks));
                    });
  }
};

}  // namespace

bool supported(const Problem& p) {
  const auto fits = [](int64_t width) { return width > 0 && width <= kMaxWidth; };
  return engine_for(p.dtype).rows != nullptr && fits(p.width) && fits(p.value_width) &&
         p.keys > 0 && p.kv_heads > 0 && p.heads % p.kv_heads == 0 && p.shift >= 0 &&
         (p.pages.table == nullptr || (p.batch == 1 && p.pages.size > 0));
}

void forward(const Problem& p, const Output& out, const View<float>& logsumexp) {
  TORCH_CHECK(supported(p), "attention: not a case for our kernels; ask supported()");
  if (p.batch == 0 || p.heads == 0 || p.queries == 0) return;
  registry::count_flops(2 * pairs(p) * double(p.width + p.value_width));
  if (has_few_queries(p)) return forward_few_queries(p, out, logsumexp);
  Driver(p, out, logsumexp).run();
}

void forward_each(const std::vector<ForwardCall>& calls) {
  double all = 0;
  for (const ForwardCall& call : calls) all += pairs(call.problem);
  // A long sequence among short ones would end long after them on a thread of its own.
  const double limit = all / (2.0 * at::get_num_threads());
  std::vector<const ForwardCall*> together;
  double products = 0, bytes = 0;
  for (const ForwardCall& call : calls) {
    const Problem& p = call.problem;
    if (!supported(p) || !has_few_queries(p) || pairs(p) > limit) {
      forward(p, call.out, call.logsumexp);
      continue;
    }
    const auto work = pairs(p) * double(p.width + p.value_width);
    registry::count_flops(2 * work);
    products += work;
    bytes += double(p.kv_heads * p.keys * (p.width + p.value_width)) *
             double(gemm::element_size(gemm::element_of(p.dtype)));
    together.push_back(&call);
  }
  gemm::for_tasks(int64_t(together.size()), gemm::worth_threads(products, bytes),
                  [&](int64_t index) {
                    const ForwardCall& call = *together[size_t(index)];
                    forward_few_queries(call.problem, call.out, call.logsumexp);
                  });
}

}  // namespace torch_neuronx::attention
