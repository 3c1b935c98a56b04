// The part of a core's HBM that this process may use: torch.neuron.set_per_process_memory_fraction.
#pragma once

#include <cstddef>

namespace torch_neuronx {

double memory_fraction(int core);                           // 1 at first
void set_memory_fraction(int core, double fraction);        // throws unless in [0, 1]
size_t allowed_bytes(int core, size_t hbm_bytes) noexcept;  // of the core's HBM

}  // namespace torch_neuronx
