// How much memory the host can still give us, so that an emulated HBM that is larger than the
// host's RAM fails with an exception instead of the kernel's out-of-memory killer.
#pragma once

#include <cstddef>

namespace torch_neuronx {

// Bytes this process may still take: the smaller of /proc/meminfo's MemAvailable and what the
// cgroup's limit leaves. SIZE_MAX where the system doesn't say.
size_t host_available_bytes();

}  // namespace torch_neuronx
