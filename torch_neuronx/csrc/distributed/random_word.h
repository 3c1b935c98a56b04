// What nobody else has drawn, now or before: to tell groups and jobs apart.
#pragma once

#include <c10/util/Exception.h>
#include <sys/random.h>

#include <array>
#include <cstddef>

namespace torch_neuronx::distributed {

inline constexpr size_t kRandomBytes = 16;
using RandomWord = std::array<unsigned char, kRandomBytes>;

inline RandomWord random_word() {
  RandomWord word;
  TORCH_CHECK(getrandom(word.data(), word.size(), 0) == static_cast<ssize_t>(word.size()),
              "getrandom failed");
  return word;
}

}  // namespace torch_neuronx::distributed
