// Pinned host memory. Nothing is locked: copies to the emulated HBM are ordinary memory copies, so
// "pinned" means page-aligned, cached between uses, and recognised by `is_pinned`.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace torch_neuronx {

at::HostAllocator* host_allocator();
// True for any address inside memory that the host allocator handed out.
bool is_pinned_pointer(const void* ptr);

}  // namespace torch_neuronx
