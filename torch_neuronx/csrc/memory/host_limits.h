// How much of the host is ours, so that an emulated HBM that is larger than the host's RAM, or than
// what a container may take of it, fails with an exception instead of the kernel's out-of-memory
// killer.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace torch_neuronx {

// One group of processes whose memory the system limits (a cgroup), as the paths of its files.
struct MemoryLimit {
  std::string limit;        // holds bytes, or "max"
  std::string usage;        // holds bytes
  std::string stat;         // lines of a name and a number
  std::string reclaimable;  // the name there of what is counted as usage and given back on demand
};

// Says what Python has found out about the limits (neuronxcc/host_limits.py): the groups that this
// process is in, and the processors that it may keep busy.
void set_host_limits(std::vector<MemoryLimit> memory, size_t processors);

// Bytes this process may still take: the smaller of /proc/meminfo's MemAvailable and what the
// limits leave. SIZE_MAX where the system doesn't say.
size_t host_available_bytes();

// Processors that this process may keep busy, at least 1.
size_t host_processors();

}  // namespace torch_neuronx
