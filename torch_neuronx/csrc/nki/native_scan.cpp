// Recurrences along a row: scan, cumulate.
#include <c10/util/Exception.h>

#include "nki/lanes.h"
#include "nki/native_rows.h"

namespace torch_neuronx::nki {
namespace {

constexpr int64_t kOperators = 17, kCumulative = 5;  // of Alu in scan_impl.h

Declared declare_scan(Params p) {
  checked(p, {1, 1, 0, 0, 0, 0, 0, 0, 0, 0},
          "rows, size, op0, reverse0, op1, reverse1, out_bytes, a_bytes, b_bytes, initial_bytes");
  TORCH_CHECK_VALUE(p[2] < kOperators && p[4] < kOperators && p[3] < 2 && p[5] < 2,
                    "scan has no such operator");
  Declared declared;
  declared.slots = {reach(p[0], p[6], 4 * p[1], true), reach(p[0], p[7], 4 * p[1]),
                    reach(p[0], p[8], 4 * p[1]), reach(p[0], p[9], 4)};
  declared.nanoseconds = double(p[0]) * double(p[1]);
  return declared;
}

bool run_scan(const NativeCall& call) { return run_rows(kernels::nki_table().scan, call); }

Declared declare_cumulate(Params p) {
  checked(p, {1, 1, 0, 0, 0, 0, 0},
          "rows, size, op, out_bytes, state_bytes, x_bytes, initial_bytes");
  TORCH_CHECK_VALUE(p[2] < kCumulative, "cumulate has no such operator");
  Declared declared;
  declared.slots = {reach(p[0], p[3], 4 * p[1], true), reach(p[0], p[4], 4, true),
                    reach(p[0], p[5], 4 * p[1]), reach(p[0], p[6], 4)};
  declared.nanoseconds = double(p[0]) * double(p[1]);
  return declared;
}

bool run_cumulate(const NativeCall& call) { return run_rows(kernels::nki_table().cumulate, call); }

constexpr Native kNatives[] = {{"scan", &declare_scan, &run_scan},
                               {"cumulate", &declare_cumulate, &run_cumulate}};

}  // namespace

std::span<const Native> scan_natives() { return kNatives; }

}  // namespace torch_neuronx::nki
