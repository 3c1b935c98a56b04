#include "program/build.h"

#include <algorithm>
#include <limits>

#include "device/state.h"
#include "program/builder.h"

namespace torch_neuronx::program {
namespace {

// Smaller ones are not worth giving back, or allocating, in the middle of a call.
constexpr int64_t kLarge = 64 << 10;
constexpr int kMaxDepth = 32;  // of programs inside programs
constexpr int64_t kMaxThreadScratch = int64_t(1) << 30;

}  // namespace

std::shared_ptr<const Program> Builder::build(const py::dict& spec) {
  TORCH_CHECK_VALUE(depth_ < kMaxDepth, "programs are nested more than ", kMaxDepth, " deep");
  program_->name = text(field(spec, "name"), "name");
  const int64_t device = integer(field(spec, "device"), "device");
  TORCH_CHECK_VALUE(device >= -1 && device < device_count(), "there is no neuron device ", device);
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
  if (depth_ == 0 && program_->on_neuron()) {
    uint64_t constants = 0;
    for (const at::Tensor& tensor : program_->constant_tensors) constants += tensor.nbytes();
    program_->loaded.emplace(program_->name, program_->device, constants,
                             static_cast<uint64_t>(program_->scratch_bytes));
  }
  return program_;
}

void Builder::add_buffer(py::handle item) {
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
                      "temporary ", id, " lies outside the scratchpad of ", program_->scratch_bytes,
                      " bytes");
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

at::Tensor Builder::constant(const Geometry& geometry, py::handle literal, int32_t id) {
  TORCH_CHECK_VALUE(PyBytes_Check(literal.ptr()), "constant ", id, " has no bytes");
  const int64_t bytes = geometry.numel * geometry.itemsize();
  TORCH_CHECK_VALUE(PyBytes_GET_SIZE(literal.ptr()) == bytes, "constant ", id, " has ",
                    PyBytes_GET_SIZE(literal.ptr()), " bytes instead of ", bytes);
  TORCH_CHECK_VALUE(geometry.numel == 0 || (geometry.dense && geometry.high == bytes), "constant ",
                    id, " has gaps, or elements that share memory");
  Extents dense(geometry.sizes.size());
  int64_t stride = 1;
  for (size_t d = dense.size(); d-- > 0;) {
    dense[d] = stride;
    stride *= geometry.sizes[d];
  }
  at::Tensor tensor = make_tensor(geometry, program_->device);
  copy_view(static_cast<char*>(tensor.storage().mutable_data()), geometry,
            PyBytes_AS_STRING(literal.ptr()), make_geometry(geometry.dtype, geometry.sizes, dense));
  return tensor;
}

// Arguments and results are numbered 0, 1, 2...
void Builder::number(BufferKind kind, std::vector<int32_t>& table, const char* what) {
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

int32_t Builder::buffer_id(int64_t id) const {
  TORCH_CHECK_VALUE(id >= 0 && id < static_cast<int64_t>(program_->buffers.size()),
                    "there is no buffer ", id);
  return static_cast<int32_t>(id);
}

// Notes that the step being made reads or writes bytes [low, high) of a buffer.
void Builder::touch(int32_t id, int64_t low, int64_t high, bool written) {
  Buffer& buffer = program_->buffers[id];
  TORCH_CHECK_VALUE(low >= 0 && high <= buffer.geometry.high, "bytes ", low, " to ", high,
                    " of buffer ", id, " are used, but it has ", buffer.geometry.high);
  TORCH_CHECK_VALUE(!written || buffer.kind != BufferKind::kConstant, "constant ", id,
                    " is written to");
  if (!in_flight_.empty()) check_in_flight(id, low, high, written);
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
  if (written && outputs_ != nullptr && buffer.kind == BufferKind::kOutput) outputs_->note(id);
  // What is read next time round lies where it was written, not where an operator brought it.
  if (loops_ > 0) buffer.pinned = true;
}
void Builder::touch(const View& view, bool written) {
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

View Builder::view(py::handle value, const char* what, bool written) {
  View made = view_of(value, what);
  touch(made, written);
  return made;
}
std::optional<View> Builder::optional_view(py::handle value, const char* what, bool written) {
  if (value.is_none()) return std::nullopt;
  return view(value, what, written);
}

// (buffer, offset, low, high, written), in bytes; low and high relative to the offset.
Operands Builder::operands(py::handle value) {
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
      TORCH_CHECK_VALUE(
          operand.offset >= 0 && operand.offset <= program_->buffers[operand.buffer].geometry.high,
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

uintptr_t Builder::address(py::handle value) {
  const int64_t address = integer(value, "the address of a kernel");
  TORCH_CHECK_VALUE(address > 0, "a kernel has no address");
  return static_cast<uintptr_t>(address);
}

std::unique_ptr<Step> Builder::make_step(py::handle item) {
  TORCH_CHECK_VALUE(PyDict_Check(item.ptr()), "a step must be a dict, got ",
                    Py_TYPE(item.ptr())->tp_name);
  const auto spec = py::reinterpret_borrow<py::dict>(item);
  const std::string kind = text(field(spec, "kind"), "the kind of a step");
  std::string name = text(field(spec, "name"), "the name of a step");
  std::string loc = text(field(spec, "loc"), "the location of a step");
  if (kind == "loop") return make_loop(spec, std::move(name), std::move(loc));
  if (kind == "gemm") return make_gemm(spec, std::move(name), std::move(loc));
  if (kind == "conv") return make_conv(spec, std::move(name), std::move(loc));
  if (kind == "aten") return make_aten(spec, std::move(name), std::move(loc));
  if (kind == "copy") return make_copy(spec, std::move(name), std::move(loc));
  if (kind == "tape") return make_tape(spec, std::move(name), std::move(loc));
  if (kind == "print") return make_print(spec, std::move(name), std::move(loc));
  if (kind == "collective") return make_collective(spec, std::move(name), std::move(loc));
  if (kind == "wait") return make_wait(spec, std::move(name), std::move(loc));
  if (kind == "for" || kind == "repeat_while") {
    return make_loop_of_steps(spec, kind != "for", std::move(name), std::move(loc));
  }
  return make_call(spec, kind, std::move(name), std::move(loc));
}

std::unique_ptr<Step> Builder::make_loop(const py::dict& spec, std::string name, std::string loc) {
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
  for (const py::handle item : items(field(spec, "cleared"), "what is cleared")) {
    const auto parts = items(item, "what is cleared");
    TORCH_CHECK_VALUE(parts.size() == 3, "what is cleared has ", parts.size(), " parts");
    LoopStep::Note note;
    const int64_t operand = integer(parts[0], "an operand that is cleared");
    note.offset = integer(parts[1], "the offset of what is cleared");
    note.bytes = integer(parts[2], "the size of what is cleared");
    const bool known = operand >= 0 && operand < static_cast<int64_t>(step->operands.size()) &&
                       note.bytes >= 0 && note.bytes <= 8;
    TORCH_CHECK_VALUE(known && step->operands[static_cast<size_t>(operand)].written,
                      "a loop notes what it found in operand ", operand);
    note.operand = static_cast<int32_t>(operand);
    step->notes.push_back(note);
  }
  return step;
}

// A view, or a dict that says how the elements are made.
View Builder::product_operand(py::handle value, const char* what, GemmStep::Made& made) {
  if (!PyDict_Check(value.ptr())) return view(value, what, false);
  const auto spec = py::reinterpret_borrow<py::dict>(value);
  View result;
  result.buffer = -1;
  const Extents shape = extents(field(spec, "shape"), "the shape of an operand");
  TORCH_CHECK_VALUE(shape.size() == 3, "the operands of a product must have three dimensions");
  made.by_columns = boolean(field(spec, "by_columns"), "by_columns");
  const int64_t columns = made.by_columns ? shape[1] : shape[2];
  const Extents strides{shape[1] * shape[2], made.by_columns ? 1 : columns,
                        made.by_columns ? columns : 1};
  result.geometry = make_geometry(dtype_of(field(spec, "dtype"), what), shape, strides);
  made.function = reinterpret_cast<gemm::PrologueFunction>(address(field(spec, "address")));
  made.operands = operands(field(spec, "operands"));
  for (const Operand& operand : made.operands) {
    TORCH_CHECK_VALUE(!operand.written, "what makes an operand of a product writes to buffer ",
                      operand.buffer);
  }
  return result;
}

std::unique_ptr<Step> Builder::make_gemm(const py::dict& spec, std::string name, std::string loc) {
  auto step = std::make_unique<GemmStep>(std::move(name), std::move(loc));
  step->a = product_operand(field(spec, "a"), "a", step->made_a);
  step->b = product_operand(field(spec, "b"), "b", step->made_b);
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

std::unique_ptr<Step> Builder::make_copy(const py::dict& spec, std::string name, std::string loc) {
  auto step = std::make_unique<CopyStep>(std::move(name), std::move(loc));
  step->src = view(field(spec, "src"), "src", false);
  step->out = view(field(spec, "out"), "out", true);
  TORCH_CHECK_VALUE(step->src.geometry.sizes == step->out.geometry.sizes &&
                        step->src.geometry.dtype == step->out.geometry.dtype,
                    "a copy between tensors of different shape or dtype");
  return step;
}

void Builder::finish() {
  Program& p = *program_;
  TORCH_CHECK_VALUE(in_flight_.empty(), "nobody waits for the collective ",
                    in_flight_.empty() ? "" : in_flight_[0]->name);
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
  p.may_wait =
      std::all_of(p.steps.begin(), p.steps.end(), [](const auto& s) { return s->may_wait(); });
  p.draws = std::any_of(p.steps.begin(), p.steps.end(), [](const auto& s) { return s->draws(); });
}

// A temporary that is read before it is written gets its content from another one at the same
// place; that one must stay there.
void Builder::pin_shared_memory() {
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

std::shared_ptr<const Program> build(const py::dict& spec, int depth) {
  return Builder(depth).build(spec);
}

}  // namespace torch_neuronx::program
