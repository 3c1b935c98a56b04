// neuron::check_values: what a compiled program does before it trusts the numbers in a tensor.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/any.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <atomic>

namespace torch_neuronx::program {
namespace {

constexpr int64_t kGrain = 32768;

// Whether a number is outside of [low, high]. Every difference that overflows belongs to a number
// that is outside, and one of the two signs still says so. Vectorised for any processor, which
// comparisons of 64 bits are not.
template <typename T>
bool any_outside(const T* values, int64_t begin, int64_t end, int64_t low, int64_t high) {
  uint64_t signs = 0;
  for (int64_t i = begin; i < end; ++i) {
    const auto value = static_cast<uint64_t>(static_cast<int64_t>(values[i]));
    signs |= (value - static_cast<uint64_t>(low)) | (static_cast<uint64_t>(high) - value);
  }
  return signs >> 63 != 0;
}

template <typename T>
std::optional<int64_t> first_outside(const T* values, int64_t count, int64_t low, int64_t high) {
  std::atomic<bool> found = false;
  at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    if (any_outside(values, begin, end, low, high)) found = true;
  });
  for (int64_t i = 0; found && i < count; ++i) {
    const auto value = static_cast<int64_t>(values[i]);
    if (value < low || value > high) return value;
  }
  return std::nullopt;
}

std::string filled(std::string text, int64_t value) {
  const size_t place = text.find("{}");
  return place == std::string::npos ? text : text.replace(place, 2, std::to_string(value));
}

// Repeated elements are read once, the others wherever they lie.
at::Tensor in_a_row(at::Tensor values) {
  for (int64_t d = values.dim() - 1; d >= 0; --d) {
    if (values.stride(d) == 0 && values.size(d) > 1) values = values.select(d, 0);
  }
  return values.is_non_overlapping_and_dense() ? values : values.contiguous();
}

// Returns 0, of the type of the values: what is added to the values waits for the check.
at::Tensor check_values(const at::Tensor& values, int64_t low, int64_t high, std::string text,
                        bool lookup) {
  std::optional<int64_t> wrong;
  if (values.numel() != 0) {
    const at::Tensor plain = in_a_row(values);
    AT_DISPATCH_INTEGRAL_TYPES_AND(at::kBool, plain.scalar_type(), "check_values", [&] {
      wrong = first_outside(plain.const_data_ptr<scalar_t>(), plain.numel(), low, high);
    });
  }
  if (C10_UNLIKELY(wrong.has_value())) {
    TORCH_CHECK_INDEX(!lookup, filled(std::move(text), *wrong));
    TORCH_CHECK(false, filled(std::move(text), *wrong));
  }
  return at::zeros({}, values.options());
}

// For the text of the error, once a loop has found that there may be one; see steps.h.
void check_noted_values(const at::Tensor& note, const at::Tensor& values, int64_t low, int64_t high,
                        std::string text, bool lookup) {
  if (note.any().item<bool>()) check_values(values, low, high, std::move(text), lookup);
}

// What LAPACK said of each matrix, 0 if nothing, as PyTorch's linear algebra makes errors of it.
at::Tensor check_factorization(const at::Tensor& infos, c10::string_view function, bool is_matrix) {
  at::_linalg_check_errors(infos, function, is_matrix);
  return at::zeros({}, infos.options());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(neuron, m) {
  m.def(
      "check_noted_values(Tensor note, Tensor values, int low, int high, str text, bool lookup) -> "
      "()");
  m.def("check_factorization(Tensor infos, str function, bool is_matrix) -> Tensor");
  m.def("check_values(Tensor values, int low, int high, str text, bool lookup) -> Tensor");
}
TORCH_LIBRARY_IMPL(neuron, CPU, m) {
  m.impl("check_factorization", &check_factorization);
  m.impl("check_values", &check_values);
  m.impl("check_noted_values", &check_noted_values);
}

}  // namespace torch_neuronx::program
