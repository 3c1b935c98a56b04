// What a thread does between two looks at what it waits for without sleeping.
#pragma once

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <thread>
#endif

namespace torch_neuronx {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // "yield" is for threads that share a core, and does nothing where none do, which is nearly
  // everywhere. To fetch the instructions once more takes some tens of cycles, as x86's pause does.
  asm volatile("isb" ::: "memory");
#else
  std::this_thread::yield();
#endif
}

}  // namespace torch_neuronx
