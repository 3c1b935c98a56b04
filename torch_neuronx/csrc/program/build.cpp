#include "program/build.h"

#include <ATen/ScalarOps.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <limits>

#include "device/state.h"
#include "dispatch/op_table.h"
#include "memory/allocator.h"
#include "program/parse.h"
#include "program/steps.h"

namespace torch_neuronx::program {
namespace {

// Smaller ones are not worth giving back, or allocating, in the middle of a call.
constexpr int64_t kLarge = 64 << 10;
constexpr int kMaxDepth = 32;  // of programs inside programs
constexpr int64_t kMaxThreadScratch = int64_t(1) << 30;

// Name and overload of "aten::sort.stable"; FX writes an empty overload as "default".
std::pair<std::string, std::string> split_target(const std::string& target) {
  const size_t colons = target.find("::");
  TORCH_CHECK_VALUE(colons != std::string::npos, "the operator ", target, " has no namespace");
  const size_t dot = target.find('.', colons);
  if (dot == std::string::npos) return {target, ""};
  const std::string overload = target.substr(dot + 1);
  return {target.substr(0, dot), overload == "default" ? "" : overload};
}

bool is_tensor(const c10::TypePtr& type) { return type->kind() == c10::TypeKind::TensorType; }

c10::TypePtr element_of_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

class Builder {
 public:
  explicit Builder(int depth) : depth_(depth), program_(std::make_shared<Program>()) {}

  std::shared_ptr<const Program> build(const py::dict& spec) {
    TORCH_CHECK_VALUE(depth_ < kMaxDepth, "programs are nested more than ", kMaxDepth, " deep");
    program_->name = text(field(spec, "name"), "name");
    const int64_t device = integer(field(spec, "device"), "device");
    TORCH_CHECK_VALUE(device >= -1 && device < device_count(), "there is no neuron device ",
                      device);
    program_->device = static_cast<c10::DeviceIndex>(device);
    program_->scratch_bytes = integer(field(spec, "scratch_bytes"), "scratch_bytes");
    TORCH_CHECK_VALUE(program_->scratch_bytes >= 0, "scratch_bytes is negative");
    for (const py::handle item : items(field(spec, "buffers"), "buffers")) add_buffer(item);
    number(BufferKind::kInput, program_->arguments, "argument");
    number(BufferKind::kOutput, program_->outputs, "result");
    const size_t count = program_->buffers.size();
    first_.assign(count, {-1, false});
    last_.assign(count, -1);
    may_bring_memory_.assign(count, false);
    for (const py::handle item : items(field(spec, "steps"), "steps")) {
      program_->steps.push_back(make_step(item));
    }
    for (const py::handle item : items(field(spec, "results"), "results")) {
      const int32_t buffer = buffer_id(integer(item, "a result"));
      const BufferKind kind = program_->buffers[buffer].kind;
      TORCH_CHECK_VALUE(kind == BufferKind::kInput || kind == BufferKind::kOutput, "result ",
                        program_->results.size(), " is neither an input nor an output");
      program_->results.push_back(buffer);
    }
    finish();
    return program_;
  }

 private:
  // ---- buffers

  void add_buffer(py::handle item) {
    const auto parts = items(item, "a buffer");
    TORCH_CHECK_VALUE(parts.size() == 8, "a buffer has ", parts.size(), " parts instead of 8");
    Buffer buffer;
    const std::string kind = text(parts[0], "the kind of a buffer");
    buffer.kind = kind == "input"      ? BufferKind::kInput
                  : kind == "output"   ? BufferKind::kOutput
                  : kind == "constant" ? BufferKind::kConstant
                                       : BufferKind::kTemp;
    TORCH_CHECK_VALUE(buffer.kind != BufferKind::kTemp || kind == "temp", "a buffer is of kind '",
                      kind, "'");
    buffer.geometry = make_geometry(dtype_of(parts[1], "a buffer"), extents(parts[2], "a shape"),
                                    extents(parts[3], "strides"));
    for (const int64_t stride : buffer.geometry.strides) {
      TORCH_CHECK_VALUE(stride >= 0, "a buffer has a negative stride");
    }
    buffer.index = integer(parts[4], "the index of a buffer");
    buffer.offset = integer(parts[5], "the offset of a buffer");
    buffer.name = text(parts[7], "the name of a buffer");
    const auto id = static_cast<int32_t>(program_->buffers.size());
    if (buffer.kind == BufferKind::kTemp) {
      TORCH_CHECK_VALUE(buffer.offset >= 0 && buffer.offset <= program_->scratch_bytes &&
                            buffer.geometry.high <= program_->scratch_bytes - buffer.offset,
                        "temporary ", id, " lies outside the scratchpad of ",
                        program_->scratch_bytes, " bytes");
      TORCH_CHECK_VALUE(buffer.offset % buffer.geometry.itemsize() == 0, "temporary ", id,
                        " is not aligned");
      program_->temps.push_back(id);
    } else if (buffer.kind == BufferKind::kConstant) {
      program_->constants.push_back(id);
      program_->constant_tensors.push_back(constant(buffer.geometry, parts[6], id));
    }
    program_->buffers.push_back(std::move(buffer));
    TORCH_CHECK_VALUE(id < std::numeric_limits<int32_t>::max() - 1, "too many buffers");
  }

  at::Tensor constant(const Geometry& geometry, py::handle literal, int32_t id) {
    TORCH_CHECK_VALUE(PyBytes_Check(literal.ptr()), "constant ", id, " has no bytes");
    const int64_t bytes = geometry.numel * geometry.itemsize();
    TORCH_CHECK_VALUE(PyBytes_GET_SIZE(literal.ptr()) == bytes, "constant ", id, " has ",
                      PyBytes_GET_SIZE(literal.ptr()), " bytes instead of ", bytes);
    Extents dense(geometry.sizes.size());
    int64_t stride = 1;
    for (size_t d = dense.size(); d-- > 0;) {
      dense[d] = stride;
      stride *= geometry.sizes[d];
    }
    at::Tensor tensor = make_tensor(geometry, program_->device);
    copy_view(static_cast<char*>(tensor.storage().mutable_data()), geometry,
              PyBytes_AS_STRING(literal.ptr()),
              make_geometry(geometry.dtype, geometry.sizes, dense));
    return tensor;
  }

  // Arguments and results are numbered 0, 1, 2...
  void number(BufferKind kind, std::vector<int32_t>& table, const char* what) {
    for (size_t id = 0; id < program_->buffers.size(); ++id) {
      const Buffer& buffer = program_->buffers[id];
      if (buffer.kind != kind) continue;
      TORCH_CHECK_VALUE(
          buffer.index >= 0 && buffer.index < static_cast<int64_t>(program_->buffers.size()),
          "buffer ", id, " has the ", what, " number ", buffer.index);
      if (table.size() <= static_cast<size_t>(buffer.index)) table.resize(buffer.index + 1, -1);
      TORCH_CHECK_VALUE(table[buffer.index] < 0, "two buffers are ", what, " ", buffer.index);
      table[buffer.index] = static_cast<int32_t>(id);
    }
    for (size_t i = 0; i < table.size() && kind == BufferKind::kInput; ++i) {
      TORCH_CHECK_VALUE(table[i] >= 0, "no buffer is ", what, " ", i);
    }
    table.erase(std::remove(table.begin(), table.end(), -1), table.end());
  }

  int32_t buffer_id(int64_t id) const {
    TORCH_CHECK_VALUE(id >= 0 && id < static_cast<int64_t>(program_->buffers.size()),
                      "there is no buffer ", id);
    return static_cast<int32_t>(id);
  }

  // Notes that the step being made reads or writes bytes [low, high) of a buffer.
  void touch(int32_t id, int64_t low, int64_t high, bool written) {
    Buffer& buffer = program_->buffers[id];
    TORCH_CHECK_VALUE(low >= 0 && high <= buffer.geometry.high, "bytes ", low, " to ", high,
                      " of buffer ", id, " are used, but it has ", buffer.geometry.high);
    TORCH_CHECK_VALUE(!written || buffer.kind != BufferKind::kConstant, "constant ", id,
                      " is written to");
    const auto step = static_cast<int32_t>(program_->steps.size());
    auto& first = first_[id];
    if (first.step < 0) {
      first = {step, written};
    } else if (first.step == step) {
      // A step allocates what it writes to before it reads anything.
      first.written = first.written || written;
    }
    last_[id] = step;
    buffer.written = buffer.written || written;
  }
  void touch(const View& view, bool written) {
    buffer_id(view.buffer);
    const Geometry& g = view.geometry;
    int64_t offset = 0;
    TORCH_CHECK_VALUE(!__builtin_mul_overflow(view.offset, g.itemsize(), &offset) &&
                          std::abs(offset) < (int64_t(1) << 60),
                      "a view of buffer ", view.buffer, " has the offset ", view.offset);
    if (g.numel == 0) {
      touch(view.buffer, 0, 0, written);
    } else {
      touch(view.buffer, offset + g.low, offset + g.high, written);
    }
  }

  View view(py::handle value, const char* what, bool written) {
    View made = view_of(value, what);
    touch(made, written);
    return made;
  }
  std::optional<View> optional_view(py::handle value, const char* what, bool written) {
    if (value.is_none()) return std::nullopt;
    return view(value, what, written);
  }

  // (buffer, offset, low, high, written), in bytes; low and high relative to the offset.
  Operands operands(py::handle value) {
    Operands result;
    for (const py::handle item : items(value, "operands")) {
      const auto parts = items(item, "an operand");
      TORCH_CHECK_VALUE(parts.size() == 5, "an operand has ", parts.size(), " parts instead of 5");
      Operand operand;
      operand.buffer = buffer_id(integer(parts[0], "the buffer of an operand"));
      operand.offset = integer(parts[1], "the offset of an operand");
      operand.written = boolean(parts[4], "an operand's written");
      const int64_t low = integer(parts[2], "an operand"), high = integer(parts[3], "an operand");
      constexpr int64_t kLimit = int64_t(1) << 60;
      TORCH_CHECK_VALUE(
          std::abs(operand.offset) < kLimit && std::abs(low) < kLimit && std::abs(high) < kLimit,
          "an operand lies outside any memory");
      if (low == high) {
        // Never accessed; its address must still be one of the buffer's.
        TORCH_CHECK_VALUE(operand.offset >= 0 &&
                              operand.offset <= program_->buffers[operand.buffer].geometry.high,
                          "an operand lies outside buffer ", operand.buffer);
        touch(operand.buffer, 0, 0, operand.written);
      } else {
        TORCH_CHECK_VALUE(low < high, "an operand is used from byte ", low, " to ", high);
        touch(operand.buffer, operand.offset + low, operand.offset + high, operand.written);
      }
      result.push_back(operand);
    }
    return result;
  }

  // ---- steps

  std::unique_ptr<Step> make_step(py::handle item) {
    TORCH_CHECK_VALUE(PyDict_Check(item.ptr()), "a step must be a dict, got ",
                      Py_TYPE(item.ptr())->tp_name);
    const auto spec = py::reinterpret_borrow<py::dict>(item);
    const std::string kind = text(field(spec, "kind"), "the kind of a step");
    std::string name = text(field(spec, "name"), "the name of a step");
    std::string loc = text(field(spec, "loc"), "the location of a step");
    if (kind == "loop") return make_loop(spec, std::move(name), std::move(loc));
    if (kind == "gemm") return make_gemm(spec, std::move(name), std::move(loc));
    if (kind == "aten") return make_aten(spec, std::move(name), std::move(loc));
    if (kind == "copy") return make_copy(spec, std::move(name), std::move(loc));
    return make_call(spec, kind, std::move(name), std::move(loc));
  }

  static uintptr_t address(py::handle value) {
    const int64_t address = integer(value, "the address of a kernel");
    TORCH_CHECK_VALUE(address > 0, "a kernel has no address");
    return static_cast<uintptr_t>(address);
  }

  std::unique_ptr<Step> make_loop(const py::dict& spec, std::string name, std::string loc) {
    auto step = std::make_unique<LoopStep>(std::move(name), std::move(loc));
    step->function = reinterpret_cast<LoopFunction>(address(field(spec, "address")));
    step->items = integer(field(spec, "items"), "items");
    step->grain = integer(field(spec, "grain"), "grain");
    step->scratch_bytes = integer(field(spec, "scratch_bytes"), "scratch_bytes");
    TORCH_CHECK_VALUE(step->items >= 0 && step->grain >= 1 && step->items < (int64_t(1) << 60) &&
                          step->grain < (int64_t(1) << 60),
                      "a loop has ", step->items, " items in chunks of ", step->grain);
    TORCH_CHECK_VALUE(step->scratch_bytes >= 0 && step->scratch_bytes <= kMaxThreadScratch,
                      "a loop asks for ", step->scratch_bytes, " bytes of scratch per thread");
    step->operands = operands(field(spec, "operands"));
    return step;
  }

  std::unique_ptr<Step> make_gemm(const py::dict& spec, std::string name, std::string loc) {
    auto step = std::make_unique<GemmStep>(std::move(name), std::move(loc));
    step->a = view(field(spec, "a"), "a", false);
    step->b = view(field(spec, "b"), "b", false);
    step->c0 = optional_view(field(spec, "c0"), "c0", false);
    step->out = optional_view(field(spec, "out"), "out", true);
    step->constant_b = boolean(field(spec, "constant_b"), "constant_b");
    const py::handle epilogue = field(spec, "epilogue");
    if (!epilogue.is_none()) {
      step->epilogue = reinterpret_cast<gemm::EpilogueFunction>(address(epilogue));
    }
    step->operands = operands(field(spec, "operands"));
    TORCH_CHECK_VALUE((step->epilogue != nullptr) != step->out.has_value(),
                      "a product needs either an epilogue or a place for its result");
    TORCH_CHECK_VALUE(step->epilogue != nullptr || step->operands.empty(),
                      "a product without an epilogue has operands for one");
    const auto floating = [](at::ScalarType t) {
      return t == at::kFloat || t == at::kBFloat16 || t == at::kHalf;
    };
    const Geometry &a = step->a.geometry, &b = step->b.geometry;
    TORCH_CHECK_VALUE(a.sizes.size() == 3 && b.sizes.size() == 3,
                      "the operands of a product must have three dimensions");
    TORCH_CHECK_VALUE(a.dtype == b.dtype && floating(a.dtype), "a product of ",
                      c10::getDtypeNames(a.dtype).first, " and ", c10::getDtypeNames(b.dtype).first,
                      " is not supported");
    TORCH_CHECK_VALUE(a.sizes[0] == b.sizes[0] && a.sizes[2] == b.sizes[1], "a product of ",
                      at::IntArrayRef(a.sizes), " and ", at::IntArrayRef(b.sizes));
    const Extents sizes{a.sizes[0], a.sizes[1], b.sizes[2]};
    for (const auto* other : {&step->out, &step->c0}) {
      if (!*other) continue;
      const Geometry& g = (*other)->geometry;
      TORCH_CHECK_VALUE(g.sizes == sizes && floating(g.dtype), "a product of shape ",
                        at::IntArrayRef(sizes), " goes with ", describe(g.dtype, g.sizes));
    }
    TORCH_CHECK_VALUE(!step->c0 || step->out || step->c0->geometry.dtype == a.dtype,
                      "with an epilogue, what is added to a product must be of its type");
    step->prepare();
    program_->packs = program_->packs || step->constant_b;
    return step;
  }

  std::unique_ptr<Step> make_copy(const py::dict& spec, std::string name, std::string loc) {
    auto step = std::make_unique<CopyStep>(std::move(name), std::move(loc));
    step->src = view(field(spec, "src"), "src", false);
    step->out = view(field(spec, "out"), "out", true);
    TORCH_CHECK_VALUE(step->src.geometry.sizes == step->out.geometry.sizes &&
                          step->src.geometry.dtype == step->out.geometry.dtype,
                      "a copy between tensors of different shape or dtype");
    return step;
  }

  // ---- operators

  std::unique_ptr<Step> make_aten(const py::dict& spec, std::string name, std::string loc) {
    const std::string target = text(field(spec, "target"), "the target");
    const auto [op_name, overload] = split_target(target);
    const auto op = c10::Dispatcher::singleton().findSchema({op_name, overload});
    TORCH_CHECK_VALUE(op, "there is no operator ", target, " in this process");
    auto step = std::make_unique<AtenStep>(std::move(name), std::move(loc), *op);
    step->on_core = boolean(field(spec, "device"), "device");
    const auto& schema = op->schema();
    const auto given = items(field(spec, "args"), "args");
    TORCH_CHECK_VALUE(PyDict_Check(field(spec, "kwargs").ptr()), "kwargs must be a dict");
    const auto named = py::reinterpret_borrow<py::dict>(field(spec, "kwargs"));
    TORCH_CHECK_VALUE(given.size() <= schema.arguments().size(), target, " takes ",
                      schema.arguments().size(), " arguments, got ", given.size());
    size_t used = 0;
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      py::handle value;
      if (i < given.size()) {
        value = given[i];
      } else if (PyObject* item = PyDict_GetItemString(named.ptr(), argument.name().c_str())) {
        value = item;
        ++used;
      }
      step->arguments.push_back(make_argument(*step, argument, value, target));
    }
    TORCH_CHECK_VALUE(used == named.size(), target, " has no argument for some keyword");
    for (const py::handle out : items(field(spec, "outs"), "outs")) {
      step->outs.push_back(optional_view(out, "a result", true));
      bool whole = false;
      if (step->outs.back()) {
        const View& v = *step->outs.back();
        const Geometry& g = program_->buffers[v.buffer].geometry;
        whole = v.offset == 0 && g.dense && g.dtype == v.geometry.dtype &&
                g.sizes == v.geometry.sizes && g.strides == v.geometry.strides;
        if (whole && first_[v.buffer].step == static_cast<int32_t>(program_->steps.size())) {
          may_bring_memory_[v.buffer] = true;
        }
      }
      step->whole.push_back(whole);
    }
    if (boolean(field(spec, "host"), "host")) {
      step->counted = &op_entry(overload.empty() ? op_name : op_name + "." + overload);
      step->counted_as = counted_dtype(*step);
    }
    return step;
  }

  // The dtype that the eager device would judge the operator by.
  static at::ScalarType counted_dtype(const AtenStep& step) {
    for (const AtenArgument& argument : step.arguments) {
      for (const auto& view : argument.views) {
        if (view) return view->geometry.dtype;
      }
    }
    return c10::get_default_dtype_as_scalartype();
  }

  AtenArgument make_argument(const AtenStep& step, const c10::Argument& argument, py::handle value,
                             const std::string& target) {
    const auto* info = argument.alias_info();
    const bool written = info != nullptr && info->isWrite();
    const c10::TypePtr type = element_of_optional(argument.real_type());
    const char* what = argument.name().c_str();
    AtenArgument made;
    if (type->kind() == c10::TypeKind::DeviceObjType) {
      const bool core = step.on_core && program_->on_neuron();
      made.constant = core ? c10::Device(kNeuron, program_->device) : c10::Device(at::kCPU);
      return made;
    }
    if (!value) {
      TORCH_CHECK_VALUE(argument.default_value(), target, " needs its argument '", what, "'");
      made.constant = *argument.default_value();
      return made;
    }
    if (py::isinstance<View>(value)) {
      TORCH_CHECK_VALUE(is_tensor(type), "argument '", what, "' of ", target, " is no tensor");
      made.kind = AtenArgument::Kind::kTensor;
      made.views.push_back(view(value, what, written));
      return made;
    }
    if (const auto list = type->cast<c10::ListType>();
        list && !value.is_none() && is_tensor(element_of_optional(list->getElementType()))) {
      const bool optional = !is_tensor(list->getElementType());
      made.kind =
          optional ? AtenArgument::Kind::kOptionalTensorList : AtenArgument::Kind::kTensorList;
      for (const py::handle item : items(value, what)) {
        TORCH_CHECK_VALUE(optional || !item.is_none(), "argument '", what, "' of ", target,
                          " has a None in it");
        made.views.push_back(optional_view(item, what, written));
      }
      return made;
    }
    if (is_tensor(type) && !value.is_none()) {
      TORCH_CHECK_VALUE(!written, "argument '", what, "' of ", target, " must be a tensor");
      const c10::IValue number = convert(value, c10::NumberType::get(), what, target);
      made.constant = c10::scalar_to_tensor(number.toScalar());
      made.constant.toTensor().unsafeGetTensorImpl()->set_wrapped_number(true);
      return made;
    }
    if (PyUnicode_Check(value.ptr()) && type->kind() == c10::TypeKind::MemoryFormatType) {
      made.constant = memory_format(text(value, what));
    } else if (PyUnicode_Check(value.ptr()) && type->kind() == c10::TypeKind::LayoutType) {
      TORCH_CHECK_VALUE(text(value, what) == "strided", "layout ", text(value, what));
      made.constant = at::kStrided;
    } else {
      made.constant = convert(value, argument.type(), what, target);
    }
    return made;
  }

  static at::MemoryFormat memory_format(const std::string& name) {
    if (name == "contiguous_format") return at::MemoryFormat::Contiguous;
    if (name == "preserve_format") return at::MemoryFormat::Preserve;
    if (name == "channels_last") return at::MemoryFormat::ChannelsLast;
    if (name == "channels_last_3d") return at::MemoryFormat::ChannelsLast3d;
    TORCH_CHECK_VALUE(false, "there is no memory format ", name);
  }

  static c10::IValue convert(py::handle value, const c10::TypePtr& type, const char* what,
                             const std::string& target) {
    try {
      return torch::jit::toIValue(value, type);
    } catch (const std::exception& error) {
      TORCH_CHECK_VALUE(false, "argument '", what, "' of ", target, " must be ", type->str(),
                        ", got ", py::repr(value).cast<std::string>(), " (", error.what(), ")");
    }
  }

  // ---- control flow

  std::unique_ptr<Step> make_call(const py::dict& spec, const std::string& kind, std::string name,
                                  std::string loc) {
    using Kind = CallStep::Kind;
    auto step = std::make_unique<CallStep>(std::move(name), std::move(loc));
    TORCH_CHECK_VALUE(kind == "call" || kind == "cond" || kind == "while", "a step is of kind '",
                      kind, "'");
    step->kind = kind == "call" ? Kind::kCall : kind == "cond" ? Kind::kCond : Kind::kWhile;
    for (const py::handle body : items(field(spec, "bodies"), "bodies")) {
      TORCH_CHECK_VALUE(PyDict_Check(body.ptr()), "a body must be a dict");
      step->bodies.push_back(program::build(py::reinterpret_borrow<py::dict>(body), depth_ + 1));
      TORCH_CHECK_VALUE(step->bodies.back()->device == program_->device,
                        "a body is for another device than its program");
    }
    for (const py::handle item : items(field(spec, "operands"), "operands"))
      step->operands.push_back(view(item, "an operand", false));
    for (const py::handle item : items(field(spec, "outs"), "outs"))
      step->outs.push_back(view(item, "a result", true));
    step->selector = optional_view(field(spec, "selector"), "the selector", false);
    const size_t bodies = step->bodies.size();
    if (step->kind == Kind::kWhile) {
      TORCH_CHECK_VALUE(bodies == 2, "a loop has ", bodies, " bodies instead of 2");
      check_condition(*step->bodies[0]);
    } else {
      TORCH_CHECK_VALUE(step->kind == Kind::kCond ? bodies > 0 : bodies == 1, "a ", kind, " has ",
                        bodies, " bodies");
    }
    TORCH_CHECK_VALUE(step->selector.has_value() == (step->kind == Kind::kCond),
                      "a choice has a selector, and nothing else has one");
    if (step->selector) {
      const Geometry& g = step->selector->geometry;
      TORCH_CHECK_VALUE(g.numel == 1 && (g.dtype == at::kBool || g.dtype == at::kInt),
                        "a selector must be one pred or s32");
      TORCH_CHECK_VALUE(g.dtype != at::kBool || bodies == 2, "a pred chooses among ", bodies);
    }
    for (size_t i = 0; i < bodies; ++i) {
      const Program& body = *step->bodies[i];
      check_operands(*step, body);
      if (step->kind != Kind::kWhile || i == 1) check_results(*step, body);
    }
    if (step->kind == Kind::kWhile) {
      TORCH_CHECK_VALUE(step->outs.size() == step->operands.size(), "a loop has ",
                        step->operands.size(), " variables but ", step->outs.size(), " results");
      const Program &condition = *step->bodies[0], &body = *step->bodies[1];
      for (size_t i = 0; i < step->operands.size(); ++i) {
        const Geometry& one = condition.buffers[condition.arguments[i]].geometry;
        const Geometry& other = body.buffers[body.arguments[i]].geometry;
        TORCH_CHECK_VALUE(one.strides == other.strides, "the bodies of a loop take variable ", i,
                          " with different strides");
      }
    }
    for (const auto& body : step->bodies) {
      note_writes(*step, *body);
      program_->packs = program_->packs || body->packs;
    }
    return step;
  }

  static void check_condition(const Program& body) {
    TORCH_CHECK_VALUE(body.results.size() == 1, "the condition of a loop has ", body.results.size(),
                      " results");
    const Geometry& g = body.buffers[body.results[0]].geometry;
    TORCH_CHECK_VALUE(g.numel == 1 && g.dtype == at::kBool, "the condition of a loop is no pred");
  }

  // A loop copies its variables; everything else lends its operands as they are.
  static void check_operands(const CallStep& step, const Program& body) {
    TORCH_CHECK_VALUE(body.arguments.size() == step.operands.size(), "a body takes ",
                      body.arguments.size(), " operands, got ", step.operands.size());
    for (size_t i = 0; i < step.operands.size(); ++i) {
      const Geometry& wanted = body.buffers[body.arguments[i]].geometry;
      const Geometry& given = step.operands[i].geometry;
      const bool strides = wanted.strides == given.strides || wanted.numel == 0;
      TORCH_CHECK_VALUE(wanted.dtype == given.dtype && wanted.sizes == given.sizes && strides,
                        "operand ", i, " of a body is ",
                        describe(given.dtype, given.sizes, given.strides), ", it takes ",
                        describe(wanted.dtype, wanted.sizes, wanted.strides));
    }
  }
  static void check_results(const CallStep& step, const Program& body) {
    TORCH_CHECK_VALUE(body.results.size() == step.outs.size(), "a body has ", body.results.size(),
                      " results, the program takes ", step.outs.size());
    for (size_t r = 0; r < step.outs.size(); ++r) {
      const Geometry& made = body.buffers[body.results[r]].geometry;
      const Geometry& taken = step.outs[r].geometry;
      TORCH_CHECK_VALUE(made.dtype == taken.dtype && made.sizes == taken.sizes, "result ", r,
                        " of a body is ", describe(made.dtype, made.sizes), ", the program takes ",
                        describe(taken.dtype, taken.sizes));
    }
  }
  // What a body writes to its arguments is written by this program; a loop writes to its copies.
  void note_writes(const CallStep& step, const Program& body) {
    if (step.kind == CallStep::Kind::kWhile) return;
    for (const int32_t argument : body.written_arguments) touch(step.operands[argument], true);
  }

  // ---- what follows from all of it

  void finish() {
    Program& p = *program_;
    for (size_t i = 0; i < p.arguments.size(); ++i) {
      if (p.buffers[p.arguments[i]].written) p.written_arguments.push_back(static_cast<int32_t>(i));
    }
    for (const int32_t id : p.outputs) {
      Buffer& buffer = p.buffers[id];
      const bool large = buffer.geometry.high >= kLarge;
      buffer.late = first_[id].step >= 0 && first_[id].written && (large || may_bring_memory_[id]);
    }
    for (size_t i = 0; i < p.arguments.size(); ++i) {
      const int32_t id = p.arguments[i];
      const bool returned = std::find(p.results.begin(), p.results.end(), id) != p.results.end();
      if (last_[id] >= 0 && !p.buffers[id].written && !returned &&
          p.buffers[id].geometry.high >= kLarge) {
        p.steps[last_[id]]->last_uses.push_back(static_cast<int32_t>(i));
      }
    }
    pin_shared_memory();
  }

  // A temporary that is read before it is written gets its content from another one at the same
  // place; that one must stay there.
  void pin_shared_memory() {
    Program& p = *program_;
    for (const int32_t reader : p.temps) {
      if (first_[reader].step < 0 || first_[reader].written) continue;
      const Buffer& r = p.buffers[reader];
      for (const int32_t other : p.temps) {
        Buffer& o = p.buffers[other];
        const bool overlap =
            o.offset < r.offset + r.geometry.high && r.offset < o.offset + o.geometry.high;
        if (other != reader && overlap) o.pinned = true;
      }
    }
  }

  struct First {
    int32_t step;
    bool written;
  };
  const int depth_;
  std::shared_ptr<Program> program_;
  std::vector<First> first_;
  std::vector<int32_t> last_;
  std::vector<bool> may_bring_memory_;
};

}  // namespace

std::shared_ptr<const Program> build(const py::dict& spec, int depth) {
  return Builder(depth).build(spec);
}

}  // namespace torch_neuronx::program
