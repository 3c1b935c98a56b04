#include "memory/host_limits.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

namespace torch_neuronx {
namespace {

constexpr size_t kUnknown = std::numeric_limits<size_t>::max();

size_t mem_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  size_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnknown;
}

// A cgroup v2 or v1 limit file holds a number, "max", or doesn't exist.
size_t number_in(const char* path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : kUnknown;
}

size_t cgroup_left(const char* limit_path, const char* usage_path) {
  const size_t limit = number_in(limit_path);
  const size_t usage = number_in(usage_path);
  if (limit == kUnknown || usage == kUnknown) return kUnknown;
  return limit > usage ? limit - usage : 0;
}

}  // namespace

size_t host_available_bytes() {
  return std::min({mem_available(),
                   cgroup_left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
                   cgroup_left("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                               "/sys/fs/cgroup/memory/memory.usage_in_bytes")});
}

}  // namespace torch_neuronx
