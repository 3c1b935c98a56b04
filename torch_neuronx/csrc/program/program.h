// A compiled program: a flat list of steps over buffers, run without Python between them.
//
// Device memory is host memory, so steps work on plain addresses. A program is built once from
// data that may come from anywhere (build.h checks it), is immutable afterwards, and may run on
// several threads at once: all that belongs to one call lies in its Frame.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "registry/registry.h"

namespace torch_neuronx::program {

using Extents = c10::SmallVector<int64_t, 5>;

// Element type, shape and strides (elements); what lies between its first and last byte.
struct Geometry {
  at::ScalarType dtype = at::kFloat;
  Extents sizes, strides;
  int64_t numel = 0;
  int64_t low = 0, high = 0;  // bytes relative to element 0: first, and one past the last
  bool contiguous = false;    // row-major without gaps
  bool dense = false;         // every byte of [low, high) belongs to one element

  int64_t itemsize() const { return static_cast<int64_t>(c10::elementSize(dtype)); }
};

// Throws ValueError for negative sizes, unequal ranks and extents beyond any memory.
Geometry make_geometry(at::ScalarType dtype, Extents sizes, Extents strides);

// "float32[4, 4]", with ", strides [4, 1]" if they are given: for errors.
std::string describe(at::ScalarType dtype, at::IntArrayRef sizes);
std::string describe(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides);

enum class BufferKind : uint8_t { kInput, kOutput, kTemp, kConstant };

struct Buffer {
  BufferKind kind = BufferKind::kTemp;
  Geometry geometry;
  int64_t index = -1;   // of the argument or result
  int64_t offset = -1;  // of a temporary, bytes into the scratchpad
  bool written = false;
  // An output whose first writer may bring its own memory: not allocated at the start.
  bool late = false;
  bool pinned = false;  // a temporary that others read through buffers of their own
  std::string name;
};

struct View {
  int32_t buffer = 0;
  Geometry geometry;
  int64_t offset = 0;  // elements of geometry.dtype

  int64_t offset_bytes() const { return offset * geometry.itemsize(); }
};

class Frame;
struct InFlight;  // a collective that was started: step_collective.cpp

class Step {
 public:
  Step(std::string name, std::string loc) : name(std::move(name)), loc(std::move(loc)) {}
  virtual ~Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  virtual void run(Frame& frame) const = 0;
  // Whether it can run after the program's call has returned, on another thread: it asks nothing of
  // the calling one, and takes random numbers that were drawn at the call.
  virtual bool may_wait() const { return false; }
  virtual bool draws() const { return false; }
  // Whether what it runs shows in profiles by itself.
  virtual bool is_composite() const { return false; }

  const std::string name;  // for profiles and errors
  const std::string loc;   // the user's source line, may be empty
  // Arguments that no later step reads, and which are large: given back after this step.
  std::vector<int32_t> last_uses;
};

// A number that every call of a program adds to, if it succeeds: for tools, see tallies.h.
struct Tally {
  uint64_t* place = nullptr;
  uint64_t amount = 0;
};

struct Program {
  std::string name;
  c10::DeviceIndex device = -1;  // core, or -1 for the CPU
  std::vector<Buffer> buffers;
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<int32_t> results;  // buffers
  int64_t scratch_bytes = 0;
  int32_t collectives = 0;  // steps that start one

  // Derived by finish():
  std::vector<int32_t> arguments;  // buffer of every argument
  std::vector<int32_t> outputs;    // output buffers
  std::vector<int32_t> temps;
  std::vector<int32_t> constants;
  std::vector<int32_t> written_arguments;         // argument numbers
  std::vector<at::Tensor> constant_tensors;       // as `constants`
  std::optional<registry::LoadedProgram> loaded;  // of a program that is no part of another

  bool may_wait = false;  // all steps may
  bool draws = false;     // some step draws random numbers
  // How often each call does, which the first one shows: steps that may wait run once each.
  mutable std::atomic<int64_t> known_draws{-1};
  bool packs = false;  // some product keeps the packed form of an argument
  // Set once, before anybody calls the program.
  mutable std::vector<Tally> tallies;

  bool on_neuron() const { return device >= 0; }
};

// Memory that a caller lends to a program as one argument.
struct Argument {
  char* data = nullptr;
  c10::StorageImpl* owner = nullptr;  // keeps `data` alive
  // Nobody but this thread's steps can write to it before the call ends, and none of them does.
  bool stable = false;
};

// One call of a program.
class Frame {
 public:
  // Allocates the scratchpad and the outputs. `targets[i]`: memory for output number i, or none;
  // may be empty.
  Frame(const Program& program, c10::ArrayRef<Argument> arguments,
        c10::ArrayRef<Argument> targets = {});
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  // Runs all steps. `inputs`: the tensors behind the arguments, given back as early as possible;
  // empty for a nested program.
  void run(std::span<at::Tensor> inputs);

  // A fault on demand: puts `value` into the first result that can have it.
  void spoil(double value);

  // Runs steps of a loop in the program.
  void run_steps(const std::vector<std::unique_ptr<Step>>& steps);

  const Program& program() const { return program_; }
  char* at(int32_t buffer, int64_t offset_bytes) const { return base_[buffer] + offset_bytes; }
  char* at(const View& view) const { return base_[view.buffer] + view.offset_bytes(); }
  bool stable(int32_t buffer) const { return slots_[buffer].stable; }
  c10::StorageImpl* owner(int32_t buffer) const { return slots_[buffer].owner; }

  // A tensor over the memory of a view that keeps that memory alive: on the CPU, or on the core.
  at::Tensor tensor(const View& view, bool on_core = false);

  // Makes the memory of `tensor`, which has the geometry of the buffer, that of the buffer.
  // False if somebody else can see that memory, so that it must be copied.
  bool rebind(int32_t buffer, at::Tensor&& tensor);
  // Allocates an output that was left to its first writer.
  void ensure(int32_t buffer);

  // The collective that step number `i` of those that start one has started.
  std::shared_ptr<InFlight>& in_flight(int32_t i) { return in_flight_[static_cast<size_t>(i)]; }

  // The tensor of an output buffer (not one that was given a target).
  const at::Tensor& output(int32_t buffer) const { return slots_[buffer].tensor; }

 private:
  void run_step(const Step& step);

  struct Slot {
    c10::StorageImpl* owner = nullptr;
    c10::Storage cpu_alias, core_alias;  // of the whole buffer, made when first needed
    at::Tensor tensor;                   // of an output; of a temporary that was rebound
    bool stable = false;
  };
  const c10::Storage& alias(int32_t buffer, bool on_core);

  const Program& program_;
  c10::SmallVector<char*, 16> base_;
  c10::SmallVector<Slot, 8> slots_;
  c10::Storage scratch_;
  std::vector<std::shared_ptr<InFlight>> in_flight_;
};

// A new tensor with exactly the strides of `geometry`, uninitialised, on the program's device.
at::Tensor make_tensor(const Geometry& geometry, c10::DeviceIndex device);

// Working memory on the program's device; null for no bytes.
c10::Storage allocate_scratch(size_t bytes, c10::DeviceIndex device);

// Adds "while running <step> of <program>, <loc>" to the exception in flight and throws it on.
[[noreturn]] void rethrow_with_location(const Step& step, const Program& program);

}  // namespace torch_neuronx::program
