#include "program/builder.h"

namespace torch_neuronx::program {
namespace {

// Numbers of a window are multiplied and added in 64 bits.
constexpr int64_t kMaxStep = int64_t(1) << 30;

std::array<int64_t, 2> pair(const py::dict& spec, const char* name, int64_t least) {
  const auto parts = items(field(spec, name), name);
  TORCH_CHECK_VALUE(parts.size() == 2, "a convolution has ", parts.size(), " numbers as ", name,
                    " instead of 2");
  std::array<int64_t, 2> result{};
  for (size_t d = 0; d < 2; ++d) {
    result[d] = integer(parts[d], name);
    TORCH_CHECK_VALUE(result[d] >= least && result[d] <= kMaxStep, "a convolution has the ", name,
                      " ", result[d]);
  }
  return result;
}

}  // namespace

std::unique_ptr<Step> Builder::make_conv(const py::dict& spec, std::string name, std::string loc) {
  auto step = std::make_unique<ConvStep>(std::move(name), std::move(loc));
  step->x = view(field(spec, "x"), "x", false);
  step->w = view(field(spec, "w"), "w", false);
  step->out = optional_view(field(spec, "out"), "out", true);
  step->stride = pair(spec, "stride", 1);
  step->padding = pair(spec, "padding", 0);
  step->dilation = pair(spec, "dilation", 1);
  step->groups = integer(field(spec, "groups"), "groups");
  step->last = boolean(field(spec, "last"), "last");
  step->constant_w = boolean(field(spec, "constant_w"), "constant_w");
  step->narrow = boolean(field(spec, "narrow"), "narrow");
  const py::handle epilogue = field(spec, "epilogue");
  if (!epilogue.is_none()) {
    step->epilogue = reinterpret_cast<gemm::EpilogueFunction>(address(epilogue));
  }
  step->operands = operands(field(spec, "operands"));
  TORCH_CHECK_VALUE((step->epilogue != nullptr) != step->out.has_value(),
                    "a convolution needs either an epilogue or a place for its result");
  TORCH_CHECK_VALUE(step->epilogue != nullptr || step->operands.empty(),
                    "a convolution without an epilogue has operands for one");
  const Geometry &x = step->x.geometry, &w = step->w.geometry;
  TORCH_CHECK_VALUE(x.sizes.size() == 4 && w.sizes.size() == 4,
                    "the operands of a convolution must have four dimensions");
  TORCH_CHECK_VALUE(x.dtype == w.dtype &&
                        (x.dtype == at::kFloat || x.dtype == at::kBFloat16 || x.dtype == at::kHalf),
                    "a convolution of ", c10::getDtypeNames(x.dtype).first, " and ",
                    c10::getDtypeNames(w.dtype).first, " is not supported");
  for (const auto* strides : {&x.strides, &w.strides}) {
    for (const int64_t stride : *strides) {
      TORCH_CHECK_VALUE(stride >= 0, "an operand of a convolution has a negative stride");
    }
  }
  const int64_t groups = step->groups;
  const bool fits = x.numel > 0 && w.numel > 0 && groups >= 1 && groups <= x.sizes[1] &&
                    x.sizes[1] % groups == 0 && x.sizes[1] / groups == w.sizes[1] &&
                    w.sizes[0] % groups == 0;
  TORCH_CHECK_VALUE(fits, "a convolution of ", at::IntArrayRef(x.sizes), " and ",
                    at::IntArrayRef(w.sizes), " in ", groups, " groups");
  step->sizes = {x.sizes[0], w.sizes[0], 0, 0};
  for (size_t d = 0; d < 2; ++d) {
    // No extent is beyond 2^46 and no number of the window beyond 2^30.
    int64_t reach = 0;
    TORCH_CHECK_VALUE(!__builtin_mul_overflow(step->dilation[d], w.sizes[2 + d] - 1, &reach) &&
                          reach < (int64_t(1) << 60),
                      "the window of a convolution is larger than any memory");
    const int64_t room = x.sizes[2 + d] + 2 * step->padding[d] - reach - 1;
    TORCH_CHECK_VALUE(room >= 0, "the window of a convolution is larger than what it moves over");
    step->sizes[2 + d] = room / step->stride[d] + 1;
  }
  // Its result is a tensor, too, even if an epilogue takes it.
  Extents strides(4);
  int64_t size = 1;
  for (size_t d = 4; d-- > 0;) {
    strides[d] = size;
    TORCH_CHECK_VALUE(!__builtin_mul_overflow(size, step->sizes[d], &size),
                      "the result of a convolution is larger than any memory");
  }
  const Geometry whole =
      make_geometry(at::kFloat, Extents(step->sizes.begin(), step->sizes.end()), strides);
  if (step->out) {
    const Geometry& g = step->out->geometry;
    TORCH_CHECK_VALUE(g.sizes == whole.sizes && g.dtype == x.dtype, "a convolution to ",
                      describe(x.dtype, whole.sizes), " goes with ", describe(g.dtype, g.sizes));
    step->whole = is_whole(*step->out);
  }
  program_->packs = program_->packs || step->constant_w;
  return step;
}

}  // namespace torch_neuronx::program
