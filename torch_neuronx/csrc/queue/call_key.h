// What decides the shape, type and memory of an operator's results: its arguments without the
// values of tensors. Two calls with equal keys give results of equal geometry, or both fail.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

namespace torch_neuronx::queue {

// How an argument enters the key, read off the schema once.
struct Argument {
  enum class Role : uint8_t {
    kTensor,      // and Tensor?
    kTensorList,  // and Tensor?[]
    kNumber,      // Scalar, Scalar[] and float of operators that take any: its type
    kValue        // all else: its value
  };
  Role role;
  bool written;
  bool optional_items;  // of a list of tensors
  bool alpha;           // a factor of one of the others
};

// Where a tensor stands among the arguments.
struct Place {
  uint16_t argument;
  int16_t item;  // of a list, or -1
  uint8_t tensor;
};

struct Signature {
  explicit Signature(const c10::OperatorHandle& op);

  std::vector<Argument> arguments;
  std::vector<int> returns;  // for each, the argument that it is; -1: it is new; -2: it is a view
  bool writes = false;       // to some argument
};

struct CallKey {
  // False if the call can't be enqueued: it has a tensor that is not plain memory of one core, or
  // an argument of a kind that is not known here.
  bool read(const Signature& signature, const torch::jit::Stack& stack);
  uint64_t hash() const;
  // What all calls have in common that differ from this one in sizes, strides and whole numbers.
  std::vector<uint64_t> family() const;

  c10::SmallVector<uint64_t, 64> words;
  // The tensors of the core, each once, in order; they live in the stack.
  c10::SmallVector<const at::Tensor*, 8> tensors;
  c10::SmallVector<c10::StorageImpl*, 8> storages;
  c10::SmallVector<uint8_t, 8> storage_of;  // by tensor
  c10::SmallVector<Place, 8> places;
  c10::DeviceIndex core = -1;

 private:
  bool add_tensor(const at::Tensor& t, bool written, size_t argument, int item);
  bool add_value(const c10::IValue& value);
  void add_number(const c10::IValue& value);
};

// Whether a tensor is plain memory of a core: no view that is lazily conjugated, no subclass, no
// other layout.
bool is_plain(const at::Tensor& t);
// Whether a tensor is a number of the host beside tensors of a core.
bool is_host_number(const at::Tensor& t);

}  // namespace torch_neuronx::queue
