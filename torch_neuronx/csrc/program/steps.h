// The kinds of steps. Built and checked by build.cpp; each kind's run() has a file of its own.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "gemm/gemm.h"
#include "program/program.h"

namespace torch_neuronx {
struct OpEntry;
class Demands;
}  // namespace torch_neuronx

namespace torch_neuronx::program {

// One pointer of a loop kernel.
struct Operand {
  int32_t buffer = 0;
  int64_t offset = 0;  // bytes
  bool written = false;
};
using Operands = std::vector<Operand>;

// Fills `pointers`, which has room for all operands.
void resolve(const Frame& frame, const Operands& operands, void** pointers);

// void fn(void* const* bufs, int64_t begin, int64_t end, void* scratch)
using LoopFunction = void (*)(void* const*, int64_t, int64_t, void*);

struct LoopStep final : Step {
  using Step::Step;
  void run(Frame& frame) const override;
  bool may_wait() const override { return true; }

  LoopFunction function = nullptr;
  int64_t items = 0, grain = 1;
  int64_t scratch_bytes = 0;  // per thread
  Operands operands;
  // Where the kernel notes what it found: bytes of operands that are 0 before.
  struct Note {
    int32_t operand = 0;
    int64_t offset = 0, bytes = 0;
  };
  std::vector<Note> notes;
};

struct GemmStep final : Step {
  using Step::Step;
  void run(Frame& frame) const override;
  bool may_wait() const override { return true; }

  // How an operand comes to be that is not in memory: its View has a shape, but no buffer.
  struct Made {
    gemm::PrologueFunction function = nullptr;
    Operands operands;
    bool by_columns = false;  // the function's rows are the operand's columns
  };

  View a, b;
  Made made_a, made_b;
  std::optional<View> out, c0;
  gemm::EpilogueFunction epilogue = nullptr;
  Operands operands;  // of the epilogue
  bool constant_b = false;

  // Derived by prepare(): a Problem without addresses. `transposed`: it computes out^T.
  void prepare();
  gemm::Problem problem;
  bool transposed = false;
  bool plain = false;  // out can be written by the product itself

 private:
  void run_aten(Frame& frame) const;
};

// A two-dimensional convolution: ours with an epilogue or plain, or ATen's where it is faster.
struct ConvStep final : Step {
  using Step::Step;
  void run(Frame& frame) const override;
  bool may_wait() const override { return true; }

  View x, w;
  std::optional<View> out;
  std::array<int64_t, 2> stride{}, padding{}, dilation{};
  int64_t groups = 1;
  gemm::EpilogueFunction epilogue = nullptr;
  Operands operands;               // of the epilogue
  std::array<int64_t, 4> sizes{};  // of the result
  bool last = false;               // the epilogue gets pixels times channels
  bool constant_w = false;
  bool narrow = false;  // the epilogue may get sums that were rounded
  bool whole = false;   // out is the whole of its buffer, same strides
};

// Puts the result of an operator in its place: as it is where `whole` says that it could be, which
// means that the view is all of its buffer. `index`: its number among the results, for errors.
void store_result(Frame& frame, const View& out, bool whole, at::Tensor&& result, size_t index = 0);

// One argument of an operator: a constant, or made anew for every call from views.
struct AtenArgument {
  enum class Kind : uint8_t { kConstant, kTensor, kTensorList, kOptionalTensorList };
  Kind kind = Kind::kConstant;
  c10::IValue constant;
  std::vector<std::optional<View>> views;  // one for a tensor
};

struct AtenStep final : Step {
  AtenStep(std::string name, std::string loc, c10::OperatorHandle op)
      : Step(std::move(name), std::move(loc)), op(std::move(op)) {}
  void run(Frame& frame) const override;
  bool may_wait() const override;
  bool draws() const override { return op.hasTag(at::Tag::nondeterministic_seeded); }
  bool is_composite() const override { return on_core; }

  c10::OperatorHandle op;
  std::vector<AtenArgument> arguments;
  std::vector<std::optional<View>> outs;  // by flattened return
  std::vector<bool> whole;                // outs[i] is the whole of its buffer, same strides
  bool on_core = false;                   // call it on neuron tensors
  std::optional<View> noted;              // there is nothing to do where this is 0
  const Demands* demands = nullptr;       // of an operator that trusts its caller
  const c10::KernelFunction* host_kernel = nullptr;  // ours, in the place of PyTorch's
  OpEntry* counted = nullptr;                        // a host step
  at::ScalarType counted_as = at::kFloat;
};

struct CopyStep final : Step {
  using Step::Step;
  void run(Frame& frame) const override;
  bool may_wait() const override { return true; }
  View src, out;
};

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kPermute
};

// Starts a collective of the process group of this name.
struct CollectiveStep final : Step {
  using Step::Step;
  void run(Frame& frame) const override;
  bool may_wait() const override { return true; }

  CollectiveKind kind = CollectiveKind::kAllReduce;
  int32_t number = 0;  // among the program's
  std::string group;
  int64_t size = 1;       // ranks of the group; 0: any
  uint8_t reduction = 0;  // a c10d::ReduceOp::RedOpType
  int64_t root = 0;
  std::vector<int64_t> send, receive;
  std::vector<std::array<int64_t, 2>> pairs;
  std::vector<View> inputs, outs;
};

struct WaitStep final : Step {
  using Step::Step;
  void run(Frame& frame) const override;
  bool may_wait() const override { return true; }

  const CollectiveStep* start = nullptr;
};

// Copies between views of equal shape and element size, in parallel when large.
void copy_view(char* out, const Geometry& to, const char* src, const Geometry& from);

struct CallStep final : Step {
  enum class Kind : uint8_t { kCall, kCond, kWhile };
  using Step::Step;
  void run(Frame& frame) const override;
  bool is_composite() const override { return true; }

  Kind kind = Kind::kCall;
  std::vector<std::shared_ptr<const Program>> bodies;
  std::vector<View> operands, outs;
  std::optional<View> selector;

 private:
  void call(Frame& frame, const Program& body) const;
  void loop(Frame& frame) const;
};

}  // namespace torch_neuronx::program
