// Checks a tape: every function once, and then, in one pass over the array, that every instruction
// is whole and all that it touches is there.
#include "program/builder.h"
#include "program/tape.h"

namespace torch_neuronx::program {

std::shared_ptr<PyObject> keep(PyObject* object) {
  return {Py_NewRef(object), [](PyObject* held) {
            const py::gil_scoped_acquire gil;
            Py_DECREF(held);
          }};
}

namespace {

using Reach = std::vector<nki::NativeSlot>;

constexpr int64_t kMostChunks = 1 << 20;
constexpr int64_t kMostReach = int64_t(1) << 48;
constexpr int64_t kMostAdvance = int64_t(1) << 40;  // times kMostChunks fits into 64 bits
constexpr int64_t kMostExtent = 1 << 24;
constexpr int64_t kMostThreadScratch = int64_t(1) << 30;

// Below this, others are not asked: handing out work and fetching its operands takes that long.
constexpr double kWorthThreads = 1200;

std::vector<int64_t> integers(py::handle value, const char* what) {
  std::vector<int64_t> result;
  for (const py::handle item : items(value, what)) result.push_back(integer(item, what));
  return result;
}

Reach loop_of(const py::dict& spec, TapeFunction& f) {
  f.kind = TapeFunction::Kind::kLoop;
  const int64_t address = integer(field(spec, "address"), "the address of a kernel");
  TORCH_CHECK_VALUE(address > 0, "a kernel has no address");
  f.loop = reinterpret_cast<LoopFunction>(address);
  f.items = integer(field(spec, "items"), "items");
  f.grain = integer(field(spec, "grain"), "grain");
  f.scratch_bytes = integer(field(spec, "scratch_bytes"), "scratch_bytes");
  constexpr int64_t kLimit = int64_t(1) << 60;
  TORCH_CHECK_VALUE(f.items >= 0 && f.grain >= 1 && f.items < kLimit && f.grain < kLimit,
                    "a loop has ", f.items, " items in chunks of ", f.grain);
  f.nanoseconds = field(spec, "nanoseconds").cast<double>();
  Reach reach;
  for (const py::handle item : items(field(spec, "reach"), "reach")) {
    const auto parts = items(item, "reach");
    TORCH_CHECK_VALUE(parts.size() == 3, "a reach has ", parts.size(), " parts instead of 3");
    reach.push_back(
        {integer(parts[0], "reach"), integer(parts[1], "reach"), boolean(parts[2], "written")});
  }
  return reach;
}

gemm::Element element(py::handle value, bool result) {
  const at::ScalarType dtype = dtype_of(value, "a product");
  const bool half = dtype == at::kHalf && !result;
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16 || half, "a product ",
                    result ? "to " : "of ", c10::getDtypeNames(dtype).first);
  return dtype == at::kFloat      ? gemm::Element::kF32
         : dtype == at::kBFloat16 ? gemm::Element::kBf16
                                  : gemm::Element::kF16;
}

Reach product_of(const py::dict& spec, TapeFunction& f) {
  f.kind = TapeFunction::Kind::kProduct;
  nki::Product& p = f.product;
  const auto shape = integers(field(spec, "shape"), "the shape of a product");
  const auto strides = integers(field(spec, "strides"), "the strides of a product");
  TORCH_CHECK_VALUE(shape.size() == 3 && strides.size() == 6, "a product has three extents");
  for (const int64_t extent : shape) {
    TORCH_CHECK_VALUE(extent >= 1 && extent <= kMostExtent, "a product has the extent ", extent);
  }
  for (const int64_t stride : strides) {
    TORCH_CHECK_VALUE(stride >= 0 && stride <= kMostExtent, "a product has the stride ", stride);
  }
  p.m = shape[0];
  p.n = shape[1];
  p.k = shape[2];
  p.out_m = strides[0];
  p.out_n = strides[1];
  p.a_k = strides[2];
  p.a_m = strides[3];
  p.b_k = strides[4];
  p.b_n = strides[5];
  TORCH_CHECK_VALUE((p.m == 1 || p.out_m > 0) && (p.n == 1 || p.out_n > 0),
                    "a product writes several elements to one place");
  p.element = element(field(spec, "dtype"), false);
  p.out_element = element(field(spec, "out_dtype"), true);
  p.accumulate = boolean(field(spec, "accumulate"), "accumulate");
  const int64_t size = gemm::element_size(p.element), out_size = gemm::element_size(p.out_element);
  const auto span = [](int64_t rows, int64_t row, int64_t cols, int64_t col, int64_t bytes) {
    return ((rows - 1) * row + (cols - 1) * col + 1) * bytes;
  };
  Reach reach{{0, span(p.m, p.out_m, p.n, p.out_n, out_size), true},
              {0, span(p.k, p.a_k, p.m, p.a_m, size), false},
              {0, span(p.k, p.b_k, p.n, p.b_n, size), false}};
  f.nanoseconds = p.multiplications() / (p.element == gemm::Element::kBf16 ? 100 : 50) + 50;
  p.prepare();
  return reach;
}

Reach native_of(const py::dict& spec, TapeFunction& f) {
  f.kind = TapeFunction::Kind::kNative;
  const std::string name = text(field(spec, "native"), "the name of a native function");
  f.native = nki::find_native(name);
  TORCH_CHECK_VALUE(f.native != nullptr, "there is no native function '", name, "'");
  f.params = integers(field(spec, "params"), "a parameter");
  nki::Declared declared = f.native->declare(f.params);
  f.items = declared.items;
  f.grain = std::max<int64_t>(declared.grain, 1);
  f.scratch_bytes = declared.scratch_bytes;
  f.nanoseconds = declared.nanoseconds;
  return std::move(declared.slots);
}

Reach function_of(const py::dict& spec, TapeFunction& f) {
  const std::string kind = text(field(spec, "kind"), "the kind of a function");
  f.name = text(field(spec, "name"), "the name of a function");
  f.lanes = boolean(field(spec, "lanes"), "lanes");
  f.advance = integers(field(spec, "advance"), "advance");
  TORCH_CHECK_VALUE(kind == "loop" || kind == "product" || kind == "native",
                    "a function is of kind '", kind, "'");
  Reach reach = kind == "loop"      ? loop_of(spec, f)
                : kind == "product" ? product_of(spec, f)
                                    : native_of(spec, f);
  f.slots = static_cast<int64_t>(reach.size());
  TORCH_CHECK_VALUE(f.scratch_bytes >= 0 && f.scratch_bytes <= kMostThreadScratch,
                    "a function asks for ", f.scratch_bytes, " bytes of scratch per thread");
  TORCH_CHECK_VALUE(f.slots <= kMostTapeSlots, "it has ", f.slots, " slots, more than ",
                    kMostTapeSlots);
  TORCH_CHECK_VALUE(!f.lanes || kind != "product", "a product does not work lane by lane");
  TORCH_CHECK_VALUE(f.advance.size() == (f.lanes ? reach.size() : 0), "it has ", f.slots,
                    " slots and ", f.advance.size(), " advances");
  for (size_t s = 0; s < reach.size(); ++s) {
    const bool near = !f.lanes || std::abs(f.advance[s]) <= kMostAdvance;
    TORCH_CHECK_VALUE(near && -kMostReach <= reach[s].low && reach[s].low <= reach[s].high &&
                          reach[s].high <= kMostReach,
                      "slot ", s, " reaches beyond any memory");
  }
  return reach;
}

}  // namespace

std::unique_ptr<Step> Builder::make_tape(const py::dict& spec, std::string name, std::string loc) {
  auto step = std::make_unique<TapeStep>(std::move(name), std::move(loc));
  Outputs outputs(*this);
  std::vector<Reach> reaches;
  for (const py::handle item : items(field(spec, "functions"), "functions")) {
    TORCH_CHECK_VALUE(PyDict_Check(item.ptr()), "a function must be a dict");
    TapeFunction& f = step->functions.emplace_back();
    try {
      reaches.push_back(function_of(py::reinterpret_borrow<py::dict>(item), f));
    } catch (c10::ValueError& error) {
      error.add_context(c10::str("function ", reaches.size(), " of a tape, ", f.name));
      throw;
    }
  }
  for (const py::handle item : items(field(spec, "locations"), "locations")) {
    step->locations.push_back(text(item, "a location"));
  }
  const py::handle code = field(spec, "code");
  TORCH_CHECK_VALUE(PyBytes_Check(code.ptr()) && PyBytes_GET_SIZE(code.ptr()) % 8 == 0,
                    "the code of a tape must be bytes of whole words");
  step->owner = keep(code.ptr());
  step->code = reinterpret_cast<const int64_t*>(PyBytes_AS_STRING(code.ptr()));
  step->words = PyBytes_GET_SIZE(code.ptr()) / 8;
  check_code(*step, reaches);
  step->outputs = std::move(outputs.ids);
  return step;
}

// The array may come from a file: no number of it is used before it is known to be sound.
void Builder::check_code(TapeStep& tape, const std::vector<std::vector<nki::NativeSlot>>& reaches) {
  const int64_t* const code = tape.code;
  const int64_t end = tape.words;
  for (int64_t at = 0; at < end;) {
    TORCH_CHECK_VALUE(
        end - at >= 2 && code[at] >= 1 && code[at + 1] >= 0 && code[at + 1] <= kMostChunks, "word ",
        at, " of a tape does not begin a group");
    const int64_t count = code[at], chunks = code[at + 1];
    at += 2;
    double nanoseconds = 0;
    bool splits = chunks > 1;
    for (int64_t i = 0; i < count; ++i) {
      TORCH_CHECK_VALUE(
          end - at >= 2 && code[at] >= 0 && code[at] < static_cast<int64_t>(tape.functions.size()),
          "word ", at, " of a tape is no instruction");
      const TapeFunction& f = tape.functions[size_t(code[at])];
      const int64_t line = code[at + 1];
      TORCH_CHECK_VALUE(line >= 0 && line < static_cast<int64_t>(tape.locations.size()), "word ",
                        at, " of a tape names the location ", line);
      const auto place = [&] {
        return c10::str(f.name, " at word ", at, " of a tape, ", tape.locations[size_t(line)]);
      };
      TORCH_CHECK_VALUE(end - at >= f.words(), "the last instruction of a tape is cut off");
      TORCH_CHECK_VALUE(f.lanes == (chunks > 0), place(), ": in a group that it is not made for");
      const int64_t more = std::max<int64_t>(chunks - 1, 0);
      for (int64_t s = 0; s < f.slots; ++s) {
        const int64_t id = code[at + 2 + 2 * s], offset = code[at + 3 + 2 * s];
        const nki::NativeSlot& reach = reaches[size_t(code[at])][size_t(s)];
        TORCH_CHECK_VALUE(id >= 0 && id < static_cast<int64_t>(program_->buffers.size()), place(),
                          ": there is no buffer ", id);
        const Buffer& buffer = program_->buffers[size_t(id)];
        const int64_t by = f.lanes ? more * f.advance[size_t(s)] : 0;
        // One that is not accessed must still point into the buffer.
        const bool touches = reach.low < reach.high;
        const int64_t low = touches ? reach.low : 0, high = touches ? reach.high : 0;
        TORCH_CHECK_VALUE(offset >= 0 && offset <= kMostReach &&
                              offset + low + std::min<int64_t>(by, 0) >= 0 &&
                              offset + high + std::max<int64_t>(by, 0) <= buffer.geometry.high,
                          place(), ": slot ", s, " reaches beyond buffer ", id, ", which has ",
                          buffer.geometry.high, " bytes");
        TORCH_CHECK_VALUE(!reach.written || buffer.kind != BufferKind::kConstant, place(),
                          ": constant ", id, " is written to");
        touch(static_cast<int32_t>(id), 0, 0, reach.written);
      }
      nanoseconds += f.nanoseconds * double(std::max<int64_t>(chunks, 1));
      splits =
          splits || f.kind == TapeFunction::Kind::kProduct || (chunks == 0 && f.items > f.grain);
      at += f.words();
    }
    const bool parallel = splits && nanoseconds >= kWorthThreads;
    tape.parallel.push_back(parallel);
    tape.any_parallel = tape.any_parallel || parallel;
  }
}

}  // namespace torch_neuronx::program
