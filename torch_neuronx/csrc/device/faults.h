// Faults on demand: what the hardware may do to a program one day, when the program asks for it
// today. What there is, and what it is called, is a table in Python (torch_neuronx/testing); here
// are the points at which rules act, and the few things that a rule can do. Off, they cost nothing
// beyond what ActivityScope costs anyway.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/profiler.h"

namespace torch_neuronx::faults {

// An operator's or a program's execution on a core; a collective or a message; memory asked for;
// and of the compiler, which is Python: a graph is compiled, an entry of the cache read, a file
// written.
enum class Point : uint8_t {
  kExecution,
  kCommunication,
  kAllocation,
  kCompilation,
  kCacheRead,
  kFileWrite
};
enum class Action : uint8_t {
  kRaise,        // an error with a status of the runtime's
  kOutOfMemory,  // torch.OutOfMemoryError
  kDelay,        // it takes so much longer
  kHang,         // nothing for a time, then the error
  kSpoil,        // the result has a value that is not what was computed
  kEnd,          // the process ends, as if killed
  kElsewhere     // whoever reached the point does it
};

struct Rule {
  Point point = Point::kExecution;
  Action action = Action::kRaise;
  // Which times count: those on this core (-1: any) whose name contains this text.
  int core = -1;
  std::string match;
  // Of the times that count it acts at these (from 1), at every so-maniest, or by chance; without
  // any of these at every one.
  std::vector<int64_t> at;
  int64_t every = 0;
  double probability = 0;
  uint64_t seed = 0;
  int64_t most = -1;     // acts at most so often
  bool lasting = false;  // once it has acted it acts always: the core is broken
  // What it does.
  int32_t status = 0;
  std::string text;
  double seconds = 0, bytes_per_second = 0;
  double value = 0;
};

struct Counts {
  int64_t reached = 0, acted = 0;
};

// Returns its number.
int64_t add(Rule rule);
// Also ends its hangs. Returns how often it was reached and acted.
Counts remove(int64_t number);
Counts counts(int64_t number);

inline bool armed() {
  return C10_UNLIKELY((g_watched.load(std::memory_order_relaxed) & kFaulty) != 0);
}
// To be called where a point is reached, without locks and without Python's, while armed(). Throws
// what a rule raises; returns what the result is to be spoilt with, or 0.
double reach(Point point, const std::string& name, c10::DeviceIndex core, size_t bytes);

// The rules that act this time, by number, for whoever acts himself.
std::vector<int64_t> due(Point point, const std::string& name, c10::DeviceIndex core);

// Puts `value` into the first element of what has a floating-point type. Returns whether it did.
bool spoil(void* data, at::ScalarType dtype, double value);
bool spoil(const at::Tensor& result, double value);

}  // namespace torch_neuronx::faults
