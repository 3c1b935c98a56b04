#include "nki/native.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <array>

namespace torch_neuronx::nki {

namespace {

const auto& families() {
  static const std::array all{index_natives(), search_natives(), gather_natives(),
                              scan_natives(),  random_natives(), collective_natives()};
  return all;
}

}  // namespace

const Native* find_native(std::string_view name) {
  for (const auto& family : families()) {
    for (const Native& native : family) {
      if (name == native.name) return &native;
    }
  }
  return nullptr;
}

std::vector<std::string> native_names() {
  std::vector<std::string> names;
  for (const auto& family : families()) {
    for (const Native& native : family) names.emplace_back(native.name);
  }
  return names;
}

void checked(Params params, std::initializer_list<int64_t> least, const char* names) {
  constexpr int64_t kMost = int64_t(1) << 40;  // so that products of two fit into 64 bits with care
  bool right = params.size() == least.size();
  for (size_t i = 0; right && i < params.size(); ++i) {
    right = params[i] >= least.begin()[i] && params[i] <= kMost;
  }
  TORCH_CHECK_VALUE(right, "the parameters ", c10::ArrayRef<int64_t>(params.data(), params.size()),
                    " are no (", names, ")");
}

}  // namespace torch_neuronx::nki
