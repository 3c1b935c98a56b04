// Helpers for the families of natives that work on rows.
#pragma once

#include "nki/native.h"
#include "nki/rows.h"

namespace torch_neuronx::nki {

// What rows of `used` bytes touch. Throws ValueError for more than any memory has.
NativeSlot reach(int64_t rows, int64_t row_bytes, int64_t used, bool written = false);

inline char* const* slots_of(const NativeCall& call) {
  return reinterpret_cast<char* const*>(call.slots);
}

// Runs a function for all rows of the call; says what is wrong if an index is out of bounds.
bool run_rows(RowsFunction function, const NativeCall& call);

}  // namespace torch_neuronx::nki
