// Few queries against many keys, as when a model writes one token: the time goes into reading keys
// and values. They are read once, where they are, in parts that any thread may take; the parts'
// results are joined in a fixed order.
#include <cmath>
#include <limits>

#include "attention/blocks.h"

namespace torch_neuronx::attention {
namespace {

constexpr int64_t kPartKeys = 512;
constexpr int64_t kScoreRow = kPartKeys + 16;  // not a power of two: rows would share cache sets
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Unfinished results of all rows for some of the keys.
struct Part {
  float *sums, *max, *sum;
};

struct Driver {
  const Problem& p;
  const Output& out;
  const View<float>& logsumexp;
  Engine engine;
  gemm::Element element;
  int64_t size;
  int64_t group;  // heads that share keys
  int64_t rows;   // group x queries
  int64_t sums_row;
  int64_t keys, parts;  // that are seen at all
  float unit;

  Driver(const Problem& problem, const Output& o, const View<float>& l)
      : p(problem),
        out(o),
        logsumexp(l),
        engine(engine_for(p.dtype)),
        element(gemm::element_of(p.dtype)),
        size(gemm::element_size(element)),
        group(p.heads / p.kv_heads),
        rows(group * p.queries),
        sums_row(round_up(p.value_width, 16)),
        keys(p.causal ? std::min(p.keys, p.queries + p.shift) : p.keys),
        parts(blocks_of(keys, kPartKeys)),
        unit(softmax_unit(block(nullptr, 0, 0, 0, 0))) {}

  Part carve(Carve& c) const {
    return {c.take<float>(rows * sums_row), c.take<float>(rows), c.take<float>(rows)};
  }

  ScoreBlock block(float* scores, int64_t batch, int64_t head, int64_t k0, int64_t count) const {
    return {scores,
            kScoreRow,
            p.queries,
            count,
            p.causal ? 1 + p.shift - k0 : count,
            p.scale,
            mask_block(p.mask, batch, head, 0, k0)};
  }

  // Scores and unfinished results of keys [k0, k0 + count).
  void compute(int64_t batch, int64_t kv_head, int64_t k0, int64_t count, const Part& part,
               float* scores, uint32_t* memory) const {
    const LeftRows q = group_rows(*engine.tiles, element, p.query, batch, kv_head * group, group,
                                  p.queries, p.width, memory);
    const Rows key_rows = key_rows_of(p, size, batch, kv_head);
    const Rows values = value_rows_of(p, size, batch, kv_head);
    for (int64_t i = 0; i < count; i += kStepKeys) {
      const int64_t some = std::min(kStepKeys, count - i);
      prefetch(key_rows, k0 + i + kAheadKeys, keys_ahead(i, count), p.width * size);
      prefetch(values, k0 + i, some, p.value_width * size);
      for_runs(key_rows, k0 + i, some, [&](int64_t begin, int64_t n) {
        engine.tiles->dot({element, key_rows.at(k0 + i + begin), size, key_rows.row_bytes, q.data,
                           q.row_bytes, p.width, n, rows, scores + i + begin, kScoreRow});
      });
    }
    for (int64_t g = 0; g < group; ++g) {
      const int64_t row = g * p.queries;
      rows_avx512()->softmax(
          {block(scores + row * kScoreRow, batch, kv_head * group + g, k0, count),
           /*first=*/true, part.max + row, part.sum + row, nullptr});
    }
    for_runs(values, k0, count, [&](int64_t begin, int64_t n) {
      engine.tiles->stream({element, values.at(k0 + begin), values.row_bytes, size,
                            reinterpret_cast<const char*>(scores + begin), kScoreRow * 4, n,
                            p.value_width, rows, part.sums, sums_row, /*add=*/begin > 0});
    });
  }

  void finish(int64_t batch, int64_t kv_head, const Part& part) const {
    const Strides& s = logsumexp.strides;
    for (int64_t g = 0; g < group; ++g) {
      const int64_t head = kv_head * group + g, row = g * p.queries;
      const Rows to = rows_of(out, size, batch, head);
      float* lse =
          logsumexp.data == nullptr ? nullptr : logsumexp.data + batch * s.batch + head * s.head;
      engine.rows->finish(storage_of(p.dtype), {part.sums + row * sums_row, sums_row, p.queries,
                                                p.value_width, part.max + row, part.sum + row, unit,
                                                writable(to.data), to.row_bytes, lse, s.row});
    }
  }

  // Brings `part` and `other` to their common maximum and adds the latter to the former.
  void join(const Part& part, const Part& other) const {
    for (int64_t row = 0; row < rows; ++row) {
      const float maximum = std::max(part.max[row], other.max[row]);
      const float base = maximum == kMinusInfinity ? 0.0F : maximum;
      const float mine = std::exp((part.max[row] - base) * unit);
      const float theirs = std::exp((other.max[row] - base) * unit);
      part.max[row] = maximum;
      part.sum[row] = part.sum[row] * mine + other.sum[row] * theirs;
      float* a = part.sums + row * sums_row;
      const float* b = other.sums + row * sums_row;
      for (int64_t i = 0; i < p.value_width; ++i) a[i] = a[i] * mine + b[i] * theirs;
    }
  }

  void run() const {
    Carve size_of_part;
    carve(size_of_part);
    const int64_t part_bytes = int64_t(size_of_part.bytes());
    const int64_t heads = p.batch * p.kv_heads;
    char* const all_parts =
        parts == 1 ? nullptr
                   : gemm::scratch(gemm::Slot::kAttentionParts, size_t(heads * parts * part_bytes));
    const double read = double(heads) * keys * (p.width + p.value_width);
    const bool parallel = gemm::worth_threads(read * rows, read * size);
    gemm::for_tasks(heads * parts, parallel, [&](int64_t index) {
      const int64_t head = index / parts, k0 = index % parts * kPartKeys;
      const int64_t scores_bytes = round_up(rows * kScoreRow * 4, 64);
      const int64_t query_bytes = round_up(rows * engine.units(p.width) * 4, 64);
      char* memory =
          gemm::scratch(gemm::Slot::kAttention, size_t(scores_bytes + query_bytes + part_bytes));
      Carve place(all_parts == nullptr ? memory + scores_bytes + query_bytes
                                       : all_parts + index * part_bytes);
      const Part part = carve(place);
      compute(head / p.kv_heads, head % p.kv_heads, k0, std::min(kPartKeys, keys - k0), part,
              reinterpret_cast<float*>(memory), reinterpret_cast<uint32_t*>(memory + scores_bytes));
      if (parts == 1) finish(head / p.kv_heads, head % p.kv_heads, part);
    });
    if (parts == 1) return;
    gemm::for_tasks(heads, gemm::worth_threads(0, double(heads) * parts * part_bytes),
                    [&](int64_t head) {
                      const auto at = [&](int64_t index) {
                        Carve place(all_parts + (head * parts + index) * part_bytes);
                        return carve(place);
                      };
                      const Part joined = at(0);
                      for (int64_t i = 1; i < parts; ++i) join(joined, at(i));
                      finish(head / p.kv_heads, head % p.kv_heads, joined);
                    });
  }
};

}  // namespace

void forward_few_queries(const Problem& p, const Output& out, const View<float>& logsumexp) {
  Driver(p, out, logsumexp).run();
}

}  // namespace torch_neuronx::attention
