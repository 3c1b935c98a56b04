#include "queue/shape_functions.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MetaFunctions.h>
#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "attention/aten_attention.h"

namespace torch_neuronx::queue {
namespace {

using at::Scalar;
using at::Tensor;
using torch::jit::Stack;
namespace meta = at::meta;

// PyTorch's functions, by signature. Those of other names make results of the same geometry.
template <class Signature>
struct Row {
  const char* name;
  Signature* function;
};

constexpr Row<Tensor(const Tensor&)> kUnary[] = {{"aten::abs", &meta::sign},
                                                 {"aten::bitwise_not", &meta::bitwise_not},
                                                 {"aten::cos", &meta::cos},
                                                 {"aten::exp", &meta::exp},
                                                 {"aten::floor", &meta::floor},
                                                 {"aten::log", &meta::log},
                                                 {"aten::logical_not", &meta::isposinf},
                                                 {"aten::neg", &meta::neg},
                                                 {"aten::reciprocal", &meta::reciprocal},
                                                 {"aten::relu", &meta::sign},
                                                 {"aten::rsqrt", &meta::rsqrt},
                                                 {"aten::sigmoid", &meta::sigmoid},
                                                 {"aten::sign", &meta::sign},
                                                 {"aten::silu", &meta::silu},
                                                 {"aten::sin", &meta::sin},
                                                 {"aten::sqrt", &meta::sqrt},
                                                 {"aten::tanh", &meta::tanh}};
constexpr Row<Tensor(const Tensor&, const Tensor&)> kBinary[] = {
    {"aten::atan2", &meta::atan2},
    {"aten::bitwise_and.Tensor", &meta::bitwise_and},
    {"aten::bitwise_or.Tensor", &meta::bitwise_or},
    {"aten::bmm", &meta::bmm},
    {"aten::div.Tensor", &meta::div},
    {"aten::eq.Tensor", &meta::eq},
    {"aten::ge.Tensor", &meta::ge},
    {"aten::gt.Tensor", &meta::gt},
    {"aten::le.Tensor", &meta::le},
    {"aten::lt.Tensor", &meta::lt},
    {"aten::maximum", &meta::maximum},
    {"aten::minimum", &meta::minimum},
    {"aten::mm", &meta::mm},
    {"aten::mul.Tensor", &meta::mul},
    {"aten::ne.Tensor", &meta::ne},
    {"aten::pow.Tensor_Tensor", &meta::pow},
    {"aten::remainder.Tensor", &meta::remainder},
    {"aten::sigmoid_backward", &meta::sigmoid_backward},
    {"aten::silu_backward", &meta::silu_backward},
    {"aten::tanh_backward", &meta::tanh_backward}};
constexpr Row<Tensor(const Tensor&, const Scalar&)> kWithNumber[] = {
    {"aten::clamp_min", &meta::clamp_min}, {"aten::eq.Scalar", &meta::eq},
    {"aten::ge.Scalar", &meta::ge},        {"aten::gt.Scalar", &meta::gt},
    {"aten::le.Scalar", &meta::le},        {"aten::lt.Scalar", &meta::lt},
    {"aten::ne.Scalar", &meta::ne},        {"aten::pow.Tensor_Scalar", &meta::pow}};
constexpr Row<Tensor(const Tensor&, const Tensor&, const Scalar&)> kSums[] = {
    {"aten::add.Tensor", &meta::add},
    {"aten::sub.Tensor", &meta::sub},
    {"aten::threshold_backward", &meta::threshold_backward}};
constexpr Row<Tensor&(Tensor&, const Tensor&)> kBinaryInPlace[] = {
    {"aten::div_.Tensor", &meta::div_}, {"aten::mul_.Tensor", &meta::mul_}};
constexpr Row<Tensor&(Tensor&, const Tensor&, const Scalar&)> kSumsInPlace[] = {
    {"aten::add_.Tensor", &meta::add_}, {"aten::sub_.Tensor", &meta::sub_}};
constexpr Row<Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&)>
    kProducts[] = {{"aten::addmm", &meta::addmm}, {"aten::baddbmm", &meta::baddbmm}};
constexpr Row<Tensor(const Tensor&, at::OptionalIntArrayRef, bool, std::optional<at::ScalarType>)>
    kReductions[] = {{"aten::mean.dim", &meta::mean}, {"aten::sum.dim_IntList", &meta::sum}};
constexpr Row<Tensor(const Tensor&, at::IntArrayRef, bool)> kExtremes[] = {
    {"aten::amax", &meta::amax}, {"aten::amin", &meta::amin}};
constexpr Row<std::tuple<Tensor, Tensor>(const Tensor&, int64_t, bool)> kExtremesAndPlaces[] = {
    {"aten::max.dim", &meta::max}, {"aten::min.dim", &meta::min}};
constexpr Row<Tensor(const Tensor&, int64_t, bool)> kAlongOne[] = {
    {"aten::_log_softmax", &meta::_log_softmax},
    {"aten::_softmax", &meta::_softmax},
    {"aten::all.dim", &meta::all},
    {"aten::any.dim", &meta::any}};
constexpr Row<Tensor(const Tensor&, int64_t)> kTriangles[] = {{"aten::tril", &meta::tril},
                                                              {"aten::triu", &meta::triu}};
constexpr Row<Tensor(const at::ITensorListRef&, int64_t)> kCat[] = {{"aten::cat", &meta::cat}};
constexpr Row<Tensor(const Tensor&, int64_t, const Tensor&, bool)> kGather[] = {
    {"aten::gather", &meta::gather}};
constexpr Row<Tensor(const Tensor&, const c10::List<std::optional<Tensor>>&)> kIndex[] = {
    {"aten::index.Tensor", &meta::index}};
constexpr Row<Tensor(const Tensor&, std::optional<int64_t>, bool)> kArgmax[] = {
    {"aten::argmax", &meta::argmax}};
constexpr Row<Tensor(const Tensor&, c10::string_view)> kGelu[] = {{"aten::gelu", &meta::gelu}};
constexpr Row<Tensor(const Tensor&, const Tensor&, c10::string_view)> kGeluBackward[] = {
    {"aten::gelu_backward", &meta::gelu_backward}};
constexpr Row<Tensor(const Tensor&, int64_t, std::optional<at::ScalarType>)> kCumsum[] = {
    {"aten::cumsum", &meta::cumsum}};
constexpr Row<std::tuple<Tensor, Tensor>(const Tensor&, int64_t, int64_t, bool, bool)> kTopk[] = {
    {"aten::topk", &meta::topk}};
constexpr Row<std::tuple<Tensor, Tensor>(const Tensor&, std::optional<bool>, int64_t, bool)>
    kSort[] = {{"aten::sort.stable", &meta::sort}};

// Ours. What the stack has that they don't know is refused.

Tensor tensor(const Stack& stack, size_t i) {
  return stack[i].isTensor() ? stack[i].toTensor() : Tensor();
}
bool give(Stack* stack, Stack results) {
  *stack = std::move(results);
  return true;
}

// Writes to its first argument only, which fits whatever its size is.
bool writes(Stack* stack) {
  stack->resize(1);
  return true;
}
bool masked_fill(Stack* stack) {
  return give(stack, {meta::add(tensor(*stack, 0), tensor(*stack, 1), 1)});
}
bool masked_fill_in_place(Stack* stack) {
  const Tensor to = tensor(*stack, 0);
  if (at::infer_size(to.sizes(), tensor(*stack, 1).sizes()) != to.sizes()) return false;
  return writes(stack);
}
bool like_first(Stack* stack) { return give(stack, {at::empty_like(tensor(*stack, 0))}); }
bool flip(Stack* stack) {
  at::dim_list_to_bitset((*stack)[1].toIntVector(), tensor(*stack, 0).dim());
  return like_first(stack);
}
bool roll(Stack* stack) {
  const std::vector<int64_t> dims = (*stack)[2].toIntVector();
  if ((*stack)[1].toIntVector().size() != std::max<size_t>(dims.size(), 1)) return false;
  for (const int64_t dim : dims) at::maybe_wrap_dim(dim, tensor(*stack, 0).dim());
  return like_first(stack);
}
// With the mask.
bool dropout(Stack* stack) {
  const Tensor x = tensor(*stack, 0);
  return give(stack, {at::empty_like(x), at::empty_like(x, x.options().dtype(at::kBool))});
}
bool where(Stack* stack) {
  const Tensor either = meta::add(tensor(*stack, 1), tensor(*stack, 2), 1);
  return give(stack, {meta::add(either, tensor(*stack, 0), 1)});
}
// By whole numbers: what a mask chooses has a size that only its values tell.
bool index_put(Stack* stack) {
  const Tensor to = tensor(*stack, 0), values = tensor(*stack, 2);
  const Tensor chosen = meta::index(to, (*stack)[1].to<c10::List<std::optional<Tensor>>>());
  if (values.scalar_type() != to.scalar_type() ||
      !at::is_expandable_to(values.sizes(), chosen.sizes()))
    return false;
  return writes(stack);
}
bool embedding(Stack* stack) {
  const Tensor table = tensor(*stack, 0), rows = tensor(*stack, 1);
  if (table.dim() != 2) return false;
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes.push_back(table.size(1));
  return give(stack, {at::empty(sizes, table.options())});
}
bool index_select(Stack* stack) {
  const Tensor from = tensor(*stack, 0), rows = tensor(*stack, 2);
  const int64_t given = (*stack)[1].toInt(), dim = given < 0 ? given + from.dim() : given;
  if (rows.dim() > 1 || dim < 0 || dim >= from.dim()) return false;
  std::vector<int64_t> sizes = from.sizes().vec();
  sizes[static_cast<size_t>(dim)] = rows.numel();
  return give(stack, {at::empty(sizes, from.options())});
}
// With the mean and the reciprocal deviation of each row.
bool layer_norm(Stack* stack) {
  const Tensor x = tensor(*stack, 0);
  const std::vector<int64_t> shape = (*stack)[1].toIntVector();
  const auto left = x.dim() - static_cast<int64_t>(shape.size());
  if (left < 0 || x.sizes().slice(static_cast<size_t>(left)) != at::IntArrayRef(shape))
    return false;
  for (const size_t i : {2, 3}) {
    const Tensor factor = tensor(*stack, i);
    if (factor.defined() && factor.sizes() != at::IntArrayRef(shape)) return false;
  }
  std::vector<int64_t> rows = x.sizes().slice(0, static_cast<size_t>(left)).vec();
  rows.resize(static_cast<size_t>(x.dim()), 1);
  const auto wide = x.options().dtype(at::toOpMathType(x.scalar_type()));
  return give(stack,
              {at::empty(x.sizes(), x.options()), at::empty(rows, wide), at::empty(rows, wide)});
}
// As dispatch/native_attention.cpp does it.
bool fused_attention(Stack* stack) {
  const Tensor q = tensor(*stack, 0), k = tensor(*stack, 1), v = tensor(*stack, 2);
  const Tensor bias = tensor(*stack, 3);
  const bool fits = q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(0) == k.size(0) &&
                    q.size(1) == k.size(1) && q.size(3) == k.size(3) && k.sizes() == v.sizes();
  if (!fits || (bias.defined() && bias.dim() != 4)) return false;
  const int64_t wanted[] = {q.size(0), q.size(1), q.size(2), k.size(2)};
  for (int64_t d = 0; bias.defined() && d < 4; ++d)
    if (bias.size(d) != wanted[d] && bias.size(d) != 1) return false;
  const auto wide = q.options().dtype(at::toOpMathType(q.scalar_type()));
  const Tensor sums = at::empty(q.sizes().slice(0, 3), wide);
  const Tensor out = at::empty_like(attention::with_contiguous_rows(q));
  const auto state = q.options().dtype(at::kLong);
  return give(stack, {out, sums, Tensor(), Tensor(), q.size(2), k.size(2), at::empty({}, state),
                      at::empty({}, state), Tensor()});
}

struct Own {
  const char* name;
  bool (*function)(Stack*);
  // Ours say nothing of tensors whose dimensions are not in the usual order, which decides how a
  // result lies. These make none, or say how it lies.
  bool any_order = false;
};
constexpr Own kOwn[] = {
    {"aten::_index_put_impl_", &index_put, true},
    {"aten::index_put_", &index_put, true},
    {"aten::_scaled_dot_product_fused_attention_overrideable", &fused_attention, true},
    {"aten::bernoulli_.float", &writes, true},
    {"aten::embedding", &embedding},
    {"aten::fill_.Scalar", &writes, true},
    {"aten::flip", &flip},
    {"aten::index_select", &index_select},
    {"aten::masked_fill.Scalar", &masked_fill},
    {"aten::masked_fill_.Scalar", &masked_fill_in_place, true},
    {"aten::native_dropout", &dropout},
    {"aten::native_layer_norm", &layer_norm},
    {"aten::normal_", &writes, true},
    {"aten::roll", &roll},
    {"aten::uniform_", &writes, true},
    {"aten::where.self", &where},
    {"aten::zero_", &writes, true}};

bool in_usual_order(const Stack& stack) {
  return std::all_of(stack.begin(), stack.end(), [](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return true;
    const Tensor& t = value.toTensor();
    return t.strides() == at::IntArrayRef(c10::contiguous_strides(t.sizes()));
  });
}

using Table = std::unordered_map<std::string_view, ShapeFunction>;

template <class Signature, size_t N>
void add(Table* table, const Row<Signature> (&rows)[N]) {
  for (const auto& [name, function] : rows) {
    const auto kernel = std::make_shared<c10::KernelFunction>(
        c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
    (*table)[name] = [kernel](const c10::OperatorHandle& op, Stack* stack) {
      kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
      return true;
    };
  }
}

Table make_table() {
  Table table;
  add(&table, kUnary);
  add(&table, kBinary);
  add(&table, kWithNumber);
  add(&table, kSums);
  add(&table, kBinaryInPlace);
  add(&table, kSumsInPlace);
  add(&table, kProducts);
  add(&table, kReductions);
  add(&table, kExtremes);
  add(&table, kExtremesAndPlaces);
  add(&table, kAlongOne);
  add(&table, kTriangles);
  add(&table, kCat);
  add(&table, kGather);
  add(&table, kIndex);
  add(&table, kArgmax);
  add(&table, kGelu);
  add(&table, kGeluBackward);
  add(&table, kCumsum);
  add(&table, kTopk);
  add(&table, kSort);
  for (const Own& each : kOwn) {
    table[each.name] = [&each](const c10::OperatorHandle&, Stack* stack) {
      return (each.any_order || in_usual_order(*stack)) && each.function(stack);
    };
  }
  return table;
}

// Of those that PyTorch has, which take arguments that the operator itself refuses.
constexpr std::string_view kLax[] = {"aten::_amp_update_scale_",
                                     "aten::_mkldnn_transpose_",
                                     "aten::bernoulli_.Tensor",
                                     "aten::embedding_renorm_",
                                     "aten::put_",
                                     "aten::random_.from",
                                     "aten::random_.to",
                                     "aten::range.out"};

// Whether PyTorch's kernel for "meta" tensors refuses what the operator refuses: the functions that
// structured operators begin with, and lists of operators, which call those.
bool is_strict_in_cpp(const c10::OperatorHandle& op, std::string_view name) {
  constexpr auto kMeta = c10::DispatchKey::Meta;
  if (!op.hasComputedKernelForDispatchKey(kMeta)) return false;
  const std::string origin = op.getComputedKernelForDispatchKey(kMeta).debug();
  if (origin.find("RegisterMeta_") != std::string::npos)
    return std::find(std::begin(kLax), std::end(kLax), name) == std::end(kLax);
  return (name.starts_with("aten::_foreach_") || name == "aten::copy_") &&
         origin.find("RegisterCompositeExplicitAutograd") != std::string::npos;
}

}  // namespace

ShapeFunction shape_function(const c10::OperatorHandle& op) {
  static const Table table = make_table();
  const std::string name = c10::toString(op.operator_name());
  const auto found = table.find(name);
  if (found != table.end()) return found->second;
  if (!is_strict_in_cpp(op, name)) return nullptr;
  return [](const c10::OperatorHandle& called, Stack* stack) {
    called.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    return true;
  };
}

}  // namespace torch_neuronx::queue
