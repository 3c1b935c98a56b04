// Process-wide state of the emulated machine: how many NeuronCores there are, whether the device
// was used yet, which core a thread has selected, and whether this process is a forked child.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

namespace torch_neuronx {

inline constexpr c10::DeviceType kNeuron = c10::DeviceType::PrivateUse1;
inline constexpr int kMaxDevices = 64;  // one trn2.48xlarge at LNC=2

struct MachineConfig {
  int device_count = 0;
  size_t hbm_bytes = 0;  // of one logical NeuronCore
  std::string name;      // "trn2"
};

// Called once at import, before any use; allocates nothing.
void configure(MachineConfig config);
const MachineConfig& machine();

// Marks the device as used. Throws in a child that was forked after the parent had used it.
void ensure_initialized();
bool is_initialized();
bool is_in_bad_fork();
// Has the thread that uses the device first call this, once, when the device can be used.
void call_at_first_use(std::function<void()> call);

c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);            // throws when out of range
void set_current_device_unchecked(c10::DeviceIndex index);  // for destructors
c10::DeviceIndex exchange_device(c10::DeviceIndex index);

// The core that new threads start on (LOCAL_RANK's core when a launcher set it).
void set_default_device(c10::DeviceIndex index);

// Throws unless 0 <= index < device_count().
void check_device_index(int64_t index);

// `index`, or the current device when it is -1.
c10::DeviceIndex resolve_device_index(c10::DeviceIndex index);

}  // namespace torch_neuronx
