// The backward pass for few queries. Keys and values are read where they are, their gradients
// written once; a task is some of the keys, and the queries' gradients are summed over the tasks in
// order.
#include "attention/blocks.h"

namespace torch_neuronx::attention {
namespace {

constexpr int64_t kPartKeys = 512;
constexpr int64_t kScoreRow = kPartKeys + 16;  // not a power of two: rows would share cache sets

struct Driver {
  const Problem& p;
  const BackwardArgs& args;
  Engine engine;
  const gemm::Kernels& f32;  // widens rows to float32
  gemm::Element element;
  int64_t size;
  int64_t group;  // heads that share keys
  int64_t rows;   // group x queries
  int64_t parts;
  int64_t grad_row;  // floats of a row of the queries' gradients

  Driver(const Problem& problem, const BackwardArgs& a)
      : p(problem),
        args(a),
        engine(engine_for(p.dtype)),
        f32(*gemm::avx512_kernels()),
        element(gemm::element_of(p.dtype)),
        size(gemm::element_size(element)),
        group(p.heads / p.kv_heads),
        rows(group * p.queries),
        parts(blocks_of(p.keys, kPartKeys)),
        grad_row(round_up(p.width, 16)) {}

  struct Memory {
    uint32_t *queries, *grads;              // as operands of dot()
    uint32_t *float_queries, *float_grads;  // as float32
    float *scores, *dp, *logsumexp, *delta, *grad_queries;
  };
  Memory carve(Carve& c) const {
    Memory m;
    m.queries = c.take<uint32_t>(rows * p.width);
    m.grads = c.take<uint32_t>(rows * p.value_width);
    m.float_queries = c.take<uint32_t>(rows * p.width);
    m.float_grads = c.take<uint32_t>(rows * p.value_width);
    m.scores = c.take<float>(rows * kScoreRow);
    m.dp = c.take<float>(rows * kScoreRow);
    m.logsumexp = c.take<float>(rows);
    m.delta = c.take<float>(rows);
    m.grad_queries = c.take<float>(rows * grad_row);
    return m;
  }

  // What the queries' gradients are computed from but for the keys.
  void load_statistics(const Memory& m, int64_t batch, int64_t kv_head) const {
    const Strides& s = args.logsumexp.strides;
    for (int64_t g = 0; g < group; ++g) {
      const int64_t head = kv_head * group + g, row = g * p.queries;
      const Rows grads = rows_of(args.grad_out, size, batch, head);
      const Rows out = rows_of(args.out, size, batch, head);
      engine.rows->dots(storage_of(p.dtype), grads.data, grads.row_bytes, out.data, out.row_bytes,
                        p.queries, p.value_width, m.delta + row);
      const float* from = args.logsumexp.data + batch * s.batch + head * s.head;
      for (int64_t i = 0; i < p.queries; ++i) m.logsumexp[row + i] = from[i * s.row];
    }
  }

  LeftRows load(const gemm::Kernels& kernels, const Input& from, int64_t batch, int64_t kv_head,
                int64_t width, uint32_t* memory) const {
    return group_rows(kernels, element, from, batch, kv_head * group, group, p.queries, width,
                      memory);
  }

  void outer(const float* weights, const LeftRows& x, const Output& out, int64_t batch,
             int64_t kv_head, int64_t k0, int64_t count, int64_t width) const {
    const Rows to = rows_of(out, size, batch, kv_head);
    engine.rows->outer(storage_of(p.dtype),
                       {weights, kScoreRow, reinterpret_cast<const float*>(x.data), x.row_bytes / 4,
                        rows, count, width, writable(to.at(k0)), to.row_bytes});
  }

  // Leaves the queries' gradients by way of keys [k0, k0 + count) in `grad_queries`.
  void compute(const Memory& m, int64_t batch, int64_t kv_head, int64_t k0, int64_t count,
               float* grad_queries) const {
    const LeftRows q = load(*engine.tiles, p.query, batch, kv_head, p.width, m.queries);
    const LeftRows g = load(*engine.tiles, args.grad_out, batch, kv_head, p.value_width, m.grads);
    load_statistics(m, batch, kv_head);
    const Rows keys = rows_of(p.key, size, batch, kv_head);
    const Rows values = rows_of(p.value, size, batch, kv_head);
    for (int64_t i = 0; i < count; i += kStepKeys) {
      const int64_t some = std::min(kStepKeys, count - i), ahead = keys_ahead(i, count);
      prefetch(keys, k0 + i + kAheadKeys, ahead, p.width * size);
      prefetch(values, k0 + i + kAheadKeys, ahead, p.value_width * size);
      engine.tiles->dot({element, keys.at(k0 + i), size, keys.row_bytes, q.data, q.row_bytes,
                         p.width, some, rows, m.scores + i, kScoreRow});
      engine.tiles->dot({element, values.at(k0 + i), size, values.row_bytes, g.data, g.row_bytes,
                         p.value_width, some, rows, m.dp + i, kScoreRow});
    }
    for (int64_t h = 0; h < group; ++h) {
      const int64_t row = h * p.queries;
      rows_avx512()->gradient(
          {{m.scores + row * kScoreRow, kScoreRow, p.queries, count, p.causal ? 1 - k0 : count,
            p.scale, mask_block(p.mask, batch, kv_head * group + h, 0, k0)},
           m.dp + row * kScoreRow,
           m.logsumexp + row,
           m.delta + row,
           nullptr,
           nullptr,
           nullptr,
           0});
    }
    engine.tiles->stream({element, keys.at(k0), keys.row_bytes, size,
                          reinterpret_cast<const char*>(m.dp), kScoreRow * 4, count, p.width, rows,
                          grad_queries, grad_row});
    outer(m.scores, load(f32, args.grad_out, batch, kv_head, p.value_width, m.float_grads),
          args.grad_value, batch, kv_head, k0, count, p.value_width);
    outer(m.dp, load(f32, p.query, batch, kv_head, p.width, m.float_queries), args.grad_key, batch,
          kv_head, k0, count, p.width);
  }

  void store_queries(const float* sums, int64_t batch, int64_t kv_head) const {
    for (int64_t g = 0; g < group; ++g) {
      const Rows to = rows_of(args.grad_query, size, batch, kv_head * group + g);
      engine.rows->store(storage_of(p.dtype), sums + g * p.queries * grad_row, grad_row, p.queries,
                         p.width, writable(to.data), to.row_bytes);
    }
  }

  void run() const {
    Carve bytes;
    carve(bytes);
    const int64_t heads = p.batch * p.kv_heads, part = rows * grad_row;
    float* const all = reinterpret_cast<float*>(
        gemm::scratch(gemm::Slot::kAttentionParts, size_t(heads * parts * part) * 4));
    const double read = double(heads) * p.keys * (p.width + p.value_width);
    const bool parallel = gemm::worth_threads(read * rows, read * size);
    gemm::for_tasks(heads * parts, parallel, [&](int64_t index) {
      const int64_t head = index / parts, k0 = index % parts * kPartKeys;
      Carve memory(gemm::scratch(gemm::Slot::kAttention, bytes.bytes()));
      compute(carve(memory), head / p.kv_heads, head % p.kv_heads, k0,
              std::min(kPartKeys, p.keys - k0), all + index * part);
    });
    for (int64_t head = 0; head < heads; ++head) {
      float* const sums = all + head * parts * part;
      for (int64_t i = 1; i < parts; ++i) {
        for (int64_t j = 0; j < part; ++j) sums[j] += sums[i * part + j];
      }
      store_queries(sums, head / p.kv_heads, head % p.kv_heads);
    }
  }
};

}  // namespace

void backward_few_queries(const Problem& p, const BackwardArgs& args) { Driver(p, args).run(); }

}  // namespace torch_neuronx::attention
