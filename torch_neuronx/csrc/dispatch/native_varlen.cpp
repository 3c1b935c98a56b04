// Attention over sequences that lie packed one after the other, as torch.nn.attention.varlen calls
// it: `_flash_attention_forward` and its backward. Every sequence is one problem for our kernels,
// which read and write the packed tensors in place.
//
// As with FlashAttention, query i of a sequence of Lq queries and Lk keys stands at key
// i + Lk - Lq: `causal` and the window count from there. A query that sees no key gives zeros; its
// log-sum-exp is 0 here, where FlashAttention has an infinity. Beyond what FlashAttention takes,
// float32 is allowed.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <vector>

#include "attention/aten_attention.h"
#include "dispatch/host_call.h"
#include "dispatch/native.h"

namespace torch_neuronx {
namespace {

using attention::with_contiguous_rows;
using OptionalTensor = std::optional<at::Tensor>;

struct Options {
  bool causal;
  std::optional<double> scale;
  int64_t left, right;  // how many keys before and after its own a query sees; negative: all
};

Options options_of(double dropout, bool causal, std::optional<double> scale,
                   const std::optional<c10::SymInt>& left,
                   const std::optional<c10::SymInt>& right) {
  TORCH_CHECK(dropout == 0.0, "flash attention on neuron has no dropout, got ", dropout);
  const auto window = [](const std::optional<c10::SymInt>& size) {
    return size ? size->guard_int(__FILE__, __LINE__) : -1;
  };
  return {causal, scale, window(left), causal ? 0 : window(right)};
}

// One problem: [batch, heads, length, width] of everything but the log-sum-exp, which is [batch,
// heads, length]. All are views of the operator's tensors. With `pages`, of which the keys have as
// many as they need, key and value are all pages: [pages, heads, page size, width].
struct Sequence {
  at::Tensor query, key, value;
  at::Tensor out, logsumexp;                              // written by the forward pass
  at::Tensor grad_out, grad_query, grad_key, grad_value;  // of the backward pass
  at::Tensor pages;                                       // int32, contiguous, each of them exists
  int64_t keys;
};

at::Tensor heads_first(const at::Tensor& t) { return t.transpose(1, 2); }

// What `t` [tokens, heads, width] holds of one sequence.
at::Tensor piece(const at::Tensor& t, int64_t begin, int64_t length) {
  return heads_first(t.narrow(0, begin, length).unsqueeze(0));
}

// The positions 0, ..., `total` or less at which sequences begin and end, checked.
std::vector<int64_t> bounds_of(const at::Tensor& cumulative, int64_t total, int64_t longest,
                               const char* name) {
  TORCH_CHECK(
      cumulative.dim() == 1 && cumulative.scalar_type() == at::kInt && cumulative.numel() > 0,
      "flash attention: ", name, " must be a vector of int32, got ", cumulative.scalar_type(), " ",
      cumulative.sizes());
  std::vector<int64_t> bounds(cumulative.numel());
  for (size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] =
        cumulative.const_data_ptr<int32_t>()[static_cast<int64_t>(i) * cumulative.stride(0)];
    const int64_t before = i == 0 ? 0 : bounds[i - 1];
    TORCH_CHECK(bounds[i] >= before && bounds[i] <= total, "flash attention: ", name,
                " must rise from 0 to at most ", total, ", got ", bounds[i], " after ", before);
    TORCH_CHECK(i == 0 || bounds[i] - before <= longest, "flash attention: a sequence of ",
                bounds[i] - before, " tokens in ", name, " is longer than the stated maximum, ",
                longest);
  }
  return bounds;
}

void check_packed(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const bool fits = query.dim() == 3 && key.dim() == 3 && value.dim() == 3 &&
                    key.size(0) == value.size(0) && key.size(1) == value.size(1) &&
                    key.size(2) == query.size(2) && key.size(1) > 0 &&
                    query.size(1) % key.size(1) == 0 && query.scalar_type() == key.scalar_type() &&
                    query.scalar_type() == value.scalar_type();
  TORCH_CHECK(fits,
              "flash attention: packed query, key and value must be [tokens, heads, width] "
              "of one dtype and width, with a multiple of the key's heads in the query; got ",
              query.scalar_type(), " ", query.sizes(), ", ", key.scalar_type(), " ", key.sizes(),
              " and ", value.scalar_type(), " ", value.sizes());
}

void check_paged(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const at::Tensor& table, const at::Tensor& used) {
  const bool fits = query.dim() == 3 && key.dim() == 4 && value.dim() == 4 &&
                    key.sizes().slice(0, 3) == value.sizes().slice(0, 3) &&
                    key.size(3) == query.size(2) && key.size(1) > 0 && key.size(2) > 0 &&
                    query.size(1) % key.size(2) == 0 && query.scalar_type() == key.scalar_type() &&
                    query.scalar_type() == value.scalar_type();
  TORCH_CHECK(fits,
              "flash attention: with a block_table, the query must be [tokens, heads, width], key "
              "and value [pages, page size, heads, width] of its dtype and width, and its heads a "
              "multiple of the key's; got ",
              query.scalar_type(), " ", query.sizes(), ", ", key.scalar_type(), " ", key.sizes(),
              " and ", value.scalar_type(), " ", value.sizes());
  TORCH_CHECK(table.dim() == 2 && table.scalar_type() == at::kInt && used.dim() == 1 &&
                  used.scalar_type() == at::kInt && table.size(0) == used.size(0),
              "flash attention: block_table and seqused_k must be int32 [sequences, pages] and "
              "[sequences], got ",
              table.scalar_type(), " ", table.sizes(), " and ", used.scalar_type(), " ",
              used.sizes());
}

// The pages that the keys of sequence `i` need, which `table` [sequences, pages] names and of which
// there are `pages` of `size` keys.
at::Tensor pages_of(const at::Tensor& table, int64_t i, int64_t keys, int64_t pages, int64_t size) {
  const int64_t needed = (keys + size - 1) / size;
  TORCH_CHECK(needed <= table.size(1), "flash attention: ", keys, " keys do not fit into ",
              table.size(1), " pages of ", size);
  const at::Tensor mine = table[i].narrow(0, 0, needed);
  const int32_t* const numbers = mine.const_data_ptr<int32_t>();
  for (int64_t j = 0; j < needed; ++j) {
    TORCH_CHECK_INDEX(numbers[j] >= 0 && numbers[j] < pages, "flash attention: block_table[", i,
                      "][", j, "] is ", numbers[j], " of ", pages, " pages");
  }
  return mine;
}

// The same sequence with its keys and values copied out of their pages, for PyTorch's kernel.
Sequence gathered(Sequence s) {
  for (at::Tensor* t : {&s.key, &s.value}) {
    *t =
        t->index_select(0, s.pages).transpose(0, 1).flatten(1, 2).narrow(1, 0, s.keys).unsqueeze(0);
  }
  s.pages = at::Tensor();
  return s;
}

at::Tensor visible_keys(const Sequence& s, const Options& options) {
  const int64_t queries = s.query.size(2), keys = s.keys, shift = keys - queries;
  at::Tensor mask = at::ones({queries, keys}, at::kBool);
  if (options.right >= 0) mask.tril_(shift + options.right);
  if (options.left >= 0) mask.triu_(shift - options.left);
  return mask;
}

// Which of our kernels' masks says what `options` say: none, the causal flag (query i sees the keys
// up to i + shift), or a tensor. Only our forward pass takes a shift.
struct Visibility {
  bool causal = false;
  at::Tensor mask;
  int64_t shift = 0;
};
Visibility visibility_of(const Sequence& s, const Options& options, bool takes_shift) {
  if (options.left < 0 && options.right < 0) return {};
  const int64_t shift = s.keys - s.query.size(2) + options.right;
  if (options.left < 0 && (takes_shift ? shift >= 0 : shift == 0)) return {true, {}, shift};
  return {false, visible_keys(s, options)};
}

OptionalTensor added(const at::Tensor& mask, at::ScalarType dtype) {
  if (!mask.defined()) return {};
  return at::zeros(mask.sizes(), dtype).masked_fill_(mask.logical_not(), -INFINITY);
}

attention::Output output(const at::Tensor& t) {
  return {t.mutable_data_ptr(), {t.stride(0), t.stride(1), t.stride(2)}};
}

// A query without keys keeps the zeros that its results start with.
bool is_empty(const Sequence& s) { return s.query.numel() == 0 || s.keys == 0; }

// PyTorch's kernel for CPUs wants as many heads of keys as of queries.
at::Tensor repeated(const at::Tensor& t, int64_t times) {
  return times == 1 ? t : t.repeat_interleave(times, 1);
}
at::Tensor summed(const at::Tensor& t, int64_t times) {
  return times == 1 ? t : t.unflatten(1, {-1, times}).sum(2);
}

// The forward pass as a problem of our kernels, if they take it.
std::optional<attention::Problem> forward_problem(const Sequence& s, const Visibility& seen,
                                                  const Options& options) {
  std::optional<attention::Problem> problem;
  if (!s.pages.defined()) {
    problem = attention::problem_of(s.query, s.key, s.value, seen.mask, seen.causal, options.scale);
  } else if (!seen.mask.defined()) {
    problem =
        attention::paged_problem_of(s.query, s.key, s.value, s.pages.const_data_ptr<int32_t>(),
                                    s.keys, seen.causal, options.scale);
  }
  if (problem) problem->shift = seen.shift;
  return problem;
}

// By PyTorch's kernel: widths beyond ours, and hosts that ours don't run on.
void aten_forward(const Sequence& s, const Options& options) {
  const int64_t share = s.query.size(1) / s.key.size(1);
  const auto [causal, mask, shift] = visibility_of(s, options, /*takes_shift=*/false);
  const auto [out, lse] =
      attention::aten_forward(s.query, repeated(s.key, share), repeated(s.value, share), causal,
                              added(mask, s.query.scalar_type()), options.scale);
  s.out.copy_(out);
  s.logsumexp.copy_(lse);
}

void forward(std::vector<Sequence> sequences, const Options& options) {
  std::vector<attention::ForwardCall> calls;
  std::vector<at::Tensor> masks;  // alive until the calls are done
  for (Sequence& s : sequences) {
    if (is_empty(s)) continue;
    const Visibility seen = visibility_of(s, options, /*takes_shift=*/true);
    auto problem = forward_problem(s, seen, options);
    if (!problem && s.pages.defined()) {  // a window's mask, or nothing for our kernels
      s = gathered(s);
      problem = forward_problem(s, seen, options);
    }
    if (!problem) {
      aten_forward(s, options);
      continue;
    }
    masks.push_back(seen.mask);
    const auto& lse = s.logsumexp;
    calls.push_back(
        {*problem,
         output(s.out),
         {lse.mutable_data_ptr<float>(), {lse.stride(0), lse.stride(1), lse.stride(2)}}});
  }
  attention::forward_each(calls);
}

void backward(const Sequence& s, const Options& options) {
  if (is_empty(s)) return;
  const auto [causal, mask, shift] = visibility_of(s, options, /*takes_shift=*/false);
  const auto problem = attention::problem_of(s.query, s.key, s.value, mask, causal, options.scale);
  const int64_t share = problem ? 1 : s.query.size(1) / s.key.size(1);
  const auto [query, key, value] =
      problem
          ? attention::backward(*problem, s.grad_out, s.query, s.key, s.value, s.out, s.logsumexp)
          : attention::aten_backward(s.grad_out, s.query, repeated(s.key, share),
                                     repeated(s.value, share), s.out, s.logsumexp, causal,
                                     added(mask, s.query.scalar_type()), options.scale);
  s.grad_query.copy_(query);
  s.grad_key.copy_(summed(key, share));
  s.grad_value.copy_(summed(value, share));
}

// The operator's tensors on the host's side. Without `cumulative_q` they are [batch, length, heads,
// width] and one problem.
struct VarlenCall {
  at::Tensor query, key, value, out, logsumexp;
  OptionalTensor cumulative_q, cumulative_k, used_keys, pages;
  int64_t longest_q, longest_k;
};

std::vector<Sequence> dense(const VarlenCall& call) {
  TORCH_CHECK(call.query.dim() == 4 && call.key.dim() == 4 && call.value.dim() == 4 &&
                  !call.used_keys && !call.pages,
              "flash attention: without cumulative lengths, query, key and value must be [batch, "
              "length, heads, width], and neither seqused_k nor block_table may be given");
  return {{heads_first(call.query),
           heads_first(call.key),
           heads_first(call.value),
           heads_first(call.out),
           call.logsumexp,
           {},
           {},
           {},
           {},
           {},
           call.key.size(1)}};
}

std::vector<Sequence> packed(const VarlenCall& call) {
  TORCH_CHECK(call.cumulative_k || call.pages,
              "flash attention: cum_seq_q needs cum_seq_k, or a block_table");
  TORCH_CHECK(!call.pages || call.used_keys, "flash attention: a block_table needs seqused_k");
  if (call.pages) {
    check_paged(call.query, call.key, call.value, *call.pages, *call.used_keys);
  } else {
    check_packed(call.query, call.key, call.value);
  }
  const auto q = bounds_of(*call.cumulative_q, call.query.size(0), call.longest_q, "cum_seq_q");
  const auto k = call.pages
                     ? std::vector<int64_t>(q.size(), 0)
                     : bounds_of(*call.cumulative_k, call.key.size(0), call.longest_k, "cum_seq_k");
  TORCH_CHECK(k.size() == q.size(), "flash attention: cum_seq_q and cum_seq_k describe ",
              q.size() - 1, " and ", k.size() - 1, " sequences");
  const auto count = static_cast<int64_t>(q.size()) - 1;
  TORCH_CHECK(!call.used_keys || call.used_keys->numel() == count,
              "flash attention: seqused_k must have an element per sequence");
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t queries = q[i + 1] - q[i];
    const int64_t keys = call.used_keys ? (*call.used_keys)[i].item<int64_t>() : k[i + 1] - k[i];
    TORCH_CHECK(keys >= 0 && (call.pages || keys <= k[i + 1] - k[i]), "flash attention: seqused_k[",
                i, "] is ", keys, " of ", k[i + 1] - k[i], " keys");
    const auto keys_of = [&](const at::Tensor& t) {
      return call.pages ? heads_first(t) : piece(t, k[i], keys);
    };
    sequences.push_back({piece(call.query, q[i], queries),
                         keys_of(call.key),
                         keys_of(call.value),
                         piece(call.out, q[i], queries),
                         call.logsumexp.narrow(1, q[i], queries).unsqueeze(0),
                         {},
                         {},
                         {},
                         {},
                         call.pages
                             ? pages_of(*call.pages, i, keys, call.key.size(0), call.key.size(1))
                             : at::Tensor(),
                         keys});
  }
  return sequences;
}

std::vector<Sequence> sequences_of(const VarlenCall& call) {
  return call.cumulative_q ? packed(call) : dense(call);
}

// The kernels rely on what was checked, so nobody else may write to it.
OptionalTensor own_copy(const OptionalTensor& numbers) {
  if (!numbers) return {};
  return numbers->clone(at::MemoryFormat::Contiguous);
}

at::Tensor empty_logsumexp(const at::Tensor& query, bool is_packed) {
  TORCH_CHECK(query.dim() == (is_packed ? 3 : 4), "flash attention: the query must be [",
              is_packed ? "tokens" : "batch, length", ", heads, width], got ", query.sizes());
  const auto options = query.options().dtype(at::kFloat);
  return is_packed ? at::zeros({query.size(1), query.size(0)}, options)
                   : at::zeros({query.size(0), query.size(2), query.size(1)}, options);
}

using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

ForwardResult flash_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const OptionalTensor& cumulative_q, const OptionalTensor& cumulative_k,
                            c10::SymInt longest_q, c10::SymInt longest_k, double dropout,
                            bool causal, bool, std::optional<double> scale,
                            std::optional<c10::SymInt> left, std::optional<c10::SymInt> right,
                            const OptionalTensor& used_keys, const OptionalTensor& slopes,
                            const OptionalTensor& pages, std::optional<int64_t>) {
  const Options options = options_of(dropout, causal, scale, left, right);
  TORCH_CHECK(!slopes, "flash attention on neuron has no alibi_slopes");
  return run_on_host(query.device().index(), [&](HostArgs& host) -> ForwardResult {
    const at::Tensor q = with_contiguous_rows(host(query)), v = with_contiguous_rows(host(value));
    at::DimVector sizes(q.sizes());
    sizes.back() = v.size(-1);
    const at::Tensor out = at::zeros(sizes, q.options());
    const at::Tensor logsumexp = empty_logsumexp(q, cumulative_q.has_value());
    const VarlenCall call{q,
                          with_contiguous_rows(host(key)),
                          v,
                          out,
                          logsumexp,
                          host(cumulative_q),
                          host(cumulative_k),
                          host(used_keys),
                          own_copy(host(pages)),
                          longest_q.guard_int(__FILE__, __LINE__),
                          longest_k.guard_int(__FILE__, __LINE__)};
    forward(sequences_of(call), options);
    // Neither dropout's state nor its mask: there is none.
    const auto bits = q.options().dtype(at::kUInt64);
    return {out, logsumexp, at::zeros({2}, bits), at::empty({0}, bits),
            at::empty({0}, q.options())};
  });
}

at::Tensor flash_forward_into(at::Tensor& out, const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const OptionalTensor& cumulative_q,
                              const OptionalTensor& cumulative_k, c10::SymInt longest_q,
                              c10::SymInt longest_k, double dropout, bool causal, bool mask,
                              std::optional<double> scale, std::optional<c10::SymInt> left,
                              std::optional<c10::SymInt> right, const OptionalTensor& used_keys,
                              const OptionalTensor& slopes, const OptionalTensor& pages,
                              std::optional<int64_t> splits) {
  auto [result, logsumexp, state, unused, dropped] =
      flash_forward(query, key, value, cumulative_q, cumulative_k, std::move(longest_q),
                    std::move(longest_k), dropout, causal, mask, scale, std::move(left),
                    std::move(right), used_keys, slopes, pages, splits);
  out.copy_(result);
  return logsumexp;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor& cumulative_q,
    const at::Tensor& cumulative_k, c10::SymInt longest_q, c10::SymInt longest_k, double dropout,
    bool causal, const at::Tensor&, const at::Tensor&, std::optional<double> scale,
    std::optional<c10::SymInt> left, std::optional<c10::SymInt> right) {
  const Options options = options_of(dropout, causal, scale, left, right);
  return run_on_host(query.device().index(), [&](HostArgs& host) {
    const bool is_packed = cumulative_q.defined();
    const VarlenCall call{with_contiguous_rows(host(query)),
                          with_contiguous_rows(host(key)),
                          with_contiguous_rows(host(value)),
                          with_contiguous_rows(host(out)),
                          host(logsumexp),
                          is_packed ? OptionalTensor(host(cumulative_q)) : std::nullopt,
                          is_packed ? OptionalTensor(host(cumulative_k)) : std::nullopt,
                          {},
                          {},
                          longest_q.guard_int(__FILE__, __LINE__),
                          longest_k.guard_int(__FILE__, __LINE__)};
    const at::Tensor g = with_contiguous_rows(host(grad));
    auto grads = std::tuple(at::zeros_like(call.query), at::zeros_like(call.key),
                            at::zeros_like(call.value));
    // The same cuts through the gradients.
    const auto& [grad_query, grad_key, grad_value] = grads;
    const auto of_grads = sequences_of({grad_query,
                                        grad_key,
                                        grad_value,
                                        g,
                                        call.logsumexp,
                                        call.cumulative_q,
                                        call.cumulative_k,
                                        {},
                                        {},
                                        call.longest_q,
                                        call.longest_k});
    auto sequences = sequences_of(call);
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& s = sequences[i];
      s.grad_out = of_grads[i].out;
      s.grad_query = of_grads[i].query;
      s.grad_key = of_grads[i].key;
      s.grad_value = of_grads[i].value;
      backward(s, options);
    }
    return grads;
  });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "_flash_attention_forward", flash_forward);
  NEURON_IMPL(m, "_flash_attention_forward_no_dropout_inplace", flash_forward_into);
  NEURON_IMPL(m, "_flash_attention_backward", flash_backward);
}

}  // namespace
}  // namespace torch_neuronx
