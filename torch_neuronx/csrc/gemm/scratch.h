// Working memory that belongs to a thread and only grows, so that a product allocates nothing after
// its first time. One slot per purpose, because the purposes are alive at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torch_neuronx::gemm {

enum class Slot : uint8_t {
  kBlockA,
  kPanel,
  kAccumulator,
  kThinSmall,
  kThinColumns,
  kThinResult,
  kProbe,
  kEpilogueTile,
  kMade,  // elements of an operand
  kLoopKernel,
  kAttention,       // of one task
  kAttentionParts,  // results of tasks on their way to another
  kConvFilters,
  kConvValues,
  kConvSums,
  kCount
};

// At least `bytes` of memory aligned to 64, valid until the same thread asks for the same slot
// again. Throws std::bad_alloc.
char* scratch(Slot slot, size_t bytes);

// Gives the calling thread's memory back (tests, and a thread that is done).
void release_scratch();

}  // namespace torch_neuronx::gemm
