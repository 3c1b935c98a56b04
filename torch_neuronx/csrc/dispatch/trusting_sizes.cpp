// Demands on lists of numbers, and on results that are given.
#include <algorithm>
#include <limits>
#include <vector>

#include "dispatch/trusting_calls.h"

namespace torch_neuronx::trusting {
namespace {

// The numbers of a list that has so many.
std::vector<int64_t> numbers(Call& call, const char* name, size_t count) {
  const auto list = call.argument(name).toIntVector();
  call.require(list.size() == count,
               c10::str("'", name, "' must have ", count, " elements, got ", list.size()));
  return list;
}

void require_at_least(Call& call, const char* name, size_t count, int64_t least) {
  const auto list = numbers(call, name, count);
  call.require(std::all_of(list.begin(), list.end(), [=](int64_t n) { return n >= least; }),
               c10::str("'", name, "' must be ", least, " at least"));
}

// In so many dimensions.
void fractional_pool_backward(Call& call, size_t dims) {
  const at::Tensor& self = call.operand("self");
  const at::Tensor& gradient = call.operand("grad_output");
  const auto sizes = numbers(call, "output_size", dims);
  call.require(self.dim() == gradient.dim() && self.dim() > static_cast<int64_t>(dims),
               "'self' and 'grad_output' need channels, and as many dimensions");
  call.require(gradient.sizes().slice(gradient.sizes().size() - dims) == at::IntArrayRef(sizes),
               "'output_size' must be that of 'grad_output'");
}

}  // namespace

void fft(Call& call) {
  const at::Tensor& self = call.operand("self");
  const auto dims = call.argument("dim").toIntVector();
  bool fits = !dims.empty() || call.find("onesided") == nullptr;
  std::vector<bool> seen(static_cast<size_t>(self.dim()));
  for (const int64_t d : dims) {  // none is counted from the end
    fits = fits && d >= 0 && d < self.dim() && !seen[static_cast<size_t>(d)];
    if (fits) seen[static_cast<size_t>(d)] = true;
  }
  const int64_t scale = call.argument("normalization").toInt();
  call.require(fits && scale >= 0 && scale <= 2,
               "dimensions of the input, each once, and a normalization of 0 to 2 are needed");
  if (const c10::IValue* last = call.find("last_dim_size")) {
    call.require(
        last->toInt() >= 1 && !dims.empty() && self.size(dims.back()) == last->toInt() / 2 + 1,
        "the last dimension must have last_dim_size / 2 + 1 elements");
  }
}

void fractional_pool2d_backward(Call& call) { fractional_pool_backward(call, 2); }
void fractional_pool3d_backward(Call& call) { fractional_pool_backward(call, 3); }

// Forward and backward, also NNPACK's.
void slow_convolution(Call& call) {
  const at::Tensor& weight = call.operand("weight");
  call.require(at::isFloatingType(weight.scalar_type()), "the operands must be floats");
  if (call.find("kernel_size") != nullptr) {
    const auto kernel = numbers(call, "kernel_size", 2);
    call.require(weight.sizes().slice(2) == at::IntArrayRef(kernel),
                 "'kernel_size' must be that of 'weight'");
  }
  require_at_least(call, "stride", 2, 1);
  require_at_least(call, "padding", 2, 0);
}

void chunk_cat(Call& call) {
  const int64_t dim = call.argument("dim").toInt();
  for (const at::Tensor& t : call.argument("tensors").toTensorVector()) {
    call.require(dim >= -t.dim() && dim < t.dim(),
                 c10::str("a tensor of ", t.sizes(), " has no dimension ", dim));
  }
}

void running_extreme(Call& call) {
  const int64_t dims = std::max<int64_t>(call.operand("self").dim(), 1);
  const int64_t dim = call.argument("dim").toInt();
  call.require(dim >= 0 && dim < dims, c10::str("there is no dimension ", dim));
  call.require(call.operand("indices").scalar_type() == at::kLong, "'indices' must be int64");
}

void packed_for_others(Call& call) {
  call.require(false, "it takes weights that are packed for the processor of the host");
}

void recurrent_layer(Call& call) {
  const at::Tensor &input = call.operand("input"), &weight = call.operand("weight0");
  const int64_t hidden = call.argument("hidden_size").toInt(), mode = call.argument("mode").toInt();
  constexpr int64_t kLstm = 2, kGru = 3;  // PyTorch's numbers, after those of plain networks
  call.require(mode >= 0 && mode <= kGru, "'mode' must be 0 to 3");
  const int64_t gates = mode == kLstm ? 4 : mode == kGru ? 3 : 1;
  call.require(
      hidden > 0 && weight.size(0) == gates * hidden && call.operand("weight1").size(1) == hidden,
      "the weights must have rows for each gate, and 'hidden_size' columns");
  call.require(input.numel() > 0 && at::isFloatingType(input.scalar_type()),
               "the input must hold floats");
  if (!call.argument("has_biases").toBool()) return;
  for (const char* name : {"weight2", "weight3"}) {
    call.require(call.operand(name).sizes() == at::IntArrayRef({gates * hidden}),
                 c10::str("'", name, "' must have an element for each row of 'weight0'"));
  }
}

// Integers would be divided by a number that has become 0 as one.
void float_operand(Call& call) {
  const at::ScalarType type = call.operand("self").scalar_type();
  call.require(at::isFloatingType(type) || at::isComplexType(type), "the operands must be floats");
}

// With integers the number of steps is a quotient of integers, which traps where it has no value.
void range(Call& call) {
  const at::Tensor& out = call.operand("out");
  if (!at::isIntegralType(out.scalar_type(), /*includeBool=*/true)) return;
  const int64_t start = call.argument("start").toScalar().to<int64_t>(),
                end = call.argument("end").toScalar().to<int64_t>(),
                step = call.argument("step").toScalar().to<int64_t>();
  call.require(step != 0, "a step of integers must not be 0");
  int64_t distance = 0;
  call.require(!__builtin_sub_overflow(end, start, &distance) &&
                   !(step == -1 && distance == std::numeric_limits<int64_t>::min()),
               "the distance from start to end has no 64-bit integer");
}

// In training it writes to results as if they had the size of its input.
void rrelu(Call& call) {
  const c10::IValue* training = call.find("training");
  if (training == nullptr || !training->isBool() || !training->toBool()) return;
  const at::Tensor& self = call.operand("self");
  for (const char* name : {"noise", "out"}) {
    const at::Tensor* t = call.tensor(name);
    call.require(t == nullptr || t->sizes() == self.sizes(),
                 c10::str("'", name, "' must have the shape of 'self'"));
  }
}

}  // namespace torch_neuronx::trusting
