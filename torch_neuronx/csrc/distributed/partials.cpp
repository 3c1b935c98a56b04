#include "distributed/partials.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <memory>

namespace torch_neuronx::distributed {
namespace {

// Elements that are widened at once: they stay in the core's own cache, and ATen copies so few on
// the calling thread.
constexpr int64_t kRoundStrip = 8192;

void convert(const void* from, c10::ScalarType from_dtype, void* to, c10::ScalarType to_dtype,
             int64_t count) {
  at::AutoDispatchBelowADInplaceOrView guard;
  at::from_blob(to, {count}, at::TensorOptions(to_dtype))
      .copy_(at::from_blob(const_cast<void*>(from), {count}, at::TensorOptions(from_dtype)));
}

std::vector<const void*> moved(const std::vector<const char*>& arrays, int64_t bytes) {
  std::vector<const void*> result;
  for (const char* array : arrays) result.push_back(array + bytes);
  return result;
}

}  // namespace

c10::ScalarType Folding::partial_dtype() const {
  const bool rounds = op == Reduction::kSum || op == Reduction::kProduct;
  const bool narrow = c10::isReducedFloatingType(dtype);
  return rounds && narrow ? c10::ScalarType::Float : dtype;
}

size_t Folding::element_bytes() const { return c10::elementSize(dtype); }

size_t Folding::partial_bytes() const { return c10::elementSize(partial_dtype()); }

bool Folding::partial_is_input() const { return partial_dtype() == dtype && prescale == 1.0; }

void fold_inputs(const Folding& folding, const std::vector<const char*>& inputs, char* out,
                 int64_t count) {
  const auto partial = folding.partial_dtype();
  const size_t n = inputs.size();
  if (partial == folding.dtype) {
    const auto from = moved(inputs, 0);
    void* to = out;
    reduce(folding.op, partial, from.data(), n, &to, 1, count, folding.prescale, 1.0);
    return;
  }
  const auto wide = std::make_unique<float[]>(n * kRoundStrip);
  std::vector<const void*> from;
  for (size_t i = 0; i < n; ++i) from.push_back(wide.get() + i * kRoundStrip);
  for (int64_t at = 0; at < count; at += kRoundStrip) {
    const int64_t length = std::min(kRoundStrip, count - at);
    for (size_t i = 0; i < n; ++i) {
      convert(inputs[i] + at * folding.element_bytes(), folding.dtype, wide.get() + i * kRoundStrip,
              partial, length);
    }
    void* to = out + at * sizeof(float);
    reduce(folding.op, partial, from.data(), n, &to, 1, length, folding.prescale, 1.0);
  }
}

void fold_partials(const Folding& folding, const std::vector<const char*>& partials, char* out,
                   int64_t count) {
  const auto partial = folding.partial_dtype();
  if (partial == folding.dtype) {
    const auto from = moved(partials, 0);
    void* to = out;
    reduce(folding.op, partial, from.data(), from.size(), &to, 1, count, 1.0, folding.postscale);
    return;
  }
  const auto wide = std::make_unique<float[]>(kRoundStrip);
  for (int64_t at = 0; at < count; at += kRoundStrip) {
    const int64_t length = std::min(kRoundStrip, count - at);
    const auto from = moved(partials, at * static_cast<int64_t>(sizeof(float)));
    void* to = wide.get();
    reduce(folding.op, partial, from.data(), from.size(), &to, 1, length, 1.0, folding.postscale);
    convert(wide.get(), partial, out + at * folding.element_bytes(), folding.dtype, length);
  }
}

}  // namespace torch_neuronx::distributed
