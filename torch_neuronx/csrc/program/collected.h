// Calls of operators that stand one behind the other and can run as one program.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "queue/queue.h"
#include "queue/queued_call.h"

namespace torch_neuronx::program {

struct Input {
  at::ScalarType dtype;
  c10::DimVector sizes, strides;
  const void* data;
  int storage;  // of the region
  bool operator==(const Input& other) const {
    return dtype == other.dtype && sizes == other.sizes && strides == other.strides &&
           data == other.data;
  }
};
struct InputRef {
  size_t number;
};
struct ValueRef {  // what an earlier call of the region gave
  size_t call;
};
struct Given;
using Atom = std::variant<std::monostate, int64_t, double, bool, std::string, InputRef, ValueRef>;
struct Given {  // an argument
  std::vector<Atom> items;
  bool is_list = false;
};

struct Member {
  const queue::QueuedCall* call;
  std::vector<Given> arguments;
  // What it gives: all of a storage, dense.
  at::ScalarType dtype;
  c10::DimVector sizes, strides;
  void* data;
  size_t bytes;
  uint64_t serial;
};

// Calls that can run as one program, in the order of the queue.
class Collected {
 public:
  // False if the call can't take part behind those that are there.
  bool add(const queue::QueuedCall& call);
  // Which calls' results are to be written: those that somebody can still read, or all that still
  // have their memory. `later`: the work behind, null behind the last.
  std::vector<size_t> kept(queue::LookAt later, bool skips_unread) const;
  std::vector<uint64_t> key(const std::vector<size_t>& outputs) const;

  std::vector<Member> members;
  std::vector<Input> inputs;
  std::vector<std::pair<void*, size_t>> storages;  // that the inputs lie in

 private:
  std::optional<Atom> tensor(const queue::QueuedCall& call, size_t number,
                             std::vector<Input>* fresh);
  static std::optional<Atom> constant(const c10::IValue& value);
};

}  // namespace torch_neuronx::program
