// What the parts of build.cpp share: the program in the making, and what is known of its buffers.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "program/parse.h"
#include "program/steps.h"

namespace torch_neuronx::nki {
struct NativeSlot;
}

namespace torch_neuronx::program {

struct TapeStep;

class Builder {
 public:
  explicit Builder(int depth) : depth_(depth), program_(std::make_shared<Program>()) {}
  std::shared_ptr<const Program> build(const py::dict& spec);

 private:
  void add_buffer(py::handle item);
  at::Tensor constant(const Geometry& geometry, py::handle literal, int32_t id);
  // Arguments and results are numbered 0, 1, 2...
  void number(BufferKind kind, std::vector<int32_t>& table, const char* what);
  int32_t buffer_id(int64_t id) const;

  // Notes that the step being made reads or writes bytes [low, high) of a buffer; ValueError if
  // they are not there or must not be written.
  void touch(int32_t id, int64_t low, int64_t high, bool written);
  void touch(const View& view, bool written);
  View view(py::handle value, const char* what, bool written);
  std::optional<View> optional_view(py::handle value, const char* what, bool written);
  // (buffer, offset, low, high, written), in bytes; low and high relative to the offset.
  Operands operands(py::handle value);
  // Of machine code.
  static uintptr_t address(py::handle value);

  std::unique_ptr<Step> make_step(py::handle item);
  std::unique_ptr<Step> make_loop(const py::dict& spec, std::string name, std::string loc);
  std::unique_ptr<Step> make_gemm(const py::dict& spec, std::string name, std::string loc);
  View product_operand(py::handle value, const char* what, GemmStep::Made& made);
  std::unique_ptr<Step> make_copy(const py::dict& spec, std::string name, std::string loc);

  // build_conv.cpp
  std::unique_ptr<Step> make_conv(const py::dict& spec, std::string name, std::string loc);

  // build_aten.cpp
  std::unique_ptr<Step> make_aten(const py::dict& spec, std::string name, std::string loc);
  AtenArgument make_argument(const AtenStep& step, const c10::Argument& argument, py::handle value,
                             const std::string& target);
  void add_result(AtenStep& step, py::handle out);
  // Whether a result is the whole of its buffer, so that an operator may bring its own memory.
  bool is_whole(const View& view);

  // build_call.cpp
  std::unique_ptr<Step> make_call(const py::dict& spec, const std::string& kind, std::string name,
                                  std::string loc);
  void note_writes(const CallStep& step, const Program& body);

  // build_tape.cpp
  std::unique_ptr<Step> make_tape(const py::dict& spec, std::string name, std::string loc);
  void check_code(TapeStep& tape, const std::vector<std::vector<nki::NativeSlot>>& reaches);

  // build_control.cpp
  std::unique_ptr<Step> make_loop_of_steps(const py::dict& spec, bool is_while, std::string name,
                                           std::string loc);
  std::unique_ptr<Step> make_print(const py::dict& spec, std::string name, std::string loc);

  // build_collective.cpp
  std::unique_ptr<Step> make_collective(const py::dict& spec, std::string name, std::string loc);
  std::unique_ptr<Step> make_wait(const py::dict& spec, std::string name, std::string loc);
  // ValueError if a collective is at work on these bytes of a buffer, or what it reads is written.
  void check_in_flight(int32_t id, int64_t low, int64_t high, bool written) const;

  void finish();
  void pin_shared_memory();

  // The step that touches a buffer first, and whether it writes to it.
  struct First {
    int32_t step;
    bool written;
  };
  // The outputs that are written to while it is alive, so that one step allocates them all.
  class Outputs {
   public:
    explicit Outputs(Builder& builder) : builder_(builder), outer_(builder.outputs_) {
      builder_.outputs_ = this;
    }
    ~Outputs() { builder_.outputs_ = outer_; }
    Outputs(const Outputs&) = delete;
    Outputs& operator=(const Outputs&) = delete;
    void note(int32_t id) {
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      if (outer_ != nullptr) outer_->note(id);
    }
    std::vector<int32_t> ids;

   private:
    Builder& builder_;
    Outputs* const outer_;
  };
  Outputs* outputs_ = nullptr;
  int loops_ = 0;  // around the step being made
  // Collectives that were started and not waited for.
  std::vector<const CollectiveStep*> in_flight_;

  const int depth_;
  std::shared_ptr<Program> program_;
  std::vector<First> first_;
  std::vector<int32_t> last_;
  std::vector<bool> may_bring_memory_;
};

}  // namespace torch_neuronx::program
