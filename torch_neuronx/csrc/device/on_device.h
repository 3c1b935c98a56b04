// Selecting a core for the length of a scope: allocations without a device, and tensors that ask
// for no index, take the current one.
#pragma once

#include "device/state.h"

namespace torch_neuronx {

// Selects a core while alive.
class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex index) : previous_(current_device()) {
    set_current_device_unchecked(index);
  }
  ~OnDevice() { set_current_device_unchecked(previous_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  c10::DeviceIndex previous_;
};

}  // namespace torch_neuronx
