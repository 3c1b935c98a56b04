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
struct ValueRef {  // what an earlier call of the region gave: the result of a member
  size_t member;
};
struct Given;
using Atom = std::variant<std::monostate, int64_t, double, bool, std::string, InputRef, ValueRef>;
struct Given {  // an argument
  std::vector<Atom> items;
  bool is_list = false;
};

// A result of a call. A call with several is as many members, one behind the other.
struct Member {
  const queue::QueuedCall* call;
  size_t result = 0;             // which one of the call
  std::vector<Given> arguments;  // none but of the first
  // What it gives: all of a storage, dense.
  at::ScalarType dtype;
  c10::DimVector sizes, strides;
  void* data;
  size_t bytes;
  uint64_t serial;
  // The input in whose memory that lies: the call writes in place, or an allocation has its place.
  int replaces = -1;
  // It lies in memory of inputs in another way: it can be written when all inputs were read.
  bool staged = false;
  // What tells it from others that may stand here, without addresses.
  std::vector<uint64_t> words;
  size_t inputs_before = 0, storages_before = 0, drawn_before = 0;  // of the region
};

// A mask of dropout, which is drawn before the program runs and is one of its inputs.
struct Drawn {
  const queue::QueuedCall* call;
  at::ScalarType dtype;
  c10::DimVector sizes, strides;
  void* data;
  double share;  // that goes
  void draw() const;
};

// What becomes of a call's result.
enum class Fate {
  kWanted,  // somebody can still read it
  kUnread,  // nobody can; it may be written and need not
  kPassed   // its memory is that of a later result of the region: it must not be written
};

// Calls that can run as one program, in the order of the queue.
class Collected {
 public:
  // False if the call can't take part behind those that are there.
  bool add(const queue::QueuedCall& call);
  // Leaves the first members, which must be all of their calls.
  void keep_first(size_t count);
  // `skips_unread`: whether what nobody can read is unread, and not wanted.
  std::vector<Fate> fates(queue::Ahead& ahead, bool skips_unread) const;

  std::vector<Member> members;
  std::vector<Input> inputs;
  std::vector<Drawn> drawn;
  std::vector<std::pair<void*, size_t>> storages;  // that the inputs lie in
  size_t bytes = 0;                                // of all results
  size_t calls = 0;

 private:
  std::optional<Atom> tensor(const queue::QueuedCall& call, size_t number,
                             std::vector<Input>* fresh);
  // The arguments of a call of dropout: what it reads, the mask, and the factor.
  bool add_dropout(const queue::QueuedCall& call, Member* member, std::vector<Input>* fresh);
  bool add_arguments(const queue::QueuedCall& call, bool copies, Member* member,
                     std::vector<Input>* fresh);
  InputRef input(Input found, void* start, size_t bytes, std::vector<Input>* fresh);
  void place(Member* member, const std::vector<Input>& fresh) const;
  static std::optional<Atom> constant(const c10::IValue& value);
};

}  // namespace torch_neuronx::program
