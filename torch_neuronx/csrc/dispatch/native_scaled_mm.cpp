// Products of 8-bit and 4-bit floats with scales: `_scaled_mm` and groups of them. What PyTorch's
// CPU kernel takes (a scale per tensor, or per row) goes there. For the other forms values and
// scales become float32, and the float32 product is rounded once.
//
// An operand is looked at as [rows, K] or [groups, rows, K]: the second factor is transposed.
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/_scaled_mm_v2.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <torch/library.h>

#include <vector>

#include "compat/scaled_products.h"
#include "dispatch/host_call.h"
#include "dispatch/native.h"

namespace torch_neuronx {
namespace {

using compat::ScaleList;
using OptionalTensor = std::optional<at::Tensor>;
using OptionalType = std::optional<at::ScalarType>;

// torch.nn.functional.ScalingType and SwizzleType.
enum class Recipe : int64_t {
  kTensorWise,
  kRowWise,
  kBlock1x16,
  kBlock1x32,
  kBlock1x128,
  kBlock128x128
};
enum class Swizzle : int64_t { kNone, k32x4x4 };

constexpr const char* kRecipeNames[] = {"TensorWise",    "RowWise",        "BlockWise1x16",
                                        "BlockWise1x32", "BlockWise1x128", "BlockWise128x128"};

int64_t blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }
int64_t padded(int64_t size, int64_t block) { return blocks(size, block) * block; }

bool is_float4(const at::Tensor& t) { return t.scalar_type() == at::kFloat4_e2m1fn_x2; }
bool is_float8(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat8_e4m3fn || t.scalar_type() == at::kFloat8_e5m2;
}

// The values [..., rows, K] as float32. Two 4-bit values lie in a byte, the first in its low half.
at::Tensor values_of(const at::Tensor& t) {
  if (!is_float4(t)) return t.to(at::kFloat).contiguous();
  static const at::Tensor table = at::tensor(
      {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0},
      at::kFloat);
  const at::Tensor bytes = t.view(at::kByte).to(at::kLong);
  const at::Tensor halves = at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, -1);
  return table.index({halves}).flatten(-2, -1);
}

// One number for every element of [..., rows, K], from one for every block.
at::Tensor spread(const at::Tensor& scale, int64_t rows, int64_t width, int64_t block_rows,
                  int64_t block_width) {
  at::Tensor s = scale.to(at::kFloat);
  if (block_rows > 1) s = s.repeat_interleave(block_rows, -2).narrow(-2, 0, rows);
  return s.repeat_interleave(block_width, -1).narrow(-1, 0, width);
}

// Scales of one matrix out of the order that Blackwell's tensor cores read: tiles of 128 rows by 4
// blocks, in each of which row i * 32 + j stands at [j, i].
at::Tensor unswizzled(const at::Tensor& flat, int64_t rows, int64_t width) {
  const int64_t tiles = blocks(rows, 128), across = blocks(width, 4);
  return flat.reshape({tiles, across, 32, 4, 4})
      .permute({0, 3, 2, 1, 4})
      .reshape({tiles * 128, across * 4})
      .narrow(0, 0, rows)
      .narrow(1, 0, width);
}

// How one operand is scaled: its levels, outermost last, as the caller gave them.
struct Scaling {
  const char* name;
  std::vector<at::Tensor> scales;
  std::vector<Recipe> recipes;
  bool swizzled;

  void check(bool right, size_t level, at::ScalarType type, const char* wanted,
             at::IntArrayRef sizes) const {
    const at::Tensor& scale = scales[level];
    TORCH_CHECK_VALUE(right && scale.scalar_type() == type, "scale_", name, " for ",
                      kRecipeNames[static_cast<size_t>(recipes[level])], " scaling must be ",
                      wanted, " ", sizes, ", got ", scale.scalar_type(), " ", scale.sizes());
  }
};

// Which part of the operands a group is: `ragged` says whose dimension the offsets cut.
enum class Cut { kNone, kRows, kContraction };
struct Range {
  int64_t begin, end;
};

// The scaled values of an operand. `groups` cut it along `cut`; a stack of matrices has a group
// each.
class Operand {
 public:
  Operand(const at::Tensor& t, Scaling scaling, Cut cut, const std::vector<Range>& groups)
      : values_(values_of(t)), scaling_(std::move(scaling)), cut_(cut), groups_(groups) {
    for (size_t level = 0; level < scaling_.scales.size(); ++level) apply(level);
  }
  const at::Tensor& values() const { return values_; }

 private:
  bool stacked() const { return values_.dim() == 3; }
  int64_t rows() const { return values_.size(-2); }
  int64_t width() const { return values_.size(-1); }
  int64_t parts() const {
    return stacked() ? values_.size(0) : static_cast<int64_t>(groups_.size());
  }
  // The values of one group.
  at::Tensor part(int64_t g) const {
    if (stacked()) return values_[g];
    const Range range = groups_[static_cast<size_t>(g)];
    return values_.narrow(cut_ == Cut::kContraction ? 1 : 0, range.begin, range.end - range.begin);
  }

  void apply(size_t level) {
    const at::Tensor& scale = scaling_.scales[level];
    switch (scaling_.recipes[level]) {
      case Recipe::kTensorWise:
        return per_tensor(level, scale);
      case Recipe::kRowWise:
        return per_row(level, scale);
      case Recipe::kBlock1x16:
        return per_short_block(level, scale, 16, at::kFloat8_e4m3fn);
      case Recipe::kBlock1x32:
        return per_short_block(level, scale, 32, at::kFloat8_e8m0fnu);
      case Recipe::kBlock1x128: {
        const auto sizes = with_stack({rows(), blocks(width(), 128)});
        scaling_.check(scale.sizes() == sizes, level, at::kFloat, "float32", sizes);
        values_.mul_(spread(scale, rows(), width(), 1, 128));
        return;
      }
      case Recipe::kBlock128x128: {
        // The first dimension is that of K, padded to four blocks.
        const int64_t along = blocks(width(), 128), across = blocks(rows(), 128);
        const auto sizes = with_stack({padded(along, 4), across});
        scaling_.check(scale.sizes() == sizes, level, at::kFloat, "float32", sizes);
        values_.mul_(
            spread(scale.transpose(-2, -1).narrow(-1, 0, along), rows(), width(), 128, 128));
        return;
      }
    }
  }

  at::DimVector with_stack(std::initializer_list<int64_t> sizes) const {
    at::DimVector result;
    if (stacked()) result.push_back(values_.size(0));
    result.append(sizes);
    return result;
  }

  void per_tensor(size_t level, const at::Tensor& scale) {
    const bool shared = scale.numel() == 1;
    scaling_.check(shared || (parts() > 0 && scale.numel() == parts()), level, at::kFloat,
                   "float32, one number or one for every group:", {parts()});
    const at::Tensor flat = scale.reshape({-1});
    if (shared) values_.mul_(flat);
    if (shared) return;
    for (int64_t g = 0; g < parts(); ++g) part(g).mul_(flat[g]);
  }

  void per_row(size_t level, const at::Tensor& scale) {
    const bool by_group = cut_ == Cut::kContraction;
    const auto sizes = by_group ? at::DimVector{parts() * rows()} : with_stack({rows()});
    // Of a matrix alone the scale may be a column or a row, too.
    const bool flat = !stacked() && scale.numel() == sizes[0] && scale.squeeze().dim() <= 1;
    scaling_.check(scale.sizes() == sizes || flat, level, at::kFloat, "float32", sizes);
    if (!by_group) {
      values_.mul_(scale.reshape(sizes).unsqueeze(-1));
      return;
    }
    const at::Tensor by_part = scale.reshape({parts(), rows(), 1});
    for (int64_t g = 0; g < parts(); ++g) part(g).mul_(by_part[g]);
  }

  // Scales of blocks in one row, of every group by itself, one after the other.
  void per_short_block(size_t level, const at::Tensor& scale, int64_t block, at::ScalarType type) {
    const std::string recipe = kRecipeNames[static_cast<size_t>(scaling_.recipes[level])];
    TORCH_CHECK_VALUE(scaling_.swizzled, "scale_", scaling_.name, " for ", recipe,
                      " scaling must be in the order SWIZZLE_32_4_4");
    TORCH_CHECK_VALUE(scale.is_contiguous(), "scale_", scaling_.name, " must be contiguous");
    const bool whole = !stacked() && cut_ == Cut::kNone;
    const auto size_of = [&](const at::Tensor& values) {
      return padded(values.size(0), 128) * padded(blocks(values.size(1), block), 4);
    };
    int64_t needed = 0;
    for (int64_t g = 0; g < (whole ? 1 : parts()); ++g)
      needed += size_of(whole ? values_ : part(g));
    const std::string wanted = std::string(c10::toString(type)) + " with elements:";
    // Of ragged groups the caller may have reserved more than these groups need.
    const bool reserved = !whole && !stacked() && scale.numel() >= needed;
    scaling_.check(scale.numel() == needed || reserved, level, type, wanted.c_str(), {needed});
    const at::Tensor flat = scale.reshape({-1}).to(at::kFloat);
    int64_t begin = 0;
    for (int64_t g = 0; g < (whole ? 1 : parts()); ++g) {
      at::Tensor values = whole ? values_ : part(g);
      const int64_t size = size_of(values), r = values.size(0), k = values.size(1);
      if (values.numel() > 0) {
        const at::Tensor plain = unswizzled(flat.narrow(0, begin, size), r, blocks(k, block));
        values.mul_(spread(plain, r, k, 1, block));
      }
      begin += size;
    }
  }

  at::Tensor values_;
  Scaling scaling_;
  Cut cut_;
  const std::vector<Range>& groups_;
};

Scaling scaling_of(const char* name, ScaleList scales, at::IntArrayRef recipes,
                   at::IntArrayRef swizzles, HostArgs& host) {
  TORCH_CHECK_VALUE(!scales.empty() && scales.size() == recipes.size(), "scale_", name,
                    " must have a recipe for each of its scales, got ", scales.size(),
                    " scales and ", recipes.size(), " recipes");
  Scaling result{name, {}, {}, false};
  for (const at::Tensor& each : scales) result.scales.push_back(host(each));
  for (const int64_t recipe : recipes) {
    TORCH_CHECK_VALUE(recipe >= 0 && recipe <= static_cast<int64_t>(Recipe::kBlock128x128),
                      "scale_recipe_", name, " must be a ScalingType, got ", recipe);
    result.recipes.push_back(static_cast<Recipe>(recipe));
  }
  for (size_t level = 1; level < result.recipes.size(); ++level) {
    TORCH_CHECK_VALUE(result.recipes[level] == Recipe::kTensorWise && level == 1, "scale_recipe_",
                      name, " may have one more level after the first, which is TensorWise");
  }
  for (const int64_t swizzle : swizzles) {
    TORCH_CHECK_VALUE(swizzle >= 0 && swizzle <= static_cast<int64_t>(Swizzle::k32x4x4), "swizzle_",
                      name, " must be a SwizzleType, got ", swizzle);
    result.swizzled |= static_cast<Swizzle>(swizzle) == Swizzle::k32x4x4;
  }
  return result;
}

void check_contraction(const at::Tensor& a, const at::Tensor& b, at::IntArrayRef dims) {
  TORCH_CHECK_VALUE(dims.empty() || (dims.size() == 2 && dims[0] == -1 && dims[1] == -2),
                    "contraction_dim must be empty or (-1, -2), got ", dims);
  TORCH_CHECK_VALUE(a.size(-1) == b.size(-2), "mat_a and mat_b shapes cannot be multiplied (",
                    a.sizes(), " and ", b.sizes(), ")");
}

void check_types(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_VALUE((is_float8(a) && is_float8(b)) || (is_float4(a) && is_float4(b)),
                    "mat_a and mat_b must both be float8_e4m3fn or float8_e5m2, or both "
                    "float4_e2m1fn_x2, got ",
                    a.scalar_type(), " and ", b.scalar_type());
}

// ---- one product --------------------------------------------------------------------------------

at::Tensor product(const at::Tensor& a, const at::Tensor& b, Scaling scaling_a, Scaling scaling_b,
                   const OptionalTensor& bias, at::ScalarType out_dtype) {
  const std::vector<Range> none;
  const Operand x(a, std::move(scaling_a), Cut::kNone, none);
  const Operand y(b.t(), std::move(scaling_b), Cut::kNone, none);
  at::Tensor result = at::mm(x.values(), y.values().t());
  if (bias) {
    TORCH_CHECK_VALUE(bias->dim() == 1 && bias->size(0) == result.size(1),
                      "bias must have a number for each of the ", result.size(1), " columns, got ",
                      bias->sizes());
    result.add_(*bias);
  }
  return result.to(out_dtype);
}

bool on_cpu(const at::IntArrayRef a, const at::IntArrayRef b) {
  const auto simple = [](int64_t recipe) {
    return recipe == static_cast<int64_t>(Recipe::kTensorWise) ||
           recipe == static_cast<int64_t>(Recipe::kRowWise);
  };
  return a.size() == 1 && b.size() == 1 && a[0] == b[0] && simple(a[0]);
}

at::Tensor scaled_mm_v2(const at::Tensor& a, const at::Tensor& b, ScaleList scale_a,
                        at::IntArrayRef recipe_a, at::IntArrayRef swizzle_a, ScaleList scale_b,
                        at::IntArrayRef recipe_b, at::IntArrayRef swizzle_b,
                        const OptionalTensor& bias, OptionalType out_dtype,
                        at::IntArrayRef contraction_dim, bool use_fast_accum) {
  return run_on_host(a.device().index(), [&](HostArgs& host) {
    if (on_cpu(recipe_a, recipe_b)) {
      const auto all = [&](ScaleList list) {
        std::vector<at::Tensor> made;
        for (const at::Tensor& t : list) made.push_back(host(t));
        return made;
      };
      return at::_scaled_mm_v2(host(a), host(b), all(scale_a), recipe_a, swizzle_a, all(scale_b),
                               recipe_b, swizzle_b, host(bias), out_dtype, contraction_dim,
                               use_fast_accum);
    }
    TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2, "mat_a and mat_b must be matrices, got ",
                      a.sizes(), " and ", b.sizes());
    check_types(a, b);
    check_contraction(a, b, contraction_dim);
    return product(host(a), host(b), scaling_of("a", scale_a, recipe_a, swizzle_a, host),
                   scaling_of("b", scale_b, recipe_b, swizzle_b, host), host(bias),
                   out_dtype.value_or(at::kBFloat16));
  });
}

// The older operator has no recipes: the shapes and types of the scales say what they are.
struct Guess {
  Recipe a, b;
  bool transposed_b = false;  // scale_b is [blocks of K, ...]
};
std::optional<Guess> guess(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                           const at::Tensor& scale_b) {
  const auto both = [&](at::ScalarType type) {
    return scale_a.scalar_type() == type && scale_b.scalar_type() == type;
  };
  if (both(at::kFloat8_e8m0fnu)) return Guess{Recipe::kBlock1x32, Recipe::kBlock1x32};
  if (both(at::kFloat8_e4m3fn)) return Guess{Recipe::kBlock1x16, Recipe::kBlock1x16};
  if (!both(at::kFloat) || scale_a.dim() != 2 || scale_b.dim() != 2 || a.dim() != 2 || b.dim() != 2)
    return {};
  const int64_t m = a.size(0), n = b.size(1), along = blocks(a.size(1), 128);
  const auto is = [](const at::Tensor& t, int64_t rows, int64_t columns) {
    return t.size(0) == rows && t.size(1) == columns;
  };
  const bool rows_a = is(scale_a, m, along), squares_a = is(scale_a, blocks(m, 128), along);
  const bool rows_b = is(scale_b, along, n), squares_b = is(scale_b, along, blocks(n, 128));
  if (is(scale_a, m, 1) && is(scale_b, 1, n)) return {};  // per row: the CPU's
  if (rows_a && squares_b) return Guess{Recipe::kBlock1x128, Recipe::kBlock128x128, true};
  if (rows_a && rows_b) return Guess{Recipe::kBlock1x128, Recipe::kBlock1x128, true};
  if (squares_a && rows_b) return Guess{Recipe::kBlock128x128, Recipe::kBlock1x128, true};
  return {};
}

// The order of dimensions that the recipe has.
at::Tensor as_recipe(const at::Tensor& scale, Recipe recipe, bool transposed) {
  if (recipe == Recipe::kBlock1x128) return transposed ? scale.t() : scale;
  if (recipe != Recipe::kBlock128x128) return scale;
  const at::Tensor along_first = transposed ? scale : scale.t();
  const int64_t missing = padded(along_first.size(0), 4) - along_first.size(0);
  return at::constant_pad_nd(along_first, {0, 0, 0, missing});
}

at::Tensor scaled_mm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                     const at::Tensor& scale_b, const OptionalTensor& bias,
                     const OptionalTensor& scale_result, OptionalType out_dtype,
                     bool use_fast_accum) {
  return run_on_host(a.device().index(), [&](HostArgs& host) {
    const auto form = guess(a, b, scale_a, scale_b);
    if (!form) {
      return at::_scaled_mm(host(a), host(b), host(scale_a), host(scale_b), host(bias),
                            host(scale_result), out_dtype, use_fast_accum);
    }
    TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2, "mat_a and mat_b must be matrices, got ",
                      a.sizes(), " and ", b.sizes());
    TORCH_CHECK_VALUE(!scale_result, "scale_result is not supported with scales of blocks");
    check_types(a, b);
    check_contraction(a, b, {});
    const Scaling x{"a", {as_recipe(host(scale_a), form->a, false)}, {form->a}, true};
    const Scaling y{"b", {as_recipe(host(scale_b), form->b, form->transposed_b)}, {form->b}, true};
    const auto type = out_dtype.value_or(a.scalar_type());
    TORCH_CHECK_VALUE(type != at::kFloat4_e2m1fn_x2, "out_dtype must be given for 4-bit operands");
    return product(host(a), host(b), x, y, host(bias), type);
  });
}

at::Tensor& into(at::Tensor& out, const at::Tensor& result) {
  TORCH_CHECK_VALUE(out.scalar_type() == result.scalar_type(), "out must be of out_dtype, ",
                    result.scalar_type(), ", got ", out.scalar_type());
  return out.resize_(result.sizes()).copy_(result);
}

at::Tensor& scaled_mm_out(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                          const at::Tensor& scale_b, const OptionalTensor& bias,
                          const OptionalTensor& scale_result, OptionalType out_dtype,
                          bool use_fast_accum, at::Tensor& out) {
  return into(out,
              scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum));
}

at::Tensor& scaled_mm_v2_out(const at::Tensor& a, const at::Tensor& b, ScaleList scale_a,
                             at::IntArrayRef recipe_a, at::IntArrayRef swizzle_a, ScaleList scale_b,
                             at::IntArrayRef recipe_b, at::IntArrayRef swizzle_b,
                             const OptionalTensor& bias, OptionalType out_dtype,
                             at::IntArrayRef contraction_dim, bool use_fast_accum,
                             at::Tensor& out) {
  return into(out, scaled_mm_v2(a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b,
                                bias, out_dtype, contraction_dim, use_fast_accum));
}

// ---- groups of products -------------------------------------------------------------------------

// [rows, K] x [groups, K, columns], [groups, rows, K] x [K, columns], [rows, K] x [K, columns] cut
// along K, or a plain batch.
at::DimVector grouped_sizes(const at::Tensor& a, const at::Tensor& b, const OptionalTensor& offs) {
  for (const at::Tensor* t : {&a, &b}) {
    TORCH_CHECK_VALUE(t->dim() == 2 || t->dim() == 3,
                      "Multiplicands must be 2D or 3D but got mat_a.dim()=", a.dim(),
                      " and mat_b.dim()=", b.dim());
  }
  const bool ragged = a.dim() == 2 || b.dim() == 2;
  TORCH_CHECK_VALUE(!ragged || offs, "Offsets tensor not provided, but is needed for ", a.dim(),
                    "D/", b.dim(), "D multiplicand layouts.");
  TORCH_CHECK_VALUE(ragged || !offs,
                    "Offsets tensor provided, but is not needed for 3D/3D multiplicand layouts.");
  TORCH_CHECK_VALUE(!offs || (offs->dim() == 1 && offs->scalar_type() == at::kInt),
                    "Offsets tensor must be 1D and int32, got ", offs ? offs->dim() : 0, "D ",
                    offs ? offs->scalar_type() : at::kInt);
  const auto check_groups = [&](const at::Tensor& t) {
    TORCH_CHECK_VALUE(t.size(0) == offs->size(0), "matrix batch sizes have to match: ", t.size(0),
                      " matrices and ", offs->size(0), " offsets");
  };
  if (a.dim() == 2 && b.dim() == 2) return {offs->size(0), a.size(0), b.size(1)};
  if (a.dim() == 2) {
    check_groups(b);
    return {a.size(0), b.size(2)};
  }
  if (b.dim() == 2) {
    check_groups(a);
    return {a.size(1), b.size(1)};
  }
  TORCH_CHECK_VALUE(a.size(0) == b.size(0), "batched dimension has to match: ", a.size(0), " and ",
                    b.size(0));
  return {a.size(0), a.size(1), b.size(2)};
}

std::vector<Range> ranges_of(const OptionalTensor& offs, int64_t total) {
  std::vector<Range> ranges;
  if (!offs) return ranges;
  int64_t begin = 0;
  for (int64_t i = 0; i < offs->size(0); ++i) {
    const int64_t end = (*offs)[i].item<int32_t>();
    TORCH_CHECK_VALUE(end >= begin && end <= total, "Offsets must rise from 0 to at most ", total,
                      ", got ", end, " after ", begin);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

at::Tensor grouped(const at::Tensor& a, const at::Tensor& b, Scaling scaling_a, Scaling scaling_b,
                   const OptionalTensor& offs, at::ScalarType out_dtype) {
  const auto sizes = grouped_sizes(a, b, offs);
  check_types(a, b);
  check_contraction(a, b, {});
  const bool flat_a = a.dim() == 2, flat_b = b.dim() == 2;
  TORCH_CHECK_VALUE(!(flat_a && flat_b && is_float4(a)),
                    "groups along the contracted dimension must be of 8-bit values, got ",
                    a.scalar_type());
  const int64_t total = flat_a && flat_b ? a.size(1) : flat_a ? a.size(0) : b.size(-1);
  const auto ranges = ranges_of(offs, total);
  const auto cut = [&](bool flat, bool other_flat) {
    return !flat ? Cut::kNone : other_flat ? Cut::kContraction : Cut::kRows;
  };
  const Operand left(a, std::move(scaling_a), cut(flat_a, flat_b), ranges);
  const Operand right(b.transpose(-2, -1), std::move(scaling_b), cut(flat_b, flat_a), ranges);
  const at::Tensor &x = left.values(), y = right.values().transpose(-2, -1);
  if (!flat_a && !flat_b) return at::bmm(x, y).to(out_dtype);
  // Rows and columns that belong to no group stay zero.
  const at::Tensor result = at::zeros(sizes, at::kFloat);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto g = static_cast<int64_t>(i);
    const int64_t begin = ranges[i].begin, length = ranges[i].end - begin;
    if (flat_a && flat_b) {
      result[g].copy_(at::mm(x.narrow(1, begin, length), y.narrow(0, begin, length)));
    } else if (flat_a) {
      result.narrow(0, begin, length).copy_(at::mm(x.narrow(0, begin, length), y[g]));
    } else {
      result.narrow(1, begin, length).copy_(at::mm(x[g], y.narrow(1, begin, length)));
    }
  }
  return result.to(out_dtype);
}

at::ScalarType grouped_type(OptionalType out_dtype) {
  const auto type = out_dtype.value_or(at::kBFloat16);
  TORCH_CHECK_VALUE(type == at::kBFloat16 || type == at::kHalf || type == at::kFloat,
                    "out_dtype must be bfloat16, float16 or float32, got ", type);
  return type;
}

at::Tensor scaled_grouped_mm_v2(const at::Tensor& a, const at::Tensor& b, ScaleList scale_a,
                                at::IntArrayRef recipe_a, at::IntArrayRef swizzle_a,
                                ScaleList scale_b, at::IntArrayRef recipe_b,
                                at::IntArrayRef swizzle_b, const OptionalTensor& offs,
                                const OptionalTensor& bias, OptionalType out_dtype,
                                at::IntArrayRef contraction_dim, bool) {
  TORCH_CHECK_VALUE(!bias, "bias is not supported by groups of scaled products");
  TORCH_CHECK_VALUE(
      contraction_dim.empty() ||
          (contraction_dim.size() == 2 && contraction_dim[0] == -1 && contraction_dim[1] == -2),
      "contraction_dim must be empty or (-1, -2), got ", contraction_dim);
  return run_on_host(a.device().index(), [&](HostArgs& host) {
    return grouped(host(a), host(b), scaling_of("a", scale_a, recipe_a, swizzle_a, host),
                   scaling_of("b", scale_b, recipe_b, swizzle_b, host), host(offs),
                   grouped_type(out_dtype));
  });
}

at::Tensor scaled_grouped_mm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                             const at::Tensor& scale_b, const OptionalTensor& offs,
                             const OptionalTensor& bias, const OptionalTensor& scale_result,
                             OptionalType out_dtype, bool) {
  TORCH_CHECK_VALUE(!bias, "bias is not supported by groups of scaled products");
  TORCH_CHECK_VALUE(!scale_result, "scale_result is not supported by groups of scaled products");
  const bool blocked =
      scale_a.scalar_type() == at::kFloat8_e8m0fnu && scale_b.scalar_type() == at::kFloat8_e8m0fnu;
  const Recipe recipe = blocked ? Recipe::kBlock1x32 : Recipe::kRowWise;
  return run_on_host(a.device().index(), [&](HostArgs& host) {
    return grouped(host(a), host(b), {"a", {host(scale_a)}, {recipe}, true},
                   {"b", {host(scale_b)}, {recipe}, true}, host(offs), grouped_type(out_dtype));
  });
}

at::Tensor scaled_grouped_mm_v2_shape(const at::Tensor& a, const at::Tensor& b, ScaleList,
                                      at::IntArrayRef, at::IntArrayRef, ScaleList, at::IntArrayRef,
                                      at::IntArrayRef, const OptionalTensor& offs,
                                      const OptionalTensor&, OptionalType out_dtype,
                                      at::IntArrayRef, bool) {
  return at::empty(grouped_sizes(a, b, offs), a.options().dtype(grouped_type(out_dtype)));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "_scaled_mm", scaled_mm);
  NEURON_IMPL(m, "_scaled_mm.out", scaled_mm_out);
  NEURON_IMPL(m, "_scaled_mm_v2", scaled_mm_v2);
  NEURON_IMPL(m, "_scaled_mm_v2.out", scaled_mm_v2_out);
  NEURON_IMPL(m, "_scaled_grouped_mm", scaled_grouped_mm);
  NEURON_IMPL(m, "_scaled_grouped_mm_v2", scaled_grouped_mm_v2);
}
// Where PyTorch has shapes for all of these but the last, nothing could trace it.
TORCH_LIBRARY_IMPL(aten, Meta, m) {
  if constexpr (!compat::kGroupedProductHasShape) {
    m.impl("_scaled_grouped_mm_v2", TORCH_FN(scaled_grouped_mm_v2_shape));
  }
}

}  // namespace
}  // namespace torch_neuronx
