// What the natives have in common that work on rows: one per partition, a fixed number of bytes
// apart, elements side by side. A loop kernel brings whatever lies otherwise into that form. What
// is written may overlap what is read only where a function says so. Slots, parameters and meaning
// of each function are those of the one with the same name in neuronxcc/program/natives.
//
// Included also by the files for one instruction set: nothing of the standard library here.
#pragma once

#include <cstdint>

namespace torch_neuronx::nki {

// An index that is out of bounds: what it is, and how many elements there are.
struct Fault {
  int64_t index = 0, bound = 0;
};

// Returns false for an index out of bounds, after filling `fault`.
using RowsFunction = bool (*)(char* const* slots, const int64_t* params, Fault& fault);

// Elements `row_bytes` apart from partition to partition.
template <class T>
struct Rows {
  char* data;
  int64_t row_bytes;
  T* operator[](int64_t row) const { return reinterpret_cast<T*>(data + row * row_bytes); }
};

}  // namespace torch_neuronx::nki
