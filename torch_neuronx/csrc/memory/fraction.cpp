#include "memory/fraction.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>

#include "device/state.h"

namespace torch_neuronx {
namespace {

struct Fraction {
  std::atomic<double> value{1};
};
std::array<Fraction, kMaxDevices> g_fractions;

}  // namespace

double memory_fraction(int core) { return g_fractions[static_cast<size_t>(core)].value.load(); }

void set_memory_fraction(int core, double fraction) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "Invalid fraction value: ", fraction,
                    ". Allowed range: 0~1");
  g_fractions[static_cast<size_t>(core)].value.store(fraction);
}

size_t allowed_bytes(int core, size_t hbm_bytes) noexcept {
  const double part = g_fractions[static_cast<size_t>(core)].value.load(std::memory_order_relaxed);
  return part == 1 ? hbm_bytes : static_cast<size_t>(static_cast<double>(hbm_bytes) * part);
}

}  // namespace torch_neuronx
