#include "device/state.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string_view>
#include <vector>

#include "registry/registry.h"

namespace torch_neuronx {
namespace {

MachineConfig g_machine;
std::atomic<bool> g_initialized{false};
std::atomic<bool> g_bad_fork{false};
std::atomic<c10::DeviceIndex> g_default_device{0};
std::mutex g_first_mutex;
std::vector<std::function<void()>>& first_use() {
  static auto* calls =
      new std::vector<std::function<void()>>;  // never destroyed: may hold Python's
  return *calls;
}
thread_local c10::DeviceIndex t_device = -1;  // -1: not chosen by this thread yet

void on_fork_in_child() {
  if (g_initialized.load()) g_bad_fork.store(true);
  registry::forget();
}

// The kernels of eager operators round to nearest, PyTorch's own among them, and nobody who asked
// for anything else should have to find that out from results.
void warn_of_rounding() {
  const char* text = std::getenv("NEURON_RT_STOCHASTIC_ROUNDING_EN");
  if (text != nullptr && std::string_view(text) == "1") {
    TORCH_WARN_ONCE(
        "NEURON_RT_STOCHASTIC_ROUNDING_EN=1 acts in compiled programs only (torch.compile); eager "
        "operators round to nearest even");
  }
}

}  // namespace

void configure(MachineConfig config) {
  TORCH_CHECK(!g_initialized.load(), "the neuron device is already in use and can't be configured");
  TORCH_CHECK(config.device_count >= 0 && config.device_count <= kMaxDevices,
              "device_count must be in [0, ", kMaxDevices, "], but got ", config.device_count);
  g_machine = std::move(config);
}

const MachineConfig& machine() { return g_machine; }

void call_at_first_use(std::function<void()> call) {
  const std::lock_guard<std::mutex> lock(g_first_mutex);
  first_use().push_back(std::move(call));
}

void ensure_initialized() {
  if (C10_LIKELY(g_initialized.load(std::memory_order_acquire) &&
                 !g_bad_fork.load(std::memory_order_relaxed))) {
    return;
  }
  TORCH_CHECK(!g_bad_fork.load(),
              "Cannot re-initialize neuron in forked subprocess. To use neuron with "
              "multiprocessing, you must use the 'spawn' start method");
  TORCH_CHECK(g_machine.device_count > 0, "No NeuronCores are available to this process");
  static const int registered = pthread_atfork(nullptr, nullptr, on_fork_in_child);
  TORCH_CHECK(registered == 0, "pthread_atfork failed");
  static std::once_flag opened;
  std::call_once(opened, &registry::open);
  g_initialized.store(true, std::memory_order_release);
  warn_of_rounding();
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard<std::mutex> lock(g_first_mutex);
    calls.swap(first_use());
  }
  for (const auto& call : calls) call();
}

bool is_initialized() { return g_initialized.load() && !g_bad_fork.load(); }
bool is_in_bad_fork() { return g_bad_fork.load(); }

c10::DeviceIndex device_count() { return static_cast<c10::DeviceIndex>(g_machine.device_count); }

c10::DeviceIndex current_device() {
  return t_device >= 0 ? t_device : g_default_device.load(std::memory_order_relaxed);
}

void check_device_index(int64_t index) {
  TORCH_CHECK(index >= 0 && index < g_machine.device_count,
              "The device index is out of range. It must be in [0, ", g_machine.device_count,
              "), but got ", index, ".");
}

void set_current_device(c10::DeviceIndex index) {
  if (g_bad_fork.load(std::memory_order_relaxed)) ensure_initialized();  // says why not
  check_device_index(index);
  t_device = index;
}

void set_current_device_unchecked(c10::DeviceIndex index) { t_device = index; }

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const auto previous = current_device();
  set_current_device(index);
  return previous;
}

void set_default_device(c10::DeviceIndex index) {
  check_device_index(index);
  g_default_device.store(index);
}

c10::DeviceIndex resolve_device_index(c10::DeviceIndex index) {
  if (index < 0) return current_device();
  check_device_index(index);
  return index;
}

}  // namespace torch_neuronx
