// Pieces of one call that run at the same time, each on a core of its own.
#pragma once

#include <cstdint>
#include <functional>

namespace torch_neuronx::inference {

// Calls body(0) .. body(count - 1), at most `most` at a time, on this thread and on ATen's threads
// for work between operators. Each gets a fair share of this thread's OpenMP threads. Throws the
// first exception of a piece, when no piece runs any more; pieces that had not begun are left out.
// Pieces must not depend on each other: if no other thread is free, this one does all of them.
void run_together(int64_t count, int64_t most, const std::function<void(int64_t)>& body);

}  // namespace torch_neuronx::inference
