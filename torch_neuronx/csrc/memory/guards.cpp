#include "memory/guards.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string_view>

namespace torch_neuronx {
namespace {

Guards read_guards() {
  const char* text = std::getenv("TORCH_NEURONX_GUARD_PAGES");
  const std::string_view value = text == nullptr ? "" : text;
  if (value.empty()) return Guards::kNone;
  if (value == "after") return Guards::kAfter;
  if (value == "before") return Guards::kBefore;
  TORCH_CHECK(false, "TORCH_NEURONX_GUARD_PAGES='", value,
              "' is not valid; allowed: after, before");
}

}  // namespace

Guards guards() {
  static const Guards value = read_guards();
  return value;
}

}  // namespace torch_neuronx
