#include "kernels/isa.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
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

// What TORCH_NEURONX_ISA allows at most; Python has checked its text when the device was
// registered.
Isa allowed() {
  const char* text = std::getenv("TORCH_NEURONX_ISA");
  const std::string name = text == nullptr ? "" : text;
  if (name == isa_name(Isa::Portable)) return Isa::Portable;
  if (name == isa_name(Isa::Avx2)) return Isa::Avx2;
  return Isa::Avx512;
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

Isa best_isa() {
  static const Isa isa = std::min(detect(), allowed());
  return isa;
}

bool may_use_avx512bf16() {
#if defined(__x86_64__)
  return best_isa() == Isa::Avx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

bool may_use_amx() {
#if defined(__x86_64__) && defined(__linux__)
  // "AMX" in the kernel's documentation of x86 (xstate.rst): threads may use the registers' memory
  // once their process has asked for it.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE
  static const bool may = may_use_avx512bf16() && __builtin_cpu_supports("amx-bf16") &&
                          ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return may;
#else
  return false;
#endif
}

bool may_use_avx512fp16() {
#if defined(__x86_64__) && (__GNUC__ >= 12 || defined(__clang__))
  return best_isa() == Isa::Avx512 && __builtin_cpu_supports("avx512fp16");
#else
  return false;
#endif
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
