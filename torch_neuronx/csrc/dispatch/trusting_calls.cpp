#include "dispatch/trusting_calls.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "dispatch/schema.h"

namespace torch_neuronx::trusting {

Call::Call(const c10::OperatorHandle& op, torch::jit::Stack& stack, StandIns& stand_ins)
    : op_(op),
      stack_(stack),
      stand_ins_(stand_ins),
      base_(stack.size() - op.schema().arguments().size()) {}

c10::IValue* Call::find(const char* name) const {
  const auto index = op_.schema().argumentIndexWithName(name);
  return index ? &stack_[base_ + static_cast<size_t>(*index)] : nullptr;
}

const at::Tensor* Call::tensor(const char* name) const {
  const c10::IValue* value = find(name);
  if (value == nullptr || !value->isTensor() || !value->toTensor().defined()) return nullptr;
  return &value->toTensor();
}

void Call::require_given(bool is, const char* name) const {
  TORCH_CHECK(is, op_.schema().name(), ": '", name, "' is missing");
}

const c10::IValue& Call::argument(const char* name) const {
  const c10::IValue* value = find(name);
  require_given(value != nullptr, name);
  return *value;
}

const at::Tensor& Call::operand(const char* name) const {
  const at::Tensor* t = tensor(name);
  require_given(t != nullptr, name);
  return *t;
}

bool Call::writes(const char* name) const {
  // Gradients are written back without their scale, if they have one.
  if (std::string_view(name) == "grads") return tensor("grad_scale") != nullptr;
  const auto index = op_.schema().argumentIndexWithName(name);
  return is_written(op_.schema().arguments()[static_cast<size_t>(*index)]);
}

void Call::replace(const char* name, at::Tensor copy) {
  c10::IValue* value = find(name);
  if (writes(name)) stand_ins_.add(value->toTensor(), copy);
  *value = std::move(copy);
}

void Call::replace(const char* name, const std::vector<at::Tensor>& copies) {
  c10::IValue* value = find(name);
  auto list = value->toTensorVector();
  for (size_t i = 0; i < list.size(); ++i) {
    if (!copies[i].defined()) continue;
    if (writes(name)) stand_ins_.add(list[i], copies[i]);
    list[i] = copies[i];
  }
  *value = std::move(list);
}

void Call::require(bool holds, const std::string& what) const {
  TORCH_CHECK(holds, op_.schema().name(), ": ", what);
}

at::Tensor Call::elements(const char* name) const {
  const at::Tensor* t = tensor(name);
  if (t == nullptr || t->is_meta()) return {};
  require(!t->is_floating_point() && !t->is_complex() && t->scalar_type() != at::kBool,
          std::string("'") + name + "' must hold integers, got " + c10::toString(t->scalar_type()));
  return t->to(at::kCPU).to(at::kLong).contiguous();
}

void Call::require_within(const char* name, int64_t low, int64_t high) const {
  const at::Tensor values = elements(name);
  if (!values.defined()) return;
  const auto* p = values.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    TORCH_CHECK_INDEX(p[i] >= low && p[i] < high, op_.schema().name(), ": index ", p[i], " in '",
                      name, "' is out of range, allowed are ", low, " to ", high - 1);
  }
}

namespace {

bool given(const Call& call, const char* name) { return call.tensor(name) != nullptr; }
bool flag(const Call& call, const char* name, bool otherwise) {
  const c10::IValue* value = call.find(name);
  return value != nullptr && value->isBool() ? value->toBool() : otherwise;
}
int64_t number(const Call& call, const char* name, int64_t otherwise) {
  const c10::IValue* value = call.find(name);
  return value != nullptr && value->isInt() ? value->toInt() : otherwise;
}
std::vector<int64_t> numbers(const Call& call, const char* name) {
  const c10::IValue* value = call.find(name);
  if (value == nullptr) return {};
  if (value->isIntList()) return value->toIntVector();
  const at::Tensor t = call.elements(name);
  if (!t.defined()) return {};
  return {t.const_data_ptr<int64_t>(), t.const_data_ptr<int64_t>() + t.numel()};
}
bool on_meta(const Call& call, const char* name) {
  const at::Tensor* t = call.tensor(name);
  return t != nullptr && t->is_meta();
}
// A dimension counted from the front; -1 if there is no such one.
int64_t wrapped(int64_t dim, int64_t rank) {
  if (dim < -rank || dim >= rank) return -1;
  return dim < 0 ? dim + rank : dim;
}

}  // namespace

void attention(Call& call) {
  const at::Tensor &query = call.operand("query"), &key = call.operand("key");
  call.require(query.numel() > 0 && key.numel() > 0, "query, key and value must not be empty");
  call.require(query.size(1) % key.size(1) == 0,
               "the query's heads must be a multiple of the key's");
  if (const at::Tensor* mask = call.tensor("attn_mask")) {
    const at::DimVector sizes{query.size(0), query.size(1), query.size(2), key.size(2)};
    call.require(
        (mask->dim() == 2 || mask->dim() == 4) && at::is_expandable_to(mask->sizes(), sizes),
        "'attn_mask' does not go with the scores' shape");
  }
  for (const char* name : {"query", "key", "value", "grad_out", "out"}) {
    const at::Tensor* t = call.tensor(name);
    if (t != nullptr && t->stride(-1) != 1) call.replace(name, t->contiguous());
  }
}

void batch_norm(Call& call) {
  const bool training = flag(call, "training", false);
  const bool mean = given(call, "running_mean"), variance = given(call, "running_var");
  call.require(mean == variance, "running_mean and running_var go together");
  const bool updates = call.find("eps") == nullptr;  // batch_norm_update_stats
  call.require(mean || training || updates, "without training the running statistics are needed");
}

void batch_norm_backward(Call& call) {
  const bool train = flag(call, "train", flag(call, "update", true));
  const int64_t channels = call.operand("input").size(1);
  const auto need = [&](const char* name) {
    const at::Tensor* t = call.tensor(name);
    call.require(t != nullptr && t->dim() == 1 && t->size(0) == channels,
                 std::string("'") + name + "' must have an element per channel");
  };
  if (train) {
    for (const char* name : {"save_mean", "save_invstd", "save_var", "save_var_transform"}) {
      if (call.find(name) != nullptr) need(name);
    }
  } else {
    need("running_mean");
    need("running_var");
  }
}

void group_norm(Call& call) {
  const int64_t n = number(call, "N", 0), c = number(call, "C", 0), inner = number(call, "HxW", 0);
  const int64_t groups = number(call, "group", 0);
  call.require(n >= 0 && c >= 0 && inner >= 0 && groups > 0 && c % groups == 0,
               "N, C and HxW must not be negative and C must be a multiple of group");
  int64_t all = 0;
  const bool overflow =
      __builtin_mul_overflow(n, c, &all) || __builtin_mul_overflow(all, inner, &all);
  call.require(!overflow && call.operand("input").numel() == all,
               "the input must have N * C * HxW elements");
  for (const char* name : {"weight", "bias"}) {
    const at::Tensor* t = call.tensor(name);
    call.require(t == nullptr || t->numel() == c,
                 std::string("'") + name + "' must have an element per channel");
  }
  for (const char* name : {"mean", "rstd"}) {
    const at::Tensor* t = call.tensor(name);
    call.require(t == nullptr || t->numel() == n * groups,
                 std::string("'") + name + "' must have an element per sample and group");
  }
}

void layer_norm_backward(Call& call) {
  const auto normalized = call.argument("normalized_shape").toIntVector();
  const at::Tensor& x = call.operand("input");
  const auto n = static_cast<int64_t>(normalized.size());
  call.require(n >= 1 && n <= x.dim() &&
                   x.sizes().slice(static_cast<size_t>(x.dim() - n)) == at::IntArrayRef(normalized),
               "normalized_shape must be the last sizes of the input");
  const int64_t cols = c10::multiply_integers(normalized);
  const int64_t rows = c10::multiply_integers(x.sizes().slice(0, static_cast<size_t>(x.dim() - n)));
  for (const char* name : {"weight", "bias"}) {
    const at::Tensor* t = call.tensor(name);
    call.require(t == nullptr || t->sizes() == at::IntArrayRef(normalized),
                 std::string("'") + name + "' must be of the normalized shape");
  }
  for (const char* name : {"mean", "rstd"}) {
    const at::Tensor* t = call.tensor(name);
    call.require(t != nullptr && (cols == 0 || t->numel() == rows),
                 std::string("'") + name + "' must have an element per row");
  }
}

namespace {

// `least`: of the padded sides.
void pad_backward(Call& call, int64_t least) {
  const auto padding = call.argument("padding").toIntVector();
  const at::Tensor &grad = call.operand("grad_output"), &self = call.operand("self");
  const auto dims = static_cast<int64_t>(padding.size() / 2);
  const int64_t rank = self.dim();
  bool fits = padding.size() % 2 == 0 && dims > 0 && dims <= 3 && grad.dim() == rank &&
              (rank == dims + 1 || rank == dims + 2);
  for (int64_t d = 0; fits && d < rank; ++d) {
    const int64_t from_end = rank - 1 - d;
    int64_t expected = self.size(d);
    if (from_end < dims) {
      const auto at = static_cast<size_t>(2 * from_end);
      fits = self.size(d) > 0 && !__builtin_add_overflow(expected, padding[at], &expected) &&
             !__builtin_add_overflow(expected, padding[at + 1], &expected) && expected >= least;
    }
    fits = fits && grad.size(d) == expected;
  }
  call.require(fits, "'grad_output' is not of the padded shape of 'self'");
}

}  // namespace

// Of an empty gradient it makes what nothing wrote.
void reflection_backward(Call& call) { pad_backward(call, 1); }
void replication_backward(Call& call) { pad_backward(call, 0); }

void pdist_backward(Call& call) {
  const int64_t n = call.operand("self").size(0), k = call.operand("pdist").numel();
  call.require(k == n * (n - 1) / 2, "the gradient of n rows must have n (n - 1) / 2 elements");
}

void csr_to_coo(Call& call) {
  const at::Tensor &rows = call.operand("crow_indices"), &cols = call.operand("col_indices");
  const auto leading = [](const at::Tensor& t) {
    return t.sizes().slice(0, static_cast<size_t>(std::max<int64_t>(t.dim() - 1, 0)));
  };
  call.require(rows.dim() >= 1 && cols.dim() == rows.dim() && leading(rows) == leading(cols) &&
                   rows.size(-1) > 0 && rows.scalar_type() == cols.scalar_type(),
               "row and column indices must be alike but for the last dimension");
  const at::Tensor all = call.elements("crow_indices");
  if (!all.defined()) return;
  const at::Tensor by_matrix = all.reshape({-1, all.size(-1)});
  for (int64_t m = 0; m < by_matrix.size(0); ++m) {
    const auto* p = by_matrix[m].const_data_ptr<int64_t>();
    const int64_t n = all.size(-1);
    bool rises = p[0] == 0 && p[n - 1] == cols.size(-1);
    for (int64_t i = 1; rises && i < n; ++i) rises = p[i] >= p[i - 1];
    call.require(rises, "'crow_indices' must rise from 0 to the number of column indices");
  }
}

void coo_to_csr(Call& call) {
  const int64_t size = number(call, "size", -1);
  call.require(size >= 0, "'size' must not be negative");
  call.require_within("self", 0, size);
}

void ctc_loss(Call& call) {
  const at::Tensor &log_probs = call.operand("log_probs"), &targets = call.operand("targets");
  call.require(log_probs.dim() == 3 && (targets.dim() == 1 || targets.dim() == 2) &&
                   (log_probs.is_meta() || targets.scalar_type() == at::kLong ||
                    targets.scalar_type() == at::kInt),
               "log_probs must have 3 dimensions, targets 1 or 2 of int32 or int64");
  const int64_t time = log_probs.size(0), batch = log_probs.size(1), classes = log_probs.size(2);
  const int64_t blank = number(call, "blank", 0);
  call.require(blank >= 0 && blank < classes, "'blank' must be a class");
  if (on_meta(call, "input_lengths") || on_meta(call, "target_lengths")) return;
  const auto input = numbers(call, "input_lengths"), target = numbers(call, "target_lengths");
  bool fits = static_cast<int64_t>(input.size()) == batch &&
              static_cast<int64_t>(target.size()) == batch &&
              (targets.dim() == 1 || targets.size(0) == batch);
  int64_t total = 0, longest = 0;
  for (size_t b = 0; fits && b < input.size(); ++b) {
    fits = input[b] >= 0 && input[b] <= time && target[b] >= 0 &&
           target[b] <= targets.size(targets.dim() - 1);
    longest = std::max(longest, target[b]);
    total += target[b];
  }
  call.require(fits && (targets.dim() == 2 || total <= targets.size(0)),
               "the lengths must be those of sequences within log_probs and targets");
  if (call.find("log_alpha") != nullptr) {
    const at::Tensor &grad = call.operand("grad"), &loss = call.operand("neg_log_likelihood"),
                     &alpha = call.operand("log_alpha");
    call.require(grad.dim() == 1 && grad.size(0) == batch && loss.sizes() == grad.sizes() &&
                     alpha.dim() == 3 && alpha.size(0) == batch && alpha.size(1) == time &&
                     alpha.size(2) >= 2 * longest + 1 &&
                     alpha.scalar_type() == log_probs.scalar_type() &&
                     grad.scalar_type() == log_probs.scalar_type() &&
                     loss.scalar_type() == log_probs.scalar_type(),
                 "the gradient, the loss and log_alpha must be those of log_probs and targets");
  }
  const at::Tensor labels = call.elements("targets");
  if (!labels.defined()) return;
  const auto* p = labels.const_data_ptr<int64_t>();
  for (int64_t b = 0, begin = 0; b < batch; ++b) {
    const int64_t length = target[static_cast<size_t>(b)];
    const int64_t first = labels.dim() == 2 ? b * labels.size(1) : begin;
    for (int64_t i = first; i < first + length; ++i) {  // what follows is padding
      TORCH_CHECK_INDEX(p[i] >= 0 && p[i] < classes, "_ctc_loss: label ", p[i], " of sequence ", b,
                        " is out of range, there are ", classes, " classes");
    }
    begin += length;
  }
}

// The kernels read integers of several arguments as one type, and the public functions take int32
// beside int64.
void widen_integers(Call& call, std::initializer_list<const char*> names) {
  const auto is = [&](const char* name, at::ScalarType type) {
    const at::Tensor* t = call.tensor(name);
    return t != nullptr && t->scalar_type() == type;
  };
  if (std::none_of(names.begin(), names.end(), [&](auto name) { return is(name, at::kLong); })) {
    return;
  }
  for (const char* name : names) {
    if (is(name, at::kInt)) call.replace(name, call.tensor(name)->to(at::kLong));
  }
}

// It passes over indices that are out of range, but counts what each of them is named by.
void embedding_backward(Call& call) {
  const int64_t rows = call.argument("num_weights").toInt();
  call.require(rows >= 0, "'num_weights' must not be negative");
  if (flag(call, "scale_grad_by_freq", false)) call.require_within("indices", 0, rows);
}

void embedding_bag_backward(Call& call) {
  widen_integers(call, {"indices", "offsets", "offset2bag", "bag_size", "maximum_indices"});
  const at::Tensor &grad = call.operand("grad"), &indices = call.operand("indices");
  const at::Tensor* weight = call.tensor("weight");
  const int64_t bags = grad.size(0), count = indices.numel(), mode = number(call, "mode", 0);
  call.require(mode >= 0 && mode <= 2, "'mode' must be 0, 1 or 2");
  call.require(grad.size(1) > 0, "the gradient must have columns");
  const int64_t rows = weight != nullptr ? weight->size(0) : number(call, "num_weights", 0);
  call.require(rows >= 0, "'num_weights' must not be negative");
  call.require_within("indices", 0, rows);
  call.require_within("offsets", 0, count + 1);
  if (const at::Tensor* offsets = call.tensor("offsets")) {
    call.require(offsets->dim() == 1 &&
                     (offsets->numel() == bags || offsets->numel() == bags + 1) &&
                     offsets->scalar_type() == indices.scalar_type(),
                 "'offsets' must have an element per bag and the dtype of the indices");
    // Where offset2bag is empty it is made of the offsets, with the last bag's number for the rest.
    const auto o = numbers(call, "offsets");
    call.require(o.empty() || (o.front() == 0 && std::is_sorted(o.begin(), o.end())),
                 "'offsets' must rise from 0");
  }
  if (const at::Tensor* bag = call.tensor("offset2bag")) {
    call.require(bag->dim() == 1 && (bag->numel() == count || bag->numel() == 0) &&
                     bag->scalar_type() == indices.scalar_type(),
                 "'offset2bag' must have an element per index and their dtype");
    call.require(bag->numel() > 0 || count == 0 || bags > 0, "there must be a bag");
    call.require_within("offset2bag", 0, bags);
  }
  if (const at::Tensor* size = call.tensor("bag_size")) {
    call.require(
        size->dim() == 1 && size->numel() >= bags && size->scalar_type() == indices.scalar_type(),
        "'bag_size' must have an element per bag and the dtype of the indices");
  }
  if (const at::Tensor* most = call.tensor("maximum_indices"); most != nullptr && mode == 2) {
    call.require(most->sizes() == grad.sizes() && most->scalar_type() == indices.scalar_type(),
                 "'maximum_indices' must be of the gradient's shape and the indices' dtype");
    call.require_within("maximum_indices", -1, rows);
  }
}

void segment_reduce(Call& call) {
  const at::Tensor& data = call.operand("data");
  const int64_t axis = wrapped(number(call, "axis", 0), data.dim());
  const at::Tensor *lengths = call.tensor("lengths"), *offsets = call.tensor("offsets");
  const at::Tensor* cuts = offsets != nullptr ? offsets : lengths;
  call.require(axis >= 0 && cuts != nullptr, "lengths or offsets along a dimension are needed");
  const char* name = offsets != nullptr ? "offsets" : "lengths";
  // They may be the same for all leading positions, or have these dimensions too.
  call.require(cuts->dim() == axis + 1 && cuts->sizes().slice(0, static_cast<size_t>(axis)) ==
                                              data.sizes().slice(0, static_cast<size_t>(axis)),
               std::string("'") + name + "' must have the leading dimensions of the data");
  const int64_t segments = cuts->size(axis) - (offsets != nullptr ? 1 : 0);
  call.require(segments >= 0, "'offsets' must not be empty");
  if (const at::Tensor* output = call.tensor("output")) {
    bool fits = output->dim() == data.dim();
    for (int64_t d = 0; fits && d < data.dim(); ++d) {
      fits = output->size(d) == (d == axis ? segments : data.size(d));
    }
    call.require(fits, "'output' must have a place for every segment");
  }
  const at::Tensor values = call.elements(name);
  if (!values.defined()) return;
  const auto* p = values.const_data_ptr<int64_t>();
  const int64_t per = cuts->size(axis), size = data.size(axis);
  for (int64_t row = 0; row * per < values.numel(); ++row, p += per) {
    int64_t sum = 0;
    // Those of a part of the data (a shard) need not reach its ends.
    bool fits = offsets == nullptr || (p[0] >= 0 && p[per - 1] <= size);
    for (int64_t i = 0; fits && i < per; ++i) {
      if (offsets != nullptr) {
        fits = i == 0 || p[i] >= p[i - 1];
      } else {
        fits = p[i] >= 0 && p[i] <= size - sum;
        sum += fits ? p[i] : 0;
      }
    }
    call.require(fits, c10::str("'", name, "' must lie in order within the data's dimension"));
  }
}

void reshape_alias(Call& call) {
  const at::Tensor& self = call.operand("self");
  const auto sizes = call.argument("size").toIntVector(),
             strides = call.argument("stride").toIntVector();
  bool fits = sizes.size() == strides.size();
  int64_t last = self.storage_offset();
  bool empty = false;
  for (size_t d = 0; fits && d < sizes.size(); ++d) {
    int64_t reach = 0;
    fits = sizes[d] >= 0 && strides[d] >= 0 &&
           !__builtin_mul_overflow(std::max<int64_t>(sizes[d] - 1, 0), strides[d], &reach) &&
           !__builtin_add_overflow(last, reach, &last);
    empty = empty || sizes[d] == 0;
  }
  const auto room = static_cast<int64_t>(self.storage().nbytes() / self.itemsize());
  call.require(fits && (empty || last < room), "size and stride reach beyond the storage");
}

void some_tensors(Call& call) {
  const c10::IValue* tensors = call.find("tensors");
  call.require(tensors->isTensorList() && !tensors->toTensorList().empty(),
               "at least one tensor is needed");
}

void rescale_qkv(Call& call) {
  const int64_t heads = number(call, "num_heads", 0), width = call.operand("qkv").size(2);
  call.require(heads > 0 && width % 3 == 0 && (width / 3) % heads == 0 && width > 0,
               "the last dimension must be three times a multiple of num_heads");
}

namespace {
void require_norms(const Call& call, const at::Tensor& v, const char* name, int64_t dim) {
  const at::Tensor& g = call.operand(name);
  bool fits = g.dim() == v.dim() || g.dim() == 1;
  for (int64_t d = 0; fits && d < g.dim(); ++d) {
    fits = g.size(d) == (g.dim() == 1 || d == dim ? v.size(dim) : 1);
  }
  call.require(fits, std::string("'") + name + "' must have an element per slice of v");
}
}  // namespace

void weight_norm(Call& call) {
  const at::Tensor& v = call.operand("v");
  const int64_t dim = number(call, "dim", 0);
  if (call.find("dim") == nullptr || (dim != 0 && dim != v.dim() - 1)) {
    // Not for the fused kernel; PyTorch's arithmetic on whole tensors is taken, or it raises.
    return;
  }
  call.require(v.dim() > 0, "v must have a dimension");
  require_norms(call, v, "g", dim);
}

void weight_norm_backward(Call& call) {
  const at::Tensor& v = call.operand("saved_v");
  const int64_t dim = number(call, "dim", 0);
  call.require(v.dim() > 0 && (dim == 0 || dim == v.dim() - 1),
               "dim must be the first or the last");
  require_norms(call, v, "saved_g", dim);
  require_norms(call, v, "saved_norms", dim);
}

void lu_unpack(Call& call) {
  if (!flag(call, "unpack_pivots", true)) return;
  const at::Tensor &lu = call.operand("LU_data"), &pivots = call.operand("LU_pivots");
  call.require(lu.dim() >= 2 && pivots.dim() == lu.dim() - 1,
               "one pivot vector per matrix is needed");
  const int64_t rank = lu.dim();
  call.require(pivots.sizes().slice(0, static_cast<size_t>(rank - 2)) ==
                       lu.sizes().slice(0, static_cast<size_t>(rank - 2)) &&
                   pivots.size(-1) == std::min(lu.size(-1), lu.size(-2)),
               "there must be a pivot per row or column, whichever are fewer");
  call.require_within("LU_pivots", 1, lu.size(-2) + 1);
}

// The operator compares sizes and the range of pivots.
void ldl_solve(Call& call) {
  const at::Tensor pivots = call.elements("pivots");
  if (!pivots.defined() || pivots.dim() == 0) return;
  const auto* p = pivots.const_data_ptr<int64_t>();
  const int64_t n = pivots.size(-1);
  for (int64_t row = 0; row < pivots.numel(); row += n) {
    for (int64_t i = row; i < row + n; ++i) {
      if (p[i] >= 0) continue;
      ++i;  // a block of two rows, which has two
      call.require(i < row + n && p[i] < 0,
                   "negative pivots come in pairs, for blocks of two rows");
    }
  }
}

void loss_backward(Call& call) {
  const at::Tensor &grad = call.operand("grad_output"), &self = call.operand("self"),
                   &target = call.operand("target");
  call.require(self.dim() <= 2, "the input must have at most 2 dimensions");
  const int64_t samples = self.dim() == 2 ? self.size(0) : 1;
  const int64_t classes = self.dim() == 0 ? 1 : self.size(-1);
  const bool each = number(call, "reduction", 1) == 0 && self.dim() == 2;
  call.require(grad.numel() == (each ? samples : 1) && grad.scalar_type() == self.scalar_type(),
               "the gradient must have an element per loss");
  if (call.find("is_target") != nullptr) {
    call.require_within("target", -1, classes);
    return;
  }
  call.require(target.numel() == samples, "there must be a target per sample");
  call.require_within("target", 0, classes);
  const at::Tensor* weight = call.tensor("weight");
  call.require(weight == nullptr || weight->numel() == classes, "there must be a weight per class");
}

void unfold_backward(Call& call) {
  const at::Tensor& grad = call.operand("grad_in");
  const auto sizes = call.argument("input_sizes").toIntVector();
  const int64_t size = number(call, "size", 0), step = number(call, "step", 1);
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t dim = wrapped(number(call, "dim", 0), std::max<int64_t>(rank, 1));
  bool fits = dim >= 0 && size >= 0 && step > 0 && grad.dim() == rank + 1 && grad.size(-1) == size;
  for (int64_t d = 0; fits && d < rank; ++d) {
    const int64_t n = sizes[static_cast<size_t>(d)];
    fits =
        n >= 0 && (d != dim || size <= n) && grad.size(d) == (d == dim ? (n - size) / step + 1 : n);
  }
  call.require(fits, "'grad_in' is not the shape of the unfolded input");
}

void pad_packed(Call& call) {
  const at::Tensor &data = call.operand("data"), &sizes = call.operand("batch_sizes");
  call.require(
      data.dim() >= 1 && sizes.dim() == 1 && sizes.numel() > 0 && sizes.scalar_type() == at::kLong,
      "the data must have a dimension, batch_sizes be a vector of int64");
  const auto n = numbers(call, "batch_sizes");
  int64_t sum = 0;
  bool falls = true;
  for (size_t i = 0; falls && i < n.size(); ++i) {
    falls = n[i] > 0 && (i == 0 || n[i] <= n[i - 1]) && n[i] <= data.size(0) - sum;
    sum += falls ? n[i] : 0;
  }
  call.require(falls && (n.empty() || sum == data.size(0)),
               "batch_sizes must fall and add up to the rows of the data");
}

// A network takes a cell state for each hidden state, and the first of the sizes of a packed
// sequence, without looking whether there is one.
void recurrent(Call& call) {
  if (const c10::IValue* states = call.find("hx"); states->isTensorList()) {
    const auto hx = states->toTensorVector();
    call.require(hx.size() == 2, "expects two hidden states");
    std::ostringstream text;
    text << "states of " << hx[0].sizes() << " and " << hx[1].sizes()
         << " are not of as many layers";
    call.require(hx[0].dim() > 0 && hx[1].dim() > 0 && hx[0].size(0) == hx[1].size(0), text.str());
  }
  const at::Tensor* sizes = call.tensor("batch_sizes");
  call.require(
      sizes == nullptr || (sizes->dim() == 1 && sizes->numel() > 0 &&
                           sizes->scalar_type() == at::kLong && !sizes->is_privateuseone()),
      "batch_sizes must be a vector of int64 on the CPU, of one element at least");
}

namespace {

constexpr std::array kStates = {
    "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "momentum_buffer_list", "state_sums"};

// Fused optimizers go through memory as if all tensors of a position had one layout without gaps.
void one_layout(Call& call) {
  const auto params = call.argument("self").toTensorVector();
  std::vector<bool> odd;
  for (const at::Tensor& t : params) odd.push_back(!t.is_non_overlapping_and_dense());
  const auto each_list = [&](auto see) {
    for (const char* name : kStates) {
      const c10::IValue* value = call.find(name);
      if (value == nullptr || !value->isTensorList() || value->toListRef().empty()) continue;
      see(name, value->toTensorVector());
    }
  };
  each_list([&](const char*, const std::vector<at::Tensor>& list) {
    for (size_t i = 0; i < list.size(); ++i)
      odd[i] = odd[i] || list[i].strides() != params[i].strides();
  });
  if (std::none_of(odd.begin(), odd.end(), [](bool b) { return b; })) return;
  const auto replace = [&](const char* name, const std::vector<at::Tensor>& list) {
    std::vector<at::Tensor> copies(list.size());
    for (size_t i = 0; i < list.size(); ++i)
      if (odd[i]) copies[i] = list[i].clone(at::MemoryFormat::Contiguous);
    call.replace(name, copies);
  };
  each_list(replace);
  replace("self", params);
}

}  // namespace

void equal_lists(Call& call) {
  const auto first = call.argument("self").toTensorVector();
  const auto look = [&](const char* name, auto alike) {
    const c10::IValue* value = call.find(name);
    if (value == nullptr || !value->isTensorList()) return;
    const auto list = value->toTensorVector();
    const std::string_view word(name);
    const bool may_be_empty = (word == "max_exp_avg_sqs" && !flag(call, "amsgrad", false)) ||
                              word == "momentum_buffer_list";
    if (list.empty() && may_be_empty) return;
    call.require(list.size() == first.size(),
                 std::string("'") + name + "' must be as long as 'self'");
    for (size_t i = 0; i < list.size(); ++i) {
      call.require(alike(list[i], first[i]),
                   "'" + std::string(name) + "' must have the shapes of 'self'");
    }
  };
  look("src", [](const at::Tensor& t, const at::Tensor& self) {
    return at::is_expandable_to(t.sizes(), self.sizes());
  });
  look("state_steps", [](const at::Tensor& t, const at::Tensor&) { return t.numel() == 1; });
  for (const char* name : kStates) {
    look(name, [](const at::Tensor& t, const at::Tensor& p) { return t.sizes() == p.sizes(); });
  }
  if (call.find("grads") != nullptr) one_layout(call);
}

void fused_sgd(Call& call) {
  for (const at::Tensor& t : call.argument("self").toTensorVector()) {
    call.require(!at::isReducedFloatingType(t.scalar_type()),
                 "PyTorch's CPU kernel is wrong in 16 bits; _fused_sgd_ and compiled programs "
                 "have a step of their own");
  }
  equal_lists(call);
}

// The least integer of a type over -1: the processor's instruction traps, and ends the process. By
// -1 the kernel gets what is negated, over 1: the same values, and the least number stays itself as
// everywhere in arithmetic of integers.
void quotient(Call& call) {
  const at::Tensor *self = call.tensor("self"), *other = call.tensor("other");
  const c10::IValue* mode = call.find("rounding_mode");
  if (self == nullptr || other == nullptr || self->is_meta() || other->is_meta()) return;
  if (mode == nullptr || !mode->isString() || mode->toStringRef() != "trunc") return;
  const at::ScalarType type = at::result_type(*self, *other);
  if (!at::isIntegralType(type, /*includeBool=*/false) || !c10::isSignedType(type)) return;
  const at::Tensor divisor = other->to(type);
  const at::Tensor negated = divisor.eq(-1);
  if (!negated.any().item<bool>()) return;
  if (!at::are_expandable(self->sizes(), other->sizes())) return;  // PyTorch says so
  const at::Tensor dividend = self->to(type);
  call.replace("self", at::where(negated, dividend.neg(), dividend));
  call.replace("other", divisor.masked_fill(negated, 1));
}

// Averages of integers with a divisor of -1 trap likewise: they are averages of what is negated.
void average(Call& call) {
  const char* const name = call.find("grad_output") != nullptr ? "grad_output" : "self";
  const at::Tensor* divided = call.tensor(name);
  c10::IValue* divisor = call.find("divisor_override");
  if (divided == nullptr || divided->is_meta() || divisor == nullptr || !divisor->isInt()) return;
  if (divisor->toInt() != -1 || !at::isIntegralType(divided->scalar_type(), false)) return;
  call.replace(name, divided->neg());
  *divisor = 1;
}

}  // namespace torch_neuronx::trusting
