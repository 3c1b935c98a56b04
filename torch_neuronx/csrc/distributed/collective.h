// A collective as data: what one rank asks for, in bytes of its own memory.
#pragma once

#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "distributed/reduce.h"

namespace torch_neuronx::distributed {

enum class Kind : uint8_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  // Not collectives, but issued with tensors that are checked in the same way:
  kSend,
  kReceive,
};
const char* kind_name(Kind kind);

struct Memory {
  void* data;
  size_t bytes;
};

// `exposed` is what the other ranks read, `outputs` is what this rank fills. With n ranks and k
// tensors:
//   broadcast        root: k exposed; the others: k outputs
//   all_reduce       k exposed, reduced in place
//   reduce           k exposed; the root's are reduced in place
//   all_gather       k exposed, k*n outputs (those of one tensor together, by rank)
//   gather           1 exposed; root: n outputs
//   scatter          root: n exposed; 1 output
//   reduce_scatter   k*n exposed (those of one tensor together, by rank), k outputs
//   all_to_all       n exposed, by destination; n outputs, by source
struct Call {
  Kind kind = Kind::kBarrier;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  Reduction reduction = Reduction::kSum;
  double prescale = 1, postscale = 1;
  int root = -1;  // a rank of the group
  std::vector<Memory> exposed;
  std::vector<Memory> outputs;
  uint64_t elements = 0;       // that must be the same in all ranks; 0 where they need not
  std::vector<int64_t> sizes;  // of the first tensor
  int device = 0;              // the core that the tensors are on
  // Where views are put that are more than a slot has room for. Whoever issues the collective
  // allocates it: memory that was freed is handed out while what is enqueued may still use it, and
  // the collective waits for that and not for what is enqueued later.
  Memory table{nullptr, 0};
  uint64_t sequence = 0;
  bool by_address = false;  // what is exposed must be read where it is: it is written meanwhile
  std::chrono::milliseconds timeout{0};

  size_t exposed_bytes() const;
  // "all_reduce 17 (sum, float32 [4, 3])"
  std::string text() const;
};

}  // namespace torch_neuronx::distributed
