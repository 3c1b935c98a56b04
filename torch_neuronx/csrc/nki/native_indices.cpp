// Whether indices that a kernel computed are in bounds, and other data is what it must be.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "nki/native.h"

namespace torch_neuronx::nki {
namespace {

// (count, stride, bound): `count` s32 values, `stride` elements apart, must be in [0, bound).
Declared declare_check_index(Params params) {
  checked(params, {0, 0, 0}, "count, stride, bound");
  const int64_t count = params[0], stride = params[1];
  int64_t last = 0;
  TORCH_CHECK_VALUE(!__builtin_mul_overflow(std::max<int64_t>(count - 1, 0), stride, &last) &&
                        last < int64_t(1) << 56,
                    "indices beyond any memory");
  Declared declared;
  declared.slots = {{0, count == 0 ? 0 : 4 * (last + 1), false}};
  declared.nanoseconds = 5 + double(count);
  return declared;
}

bool check_index(const NativeCall& call) {
  const int64_t count = call.params[0], stride = call.params[1], bound = call.params[2];
  const char* at = static_cast<const char*>(call.slots[0]);
  for (int64_t i = 0; i < count; ++i) {
    int32_t value;
    std::memcpy(&value, at + 4 * i * stride, sizeof(value));
    if (value >= 0 && value < bound) continue;
    call.failure->code = "NKI132";
    call.failure->what = "index " + std::to_string(value) +
                         " is out of bounds: it must be from 0 to below " + std::to_string(bound);
    call.failure->remedy =
        "keep it in bounds, or ask for oob_mode.skip where the instruction has it";
    return false;
  }
  return true;
}

// (count): `count` s32 values that count what is wrong in the columns of a matrix.
Declared declare_check_one_hot(Params params) {
  checked(params, {0}, "count");
  Declared declared;
  declared.slots = {{0, 4 * params[0], false}};
  declared.nanoseconds = 5 + double(params[0]);
  return declared;
}

bool check_one_hot(const NativeCall& call) {
  const char* at = static_cast<const char*>(call.slots[0]);
  for (int64_t i = 0; i < call.params[0]; ++i) {
    int32_t value;
    std::memcpy(&value, at + 4 * i, sizeof(value));
    if (value == 0) continue;
    call.failure->code = "NKI141";
    call.failure->what = "nc_matmul with is_transpose=True has a moving tensor that is no identity";
    call.failure->remedy =
        "pass the tensor to transpose as stationary and nl.shared_identity_matrix as moving";
    return false;
  }
  return true;
}

constexpr Native kNatives[] = {{"check_index", &declare_check_index, &check_index},
                               {"check_one_hot", &declare_check_one_hot, &check_one_hot}};

}  // namespace

std::span<const Native> index_natives() { return kNatives; }

}  // namespace torch_neuronx::nki
