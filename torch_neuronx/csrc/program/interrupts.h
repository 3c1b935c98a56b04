// A loop without an end must still hear Ctrl-C.
#pragma once

#include <chrono>

namespace torch_neuronx::program {

class Interrupts {
 public:
  // Throws KeyboardInterrupt (or what else the signal's handler raises) if a signal has come.
  // Looks at most every 50 ms; the caller does not hold the GIL.
  void poll() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return;
    last_ = now;
    look();
  }

 private:
  static void look();

  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace torch_neuronx::program
