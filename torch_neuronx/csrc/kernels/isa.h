// Which instruction set the host kernels run with, decided once per process.
//
// Every kernel family comes as one template file (*_impl.h) compiled by three sources:
// *_avx512.cpp,
// *_avx2.cpp and *_portable.cpp. Each of them exports one constant table of functions; the public
// functions of the family pick the table of `active_isa()`.
#pragma once

#include <cstdint>

namespace torch_neuronx::kernels {

enum class Isa : uint8_t { Portable = 0, Avx2 = 1, Avx512 = 2 };

/// The best instruction set this processor and this build have, unless `force_isa` lowered it.
Isa active_isa();

/// The best instruction set that this processor and this build have and TORCH_NEURONX_ISA allows.
Isa best_isa();

/// Whether 16-bit numbers may be multiplied by instructions of their own: with AVX-512 alone.
bool may_use_avx512bf16();
bool may_use_avx512fp16();
/// Whether this process may use matrix tiles for bfloat16, which Linux allows to who asks.
bool may_use_amx();

/// For tests: run all later kernels with `isa`. Throws std::invalid_argument when it is better than
/// `best_isa()`. Not to be called while kernels run.
void force_isa(Isa isa);

/// "portable", "avx2" or "avx512".
const char* isa_name(Isa isa);

/// Picks the function table for the active instruction set. `Avx512`, `Avx2` and `Portable` are the
/// families' table getters; the first two are absent (nullptr) on other architectures.
template <class Table>
const Table& pick_table(const Table& (*portable)(), const Table& (*avx2)(),
                        const Table& (*avx512)()) {
  switch (active_isa()) {
    case Isa::Avx512:
      return avx512();
    case Isa::Avx2:
      return avx2();
    case Isa::Portable:
      break;
  }
  return portable();
}

}  // namespace torch_neuronx::kernels

// Declares the three table getters of a kernel family and the dispatching `name()`.
#if defined(__x86_64__)
#define TN_DECLARE_TABLES(Table, name)                                     \
  namespace avx512 {                                                       \
  const Table& name();                                                     \
  }                                                                        \
  namespace avx2 {                                                         \
  const Table& name();                                                     \
  }                                                                        \
  namespace portable {                                                     \
  const Table& name();                                                     \
  }                                                                        \
  inline const Table& name() {                                             \
    return pick_table<Table>(&portable::name, &avx2::name, &avx512::name); \
  }
#else
#define TN_DECLARE_TABLES(Table, name) \
  namespace portable {                 \
  const Table& name();                 \
  }                                    \
  inline const Table& name() { return pick_table<Table>(&portable::name, nullptr, nullptr); }
#endif
