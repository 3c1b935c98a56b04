#include "kernels/isa.h"

#include <atomic>
#include <stdexcept>
#include <string>

namespace torch_neuronx::kernels {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::Avx512;
  }
  if (avx2) {
    return Isa::Avx2;
  }
#endif
  return Isa::Portable;
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

Isa best_isa() {
  static const Isa isa = detect();
  return isa;
}

Isa active_isa() { return current().load(std::memory_order_relaxed); }

void force_isa(Isa isa) {
  if (isa > best_isa()) {
    throw std::invalid_argument(std::string("this machine has no ") + isa_name(isa) +
                                "; its best instruction set is " + isa_name(best_isa()));
  }
  current().store(isa, std::memory_order_relaxed);
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::Avx512:
      return "avx512";
    case Isa::Avx2:
      return "avx2";
    case Isa::Portable:
      break;
  }
  return "portable";
}

}  // namespace torch_neuronx::kernels
