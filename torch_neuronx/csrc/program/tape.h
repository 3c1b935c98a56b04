// A tape: a long row of small pieces of work, read from the array of integers that holds it.
//
//   group        [instructions, chunks] instruction...
//   instruction  [function, location, (buffer, byte offset) of every slot]
//
// In a group of one or more chunks every function works lane by lane: each thread takes some of the
// chunks and runs all instructions on one chunk after the other, so that a chunk stays in its
// cache. In a group of 0 chunks each instruction is run by all threads by its own split. What the
// array says is checked once (build_tape.cpp), then read as it is: a million instructions need no
// other memory.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "nki/native.h"
#include "nki/product.h"
#include "program/steps.h"

namespace torch_neuronx::program {

constexpr int64_t kMostTapeSlots = 64;

// A reference that may be given back by a thread without the GIL.
std::shared_ptr<PyObject> keep(PyObject* object);

struct TapeFunction {
  enum class Kind : uint8_t { kLoop, kProduct, kNative };
  Kind kind = Kind::kLoop;
  bool lanes = false;
  int64_t slots = 0;
  std::vector<int64_t> advance;  // bytes per chunk, one per slot if `lanes`
  std::string name;

  LoopFunction loop = nullptr;
  const nki::Native* native = nullptr;
  std::vector<int64_t> params;
  nki::Product product;

  int64_t items = 1, grain = 1;  // of a loop and a native function, of one chunk if `lanes`
  int64_t scratch_bytes = 0;     // per thread
  double nanoseconds = 0;        // a guess for one thread, of one chunk if `lanes`

  int64_t words() const { return 2 + 2 * slots; }
};

struct TapeStep final : Step {
  using Step::Step;
  void run(Frame& frame) const override;
  bool may_wait() const override { return true; }

  std::vector<TapeFunction> functions;
  std::vector<std::string> locations;
  std::shared_ptr<PyObject> owner;  // of `code`
  const int64_t* code = nullptr;
  int64_t words = 0;
  std::vector<bool> parallel;    // of every group: it is worth several threads
  bool any_parallel = false;     // some group is
  std::vector<int32_t> outputs;  // that it writes to

 private:
  struct Failed;
  class Run;
};

// A loop that the device decides; its body works on the memory of the program.
struct ControlStep final : Step {
  using Step::Step;
  void run(Frame& frame) const override;
  bool is_composite() const override { return true; }

  struct Register {
    int32_t buffer = 0;  // negative: `offset` is the value
    int64_t offset = 0;  // bytes
  };
  bool is_while = false;
  std::vector<Register> counters;
  Register lower, upper;  // of a while: what it begins with, what comes next
  int64_t step = 1;
  std::vector<std::unique_ptr<Step>> body;
  bool needs_no_threads = false;  // nothing in it asks ATen for threads
  bool teams = false;             // one team of threads for all of it
  std::vector<int32_t> outputs;

 private:
  void repeat(Frame& frame) const;
};

// Prints a view by calling Python.
struct PrintStep final : Step {
  using Step::Step;
  void run(Frame& frame) const override;
  bool is_composite() const override { return true; }

  View view;
  std::shared_ptr<PyObject>
      printer;  // a Python callable that takes the elements as bytes, in C order
};

}  // namespace torch_neuronx::program
