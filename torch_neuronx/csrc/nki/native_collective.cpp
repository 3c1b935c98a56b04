// Copies of as many elements as memory says: chunks of collectives.
#include <c10/util/Exception.h>

#include <cstring>

#include "nki/native.h"

namespace torch_neuronx::nki {
namespace {

// (bytes of an element, dst, src, most): elements of both tensors, and the largest count.
Declared declare_counted_copy(Params params) {
  checked(params, {1, 0, 0, 0}, "bytes of an element, dst, src, most");
  int64_t dst = 0, src = 0;
  TORCH_CHECK_VALUE(!__builtin_mul_overflow(params[0], params[1], &dst) &&
                        !__builtin_mul_overflow(params[0], params[2], &src),
                    "chunks beyond any memory");
  Declared declared;
  declared.slots = {{0, dst, true}, {0, src, false}, {0, 4, false}, {0, 4, false}, {0, 4, false}};
  declared.nanoseconds = 20 + 0.1 * double(dst);
  return declared;
}

int64_t number(const void* slot) {
  uint32_t value;
  std::memcpy(&value, slot, sizeof(value));
  return value;
}

bool run_counted_copy(const NativeCall& call) {
  const int64_t size = call.params[0], dst = call.params[1], src = call.params[2],
                most = call.params[3];
  const int64_t count = number(call.slots[2]), start = number(call.slots[3]),
                to = number(call.slots[4]);
  const struct {
    const char* what;
    int64_t end, limit;
  } limits[] = {{"copies", count, most},
                {"reads its source up to", start + count, src},
                {"writes its destination up to", to + count, dst}};
  for (const auto& [what, end, limit] : limits) {
    if (end <= limit) continue;
    call.failure->code = "NKI320";
    call.failure->what = std::string("a chunk of a collective ") + what + " " +
                         std::to_string(end) + " elements, and there are " + std::to_string(limit);
    call.failure->remedy = "correct the counts and displacements in the metadata tensor";
    return false;
  }
  std::memmove(static_cast<char*>(call.slots[0]) + to * size,
               static_cast<const char*>(call.slots[1]) + start * size, size_t(count * size));
  return true;
}

constexpr Native kNatives[] = {{"counted_copy", &declare_counted_copy, &run_counted_copy}};

}  // namespace

std::span<const Native> collective_natives() { return kNatives; }

}  // namespace torch_neuronx::nki
