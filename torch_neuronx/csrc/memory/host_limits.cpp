#include "memory/host_limits.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

namespace torch_neuronx {
namespace {

constexpr size_t kUnknown = std::numeric_limits<size_t>::max();

// Set when the device is registered, and replaced by tests. Asked for rarely: a core looks once
// for every piece of memory that it takes from the host.
struct Groups {
  std::mutex mutex;
  std::vector<MemoryLimit> memory;

  static Groups& instance() {
    static Groups* const groups = new Groups();  // outlives every thread
    return *groups;
  }
};

std::atomic<size_t> processors{0};

size_t named_number(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  size_t value = 0;
  while (file >> key >> value) {
    if (key == name) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnknown;
}

size_t mem_available() {
  const size_t kib = named_number("/proc/meminfo", "MemAvailable:");
  return kib == kUnknown ? kUnknown : kib * 1024;
}

// A limit file holds a number, "max", or doesn't exist.
size_t number_in(const std::string& path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : kUnknown;
}

size_t left(const MemoryLimit& group) {
  const size_t limit = number_in(group.limit);
  const size_t usage = number_in(group.usage);
  if (limit == kUnknown || usage == kUnknown) return kUnknown;
  // Pages of files that were read long ago are counted, but go when memory is asked for.
  const size_t found = named_number(group.stat, group.reclaimable);
  const size_t held = usage - std::min(usage, found == kUnknown ? 0 : found);
  return limit > held ? limit - held : 0;
}

}  // namespace

void set_host_limits(std::vector<MemoryLimit> memory, size_t count) {
  Groups& groups = Groups::instance();
  const std::lock_guard<std::mutex> lock(groups.mutex);
  groups.memory = std::move(memory);
  processors.store(count, std::memory_order_relaxed);
}

size_t host_available_bytes() {
  size_t least = mem_available();
  Groups& groups = Groups::instance();
  const std::lock_guard<std::mutex> lock(groups.mutex);
  for (const MemoryLimit& group : groups.memory) least = std::min(least, left(group));
  return least;
}

size_t host_processors() {
  const size_t told = processors.load(std::memory_order_relaxed);
  return told != 0 ? told : std::max<size_t>(1, std::thread::hardware_concurrency());
}

}  // namespace torch_neuronx
