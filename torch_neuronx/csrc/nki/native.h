// Functions of tapes that are no loop kernels: a fixed table by name.
//
// To add one:
//   1. Its meaning in NumPy, with what it touches, in neuronxcc/program/natives (see there).
//   2. Here, a file native_<family>.cpp with a function that returns the family's Natives, and that
//      function's name in native.cpp. Each has
//        declare  from its parameters to what it touches of each slot and how it can be split.
//                 Parameters come from files: throw ValueError (TORCH_CHECK_VALUE, or checked()
//                 below) for anything that `run` does not take, so that `run` need not look. The
//                 bytes must be those that the Python side declares: test_nki_natives.py compares
//                 them for parameters of all sorts.
//        run      does items [begin, end) of the call. It runs on any thread without the GIL, calls
//                 of disjoint ranges may run at once, and it must not throw: what it finds wrong in
//                 the data it writes to `failure`, and returns false.
//   A function that works lane by lane does not know: it is called with all its items once for
//   every chunk of partitions, with pointers to that chunk. Functions of the table have no state
//   between calls; whatever they remember (random numbers) lies in a slot.
//   A slot that is declared with low == high is never touched and may point anywhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch_neuronx::nki {

// Bytes [low, high) from the slot's pointer.
struct NativeSlot {
  int64_t low = 0, high = 0;
  bool written = false;
};

struct Declared {
  std::vector<NativeSlot> slots;
  int64_t items = 1;          // the work is split between items
  int64_t grain = 1;          // items that make a chunk worth handing to a thread, some 2 us
  int64_t scratch_bytes = 0;  // memory of each concurrent call for itself, aligned to 64
  double nanoseconds = 100;   // that all items take on one thread, roughly
};

struct Failure {
  const char* code = "";  // of nki/errors.py
  std::string what;       // what is wrong, with the numbers
  const char* remedy = "";
};

struct NativeCall {
  void* const* slots;
  const int64_t* params;
  int64_t begin, end;
  void* scratch;
  Failure* failure;
};

using Params = std::span<const int64_t>;

struct Native {
  const char* name;
  Declared (*declare)(Params params);
  bool (*run)(const NativeCall& call);
};

// Null if there is none.
const Native* find_native(std::string_view name);

std::vector<std::string> native_names();

// Throws ValueError unless there are as many parameters as in `least`, each at least so large and
// at most 2^40. `names`: of the parameters, for the error.
void checked(Params params, std::initializer_list<int64_t> least, const char* names);

// The families.
std::span<const Native> index_natives();
std::span<const Native> search_natives();
std::span<const Native> gather_natives();
std::span<const Native> scan_natives();
std::span<const Native> random_natives();
std::span<const Native> collective_natives();

}  // namespace torch_neuronx::nki
