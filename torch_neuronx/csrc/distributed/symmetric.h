// Symmetric memory (torch.distributed._symmetric_memory): tensors that the other ranks of a group
// read and write directly, with signals to take turns. HBM is shared between the ranks of a host
// anyway (memory/shared.h), so an allocation is a block of the arena with a signal pad behind it,
// and a rendezvous tells the others where it lies.
#pragma once

namespace torch_neuronx::distributed {

// Makes it the allocator of symmetric memory of the device. Called once, at import.
void register_symmetric_memory();

}  // namespace torch_neuronx::distributed
