// Kinds of calls whose results are known: what a call with a key (queue/call_key.h) gives, as the
// first such call showed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory/arena.h"
#include "queue/call_key.h"

namespace torch_neuronx::queue {

struct Geometry {
  at::ScalarType dtype;
  c10::DimVector sizes, strides;
};

// A tensor among the arguments.
struct Operand : Geometry {
  uint8_t storage;
  int64_t extent;  // elements from its first to behind its last
  bool wrapped_number, kept_for_backward;
};

struct Result {
  enum class Kind : uint8_t { kNew, kArgument, kUndefined, kNumber };
  Kind kind = Kind::kUndefined;
  int64_t number = 0;
  Geometry geometry{};
  int64_t offset = 0;
  size_t bytes = 0;     // of its storage
  int allocation = -1;  // which one of the call its memory is; -1: it has none
};

struct Settled {
  std::vector<uint64_t> words;
  // Why such calls run when they are issued: what about the first one says that its results can't
  // be made beforehand. "" if they can.
  const char* reason = "";
  std::vector<Operand> operands;
  std::vector<Place> places;
  struct Memory {
    size_t bytes;
    Category category;
  };
  std::vector<Memory> memory;                // that the call allocates, in order
  std::vector<std::vector<Result>> returns;  // one for a tensor, several for a list of tensors
  std::vector<bool> is_list;                 // by return
  uint64_t draws = 0;                        // from the generator
};
using SettledPtr = std::shared_ptr<const Settled>;

// By key. A bound keeps a program whose shapes never repeat from collecting them.
class SettledCalls {
 public:
  SettledPtr find(const CallKey& key, uint64_t hash);
  void add(uint64_t hash, SettledPtr settled);

 private:
  std::mutex mutex_;
  std::unordered_multimap<uint64_t, SettledPtr> known_;
};

std::vector<Operand> operands_of(const CallKey& key);
// "float32[3, 4], int64[3]"
std::string text_of(const std::vector<Operand>& operands);

}  // namespace torch_neuronx::queue
