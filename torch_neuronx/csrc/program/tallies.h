// Numbers in memory of Python's that calls of programs add to: what they are predicted to take, for
// the tools around the device (torch_neuronx/program/model_time.py).
#pragma once

#include <pybind11/pybind11.h>

#include "program/program.h"

namespace torch_neuronx::program {

// A call has succeeded. Costs a look at an empty vector where nobody asked for predictions.
inline void add_tallies(const Program& program) {
  for (const Tally& tally : program.tallies) {
    std::atomic_ref<uint64_t>(*tally.place).fetch_add(tally.amount, std::memory_order_relaxed);
  }
}

void bind_tallies(pybind11::module& m);

}  // namespace torch_neuronx::program
