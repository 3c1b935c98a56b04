#include "nki/native_rows.h"

#include <c10/util/Exception.h>

namespace torch_neuronx::nki {

NativeSlot reach(int64_t rows, int64_t row_bytes, int64_t used, bool written) {
  if (rows == 0 || used == 0) return {0, 0, written};
  int64_t high = 0;
  TORCH_CHECK_VALUE(!__builtin_mul_overflow(rows - 1, row_bytes, &high) &&
                        !__builtin_add_overflow(high, used, &high) && high < int64_t(1) << 56,
                    "rows beyond any memory");
  return {0, high, written};
}

bool run_rows(RowsFunction function, const NativeCall& call) {
  Fault fault;
  if (function(slots_of(call), call.params, fault)) return true;
  call.failure->code = "NKI132";
  call.failure->what = "index " + std::to_string(fault.index) +
                       " is out of bounds: it must be from 0 to below " +
                       std::to_string(fault.bound);
  call.failure->remedy = "keep it in bounds, or ask for oob_mode.skip where the instruction has it";
  return false;
}

}  // namespace torch_neuronx::nki
