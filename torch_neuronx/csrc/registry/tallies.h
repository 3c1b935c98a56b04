// Numbers in memory of Python's that executions add to: what they are predicted to take, for the
// tools around the device (torch_neuronx/program/model_time.py).
#pragma once

#include <cstdint>
#include <span>

namespace torch_neuronx::registry {

// That memory. It is never given back: threads may add to it until the process ends. Throws
// ValueError if there is one already.
void keep_tallies(std::span<uint64_t> numbers);
// A place in it, for atomic additions. Throws ValueError if there is no such place.
uint64_t& tally_at(uint64_t place);

}  // namespace torch_neuronx::registry
