// Guard pages between the blocks of the arena, for tests: TORCH_NEURONX_GUARD_PAGES.
#pragma once

#include <cstdint>

namespace torch_neuronx {

// kAfter: every block ends right before a page that can't be touched; kBefore: it begins right
// behind one.
enum class Guards : uint8_t { kNone, kAfter, kBefore };

// As the variable says when it is first asked for. Throws c10::Error for a value it doesn't know.
Guards guards();

}  // namespace torch_neuronx
