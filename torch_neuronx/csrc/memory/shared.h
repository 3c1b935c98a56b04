// HBM that other processes can map. A core's arena starts as private memory of this process, which
// is all that one process needs; once a process group wants it, the arena moves into a memory file
// (memory/memory_file.h), at the same addresses, so that tensors, views and compiled programs don't
// notice.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace torch_neuronx {

struct SharedArena {
  int fd = -1;           // owned by the arena, valid as long as the process
  size_t bytes = 0;      // of the file and of the range of addresses
  char* base = nullptr;  // where byte 0 of the file lies in this process
};

// Moves the arena of core `index` on the first call and describes it on every one. Allocating and
// freeing may go on in other threads meanwhile, but nothing may write to tensors of the core (a
// write between the copy and the change of mapping would be lost). Throws c10::Error when the
// system refuses; the arena stays usable then, and another call continues where this one stopped.
//
// A child made by fork() sees the content, but writes to its own copy.
SharedArena share_arena(c10::DeviceIndex index);

}  // namespace torch_neuronx
