#include "dispatch/trusting.h"

#include <ATen/ExpandUtils.h>

#include <array>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "dispatch/schema.h"
#include "dispatch/trusting_calls.h"

namespace torch_neuronx {

using trusting::Call;

// The sizes of tensors as patterns, one letter per dimension: an upper-case letter is one size
// throughout the call, '+' any but 0, '?' any, a digit that size. In front, '&' stands for leading
// dimensions that are the same throughout the call, '*' for any; '*' at the end for any that
// follow. An argument that is not given, or undefined, is not looked at.
struct Shape {
  const char* argument;
  const char* pattern;
};
struct Index {  // each element of `argument` is a position within the last `dims` dimensions of
                // `of`
  const char* argument;
  const char* of;
  int64_t dims;
};
struct Choice {  // an integer of `argument` that is one of the first `count` names
  const char* argument;
  int64_t count;
};
using Names = std::vector<const char*>;

class Demands {
 public:
  std::vector<Shape> shapes = {};
  std::vector<Names> same = {};  // groups of tensors of equal shape
  Names dtype = {};              // tensors of one dtype
  Names contiguous = {};         // only read, whose strides the kernel does not look at
  std::vector<Index> indices = {};
  std::vector<Choice> choices = {};
  const char* only_with = nullptr;  // an argument: overloads without it have no demands
  void (*also)(Call& call) = nullptr;
};

namespace {

const std::vector<Shape> kNormShapes = {
    {"input", "?C*"}, {"weight", "C"}, {"bias", "C"}, {"running_mean", "C"}, {"running_var", "C"},
};
// Forward, strides are looked at, and running statistics are written.
const Demands kBatchNorm = {.shapes = kNormShapes, .also = &trusting::batch_norm};
const Demands kBatchNormBackward = {
    .shapes = kNormShapes,
    .same = {{"input", "grad_out", "grad_output"}},
    .contiguous = {"weight", "running_mean", "running_var", "save_mean", "save_invstd", "save_var",
                   "save_var_transform"},
    .also = &trusting::batch_norm_backward};
Demands pool_backward(const char* pattern, int64_t dims, void (*also)(Call&) = nullptr) {
  return {.shapes = {{"grad_output", pattern}, {"self", pattern}},
          .same = {{"grad_output", "indices"}},
          .contiguous = {"indices"},
          .indices = {{"indices", "self", dims}},
          .also = also};
}
const Demands kSlowConvolution = {.shapes = {{"self", "NI??"},
                                             {"input", "NI??"},
                                             {"weight", "OI??"},
                                             {"bias", "O"},
                                             {"grad_output", "NO??"}},
                                  .dtype = {"self", "input", "weight", "bias", "grad_output"},
                                  .contiguous = {"self", "input", "weight", "bias", "grad_output"},
                                  .also = &trusting::slow_convolution};
// Bilinear, nearest, bicubic; zeros, border, reflection. By another number nothing is written. That
// volumes have no bicubic mode PyTorch says itself.
const std::vector<Choice> kGridChoices = {{"interpolation_mode", 3}, {"padding_mode", 3}};
const Demands kGrid = {.choices = kGridChoices};
Demands grid_backward(const char* grad, const char* input, const char* grid) {
  return {.shapes = {{"grad_output", grad}, {"input", input}, {"grid", grid}},
          .dtype = {"grad_output", "input", "grid"},
          .choices = kGridChoices};
}
const Demands kReflectionBackward = {.dtype = {"grad_output", "self"},
                                     .also = &trusting::reflection_backward};
const Demands kReplicationBackward = {.dtype = {"grad_output", "self"},
                                      .also = &trusting::replication_backward};
const Demands kSoftmaxBackward = {.same = {{"grad_output", "output"}},
                                  .dtype = {"grad_output", "output"}};
const Demands kFft = {.also = &trusting::fft};
const Demands kRunningExtreme = {.same = {{"self", "values", "indices"}},
                                 .dtype = {"self", "values"},
                                 .also = &trusting::running_extreme};
const Demands kPackedForOthers = {.also = &trusting::packed_for_others};
// A layer of a recurrent network in one direction, which oneDNN has whole.
const Demands kRecurrentLayer = {
    .shapes =
        {{"input", "TBI"}, {"weight0", "GI"}, {"weight1", "GH"}, {"hx_", "BH"}, {"cx_", "BH"}},
    .dtype = {"input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_"},
    .contiguous = {"input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_"},
    .also = &trusting::recurrent_layer};
// Without a rounding mode a quotient is a float, and its kernel trusts nobody.
const Demands kQuotient = {.only_with = "rounding_mode", .also = &trusting::quotient};
const Demands kAverage = {.also = &trusting::average};
Demands average_backward(const char* pattern) {
  return {.shapes = {{"grad_output", pattern}, {"self", pattern}}, .also = &trusting::average};
}
const Demands kRecurrent = {.contiguous = {"batch_sizes"}, .also = &trusting::recurrent};
const Demands kLists = {.also = &trusting::equal_lists};
const Demands kEmbeddingBag = {.shapes = {{"weight", "??"}, {"indices", "I"}},
                               .same = {{"indices", "per_sample_weights"}},
                               .contiguous = {"indices", "offsets", "per_sample_weights"}};
const Demands kEmbeddingBagBackward = {
    .shapes = {{"grad", "?D"}, {"weight", "?D"}, {"indices", "I"}, {"maximum_indices", "*"}},
    .same = {{"indices", "per_sample_weights"}},
    .contiguous = {"indices", "offsets", "offset2bag", "bag_size", "maximum_indices",
                   "per_sample_weights"},
    .also = &trusting::embedding_bag_backward};

const std::map<std::string, Demands>& table() {
  static const std::map<std::string, Demands> demands = {
      {"_scaled_dot_product_flash_attention_for_cpu",
       {.shapes = {{"query", "BHLE"}, {"key", "BGSE"}, {"value", "BGSE"}},
        .dtype = {"query", "key", "value"},
        .also = &trusting::attention}},
      {"_scaled_dot_product_flash_attention_for_cpu_backward",
       {.shapes = {{"query", "BHLE"},
                   {"key", "BGSE"},
                   {"value", "BGSE"},
                   {"grad_out", "BHLE"},
                   {"out", "BHLE"},
                   {"logsumexp", "BHL"}},
        .dtype = {"query", "key", "value", "grad_out", "out"},
        .also = &trusting::attention}},
      // It calls the first of these on its own.
      {"scaled_dot_product_attention", {.shapes = {{"key", "*S?"}, {"value", "*S?"}}}},
      {"native_batch_norm", kBatchNorm},
      {"_native_batch_norm_legit", kBatchNorm},
      {"_native_batch_norm_legit_no_training", kBatchNorm},
      {"_native_batch_norm_legit_functional", kBatchNorm},
      {"_batch_norm_with_update", kBatchNorm},
      {"_batch_norm_with_update_functional", kBatchNorm},
      {"_batch_norm_no_update", kBatchNorm},
      {"batch_norm_update_stats", kBatchNorm},
      {"native_batch_norm_backward", kBatchNormBackward},
      {"batch_norm_backward", kBatchNormBackward},
      {"_batch_norm_impl_index_backward", kBatchNormBackward},
      {"native_group_norm", {.contiguous = {"weight", "bias"}, .also = &trusting::group_norm}},
      {"native_group_norm_backward",
       {.same = {{"grad_out", "input"}, {"mean", "rstd"}},
        .contiguous = {"grad_out", "input", "weight", "mean", "rstd"},
        .also = &trusting::group_norm}},
      {"native_layer_norm_backward",
       {.same = {{"grad_out", "input"}, {"mean", "rstd"}, {"weight", "bias"}},
        .contiguous = {"weight", "bias", "mean", "rstd"},
        .also = &trusting::layer_norm_backward}},
      {"_softmax_backward_data", kSoftmaxBackward},
      {"_log_softmax_backward_data", kSoftmaxBackward},
      {"_adaptive_avg_pool2d_backward", pool_backward("&++", 2)},
      {"_adaptive_avg_pool3d_backward", pool_backward("&+++", 3)},
      {"adaptive_avg_pool3d_backward", pool_backward("&+++", 3)},
      {"adaptive_max_pool2d_backward", pool_backward("&++", 2)},
      {"adaptive_max_pool3d_backward", pool_backward("&+++", 3)},
      {"max_pool2d_with_indices_backward", pool_backward("&++", 2)},
      {"max_pool3d_with_indices_backward", pool_backward("&+++", 3)},
      {"fractional_max_pool2d_backward",
       pool_backward("&++", 2, &trusting::fractional_pool2d_backward)},
      {"fractional_max_pool3d_backward",
       pool_backward("&+++", 3, &trusting::fractional_pool3d_backward)},
      {"_slow_conv2d_forward", kSlowConvolution},
      {"_slow_conv2d_backward", kSlowConvolution},
      {"_nnpack_spatial_convolution", kSlowConvolution},
      {"reflection_pad1d_backward", kReflectionBackward},
      {"reflection_pad2d_backward", kReflectionBackward},
      {"reflection_pad3d_backward", kReflectionBackward},
      {"replication_pad1d_backward", kReplicationBackward},
      {"replication_pad2d_backward", kReplicationBackward},
      {"replication_pad3d_backward", kReplicationBackward},
      {"grid_sampler_2d", kGrid},
      {"_grid_sampler_2d_cpu_fallback", kGrid},
      {"grid_sampler_3d", kGrid},
      {"grid_sampler_2d_backward", grid_backward("NCYX", "NC++", "NYX2")},
      {"_grid_sampler_2d_cpu_fallback_backward", grid_backward("NCYX", "NC++", "NYX2")},
      {"grid_sampler_3d_backward", grid_backward("NCZYX", "NC+++", "NZYX3")},
      // "grad_output" since PyTorch 2.15, "grad" before.
      {"_cdist_backward",
       {.shapes = {{"grad", "&PR"},
                   {"grad_output", "&PR"},
                   {"x1", "*PM"},
                   {"x2", "*RM"},
                   {"cdist", "&PR"}},
        .dtype = {"grad", "grad_output", "x1", "x2", "cdist"}}},
      {"_pdist_backward",
       {.shapes = {{"grad", "K"}, {"grad_output", "K"}, {"self", "++"}, {"pdist", "K"}},
        .dtype = {"grad", "grad_output", "self", "pdist"},
        .also = &trusting::pdist_backward}},
      {"_cholesky_solve_helper",
       {.shapes = {{"self", "&NR"}, {"A", "&NN"}}, .dtype = {"self", "A"}}},
      {"_compute_linear_combination",
       {.shapes = {{"input", "N*"}, {"coefficients", "MN"}}, .dtype = {"input", "coefficients"}}},
      {"_convert_indices_from_csr_to_coo",
       {.contiguous = {"crow_indices", "col_indices"}, .also = &trusting::csr_to_coo}},
      {"_convert_indices_from_coo_to_csr",
       {.shapes = {{"self", "?"}}, .also = &trusting::coo_to_csr}},
      {"_ctc_loss", {.also = &trusting::ctc_loss}},
      {"_ctc_loss_backward", {.also = &trusting::ctc_loss}},
      {"embedding_dense_backward", {.also = &trusting::embedding_backward}},
      {"_embedding_bag", kEmbeddingBag},
      {"_embedding_bag_forward_only", kEmbeddingBag},
      {"_embedding_bag_backward", kEmbeddingBagBackward},
      {"_embedding_bag_dense_backward", kEmbeddingBagBackward},
      {"_embedding_bag_sparse_backward", kEmbeddingBagBackward},
      {"_embedding_bag_per_sample_weights_backward", kEmbeddingBagBackward},
      {"segment_reduce", {.contiguous = {"lengths", "offsets"}, .also = &trusting::segment_reduce}},
      {"_segment_reduce_backward",
       {.same = {{"grad", "output"}},
        .dtype = {"grad", "output", "data"},
        .contiguous = {"lengths", "offsets"},
        .also = &trusting::segment_reduce}},
      {"_reshape_alias", {.also = &trusting::reshape_alias}},
      {"_reshape_alias_copy", {.also = &trusting::reshape_alias}},
      {"_stack", {.also = &trusting::some_tensors}},
      {"_transform_bias_rescale_qkv",
       {.shapes = {{"qkv", "??D"}, {"qkv_bias", "D"}},
        .dtype = {"qkv", "qkv_bias"},
        .contiguous = {"qkv_bias"},
        .also = &trusting::rescale_qkv}},
      {"_weight_norm", {.also = &trusting::weight_norm}},
      {"_weight_norm_interface", {.also = &trusting::weight_norm}},
      {"_weight_norm_interface_backward",
       {.same = {{"grad_w", "saved_v"}}, .also = &trusting::weight_norm_backward}},
      {"lu_unpack", {.contiguous = {"LU_pivots"}, .also = &trusting::lu_unpack}},
      {"linalg_ldl_solve", {.also = &trusting::ldl_solve}},
      {"multi_margin_loss_backward", {.also = &trusting::loss_backward}},
      {"multilabel_margin_loss_backward",
       {.same = {{"self", "target", "is_target"}}, .also = &trusting::loss_backward}},
      {"unfold_backward", {.also = &trusting::unfold_backward}},
      {"_pad_packed_sequence", {.contiguous = {"batch_sizes"}, .also = &trusting::pad_packed}},
      {"gru", kRecurrent},
      {"lstm", kRecurrent},
      {"rnn_relu", kRecurrent},
      {"rnn_tanh", kRecurrent},
      {"avg_pool2d", kAverage},
      {"avg_pool2d_backward", average_backward("&??")},
      {"avg_pool3d", kAverage},
      {"avg_pool3d_backward", average_backward("&???")},
      {"div", kQuotient},
      {"div_", kQuotient},
      {"_fft_c2c", kFft},
      {"_fft_c2r", kFft},
      {"_fft_r2c", kFft},
      {"_fused_adam", kLists},
      {"_fused_adam_", kLists},
      {"_fused_adamw", kLists},
      {"_fused_adamw_", kLists},
      {"_fused_adagrad", kLists},
      {"_fused_adagrad_", kLists},
      {"_fused_sgd", {.also = &trusting::fused_sgd}},
      {"_fused_sgd_", kLists},
      {"_foreach_copy", kLists},
      {"_foreach_copy_", kLists},
      {"smooth_l1_loss_backward", {.also = &trusting::float_operand}},
      {"_chunk_cat", {.also = &trusting::chunk_cat}},
      {"_cummax_helper", kRunningExtreme},
      {"_cummin_helper", kRunningExtreme},
      {"_dyn_quant_matmul_4bit", kPackedForOthers},
      {"_dyn_quant_pack_4bit_weight", kPackedForOthers},
      {"mkldnn_rnn_layer", kRecurrentLayer},
      {"mkldnn_rnn_layer_backward", kPackedForOthers},
      {"range", {.only_with = "out", .also = &trusting::range}},
      {"rrelu_with_noise", {.contiguous = {"noise"}, .also = &trusting::rrelu}},
      {"rrelu_with_noise_", {.contiguous = {"noise"}, .also = &trusting::rrelu}},
  };
  return demands;
}

}  // namespace

namespace {

// Sizes bound while the shapes of a call are compared.
struct Bound {
  std::array<std::optional<int64_t>, 26> letters;
  std::optional<at::DimVector> leading;
};

bool matches(at::IntArrayRef sizes, const char* pattern, Bound& bound) {
  const char first = *pattern;
  const bool leads = first == '&' || first == '*';
  if (leads) ++pattern;
  size_t dims = std::char_traits<char>::length(pattern);
  const bool trails = dims > 0 && pattern[dims - 1] == '*';
  if (trails) --dims;
  if (sizes.size() < dims || (!leads && !trails && sizes.size() > dims)) return false;
  const size_t skipped = leads ? sizes.size() - dims : 0;
  if (first == '&') {
    const auto part = sizes.slice(0, skipped);
    if (!bound.leading) bound.leading.emplace(part.begin(), part.end());
    if (part != at::IntArrayRef(*bound.leading)) return false;
  }
  for (size_t d = 0; d < dims; ++d) {
    const int64_t size = sizes[skipped + d];
    const char c = pattern[d];
    if (c == '?') continue;
    if (c == '+' ? size == 0 : c >= '0' && c <= '9' && size != c - '0') return false;
    if (c < 'A' || c > 'Z') continue;
    auto& letter = bound.letters[static_cast<size_t>(c - 'A')];
    if (!letter) letter = size;
    if (*letter != size) return false;
  }
  return true;
}

void check_shapes(const Demands& demands, const Call& call) {
  Bound bound;
  const Shape* before = nullptr;
  for (const Shape& shape : demands.shapes) {
    const at::Tensor* t = call.tensor(shape.argument);
    if (t == nullptr) continue;
    const bool fits = matches(t->sizes(), shape.pattern, bound);
    std::ostringstream text;
    if (!fits) {
      text << "'" << shape.argument << "' is " << t->sizes() << ", which does not go with ";
      if (before == nullptr) {
        text << "the operator";
      } else {
        const char* sep = "";
        for (const Shape* s = &demands.shapes[0]; s != &shape; ++s) {
          if (const at::Tensor* other = call.tensor(s->argument)) {
            text << sep << "'" << s->argument << "' of " << other->sizes();
            sep = ", ";
          }
        }
      }
    }
    call.require(fits, text.str());
    before = &shape;
  }
}

void check_groups(const Demands& demands, const Call& call) {
  const auto compare = [&](const Names& names, bool dtypes) {
    const at::Tensor* first = nullptr;
    const char* first_name = nullptr;
    for (const char* name : names) {
      const at::Tensor* t = call.tensor(name);
      if (t == nullptr) continue;
      if (first == nullptr) {
        first = t;
        first_name = name;
        continue;
      }
      std::ostringstream text;
      const bool equal =
          dtypes ? t->scalar_type() == first->scalar_type() : t->sizes() == first->sizes();
      if (!equal) {
        text << "'" << first_name << "' and '" << name << "' must be alike, got "
             << first->scalar_type() << " " << first->sizes() << " and " << t->scalar_type() << " "
             << t->sizes();
      }
      call.require(equal, text.str());
    }
  };
  for (const Names& names : demands.same) compare(names, false);
  compare(demands.dtype, true);
}

std::string base_of(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return is_aten(name) ? name.name.substr(6) : std::string();
}

}  // namespace

const Demands* demands_of(const c10::OperatorHandle& op) {
  const auto found = table().find(base_of(op));
  if (found == table().end()) return nullptr;
  const char* const needed = found->second.only_with;
  if (needed != nullptr && !op.schema().argumentIndexWithName(needed)) return nullptr;
  return &found->second;
}

StandIns meet(const Demands& demands, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StandIns stand_ins;
  Call call(op, stack, stand_ins);
  for (const c10::Argument& argument : op.schema().arguments()) {
    // PyTorch itself leaves these out, though they are not optional by their type.
    const std::string& name = argument.name();
    const bool spare = name == "weight" || name == "reserve" || name == "reservedSpace";
    const bool needed = argument.type()->kind() == c10::TypeKind::TensorType && !spare;
    call.require(!needed || call.tensor(name.c_str()) != nullptr, "'" + name + "' is missing");
  }
  check_shapes(demands, call);
  check_groups(demands, call);
  for (const char* name : demands.contiguous) {
    const at::Tensor* t = call.tensor(name);
    if (t != nullptr && !t->is_contiguous()) call.replace(name, t->contiguous());
  }
  for (const Index& index : demands.indices) {
    const at::Tensor* of = call.tensor(index.of);
    if (of == nullptr || call.tensor(index.argument) == nullptr || of->dim() < index.dims) continue;
    const auto part = of->sizes().slice(static_cast<size_t>(of->dim() - index.dims));
    call.require_within(index.argument, 0, c10::multiply_integers(part));
  }
  for (const Choice& choice : demands.choices) {
    const int64_t number = call.find(choice.argument)->toInt();
    call.require(number >= 0 && number < choice.count,
                 "'" + std::string(choice.argument) + "' must be 0 to " +
                     std::to_string(choice.count - 1) + ", got " + std::to_string(number));
  }
  if (demands.also != nullptr) demands.also(call);
  return stand_ins;
}

torch::jit::Stack checked_arguments(const char* name, torch::jit::Stack arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  (void)meet(*demands_of(op), op, arguments);  // nothing to store
  return arguments;
}

}  // namespace torch_neuronx
