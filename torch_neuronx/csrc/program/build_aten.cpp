// Steps that run an operator of ATen: its arguments read by its schema, once.
#include <ATen/ScalarOps.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "device/state.h"
#include "dispatch/host_kernels.h"
#include "dispatch/op_table.h"
#include "dispatch/schema.h"
#include "dispatch/trusting.h"
#include "program/builder.h"

namespace torch_neuronx::program {
namespace {

// Name and overload of "aten::sort.stable"; FX writes an empty overload as "default".
std::pair<std::string, std::string> split_target(const std::string& target) {
  const size_t colons = target.find("::");
  TORCH_CHECK_VALUE(colons != std::string::npos, "the operator ", target, " has no namespace");
  const size_t dot = target.find('.', colons);
  if (dot == std::string::npos) return {target, ""};
  const std::string overload = target.substr(dot + 1);
  return {target.substr(0, dot), overload == "default" ? "" : overload};
}

// The dtype that the eager device would judge the operator by.
at::ScalarType counted_dtype(const AtenStep& step) {
  for (const AtenArgument& argument : step.arguments) {
    for (const auto& view : argument.views) {
      if (view) return view->geometry.dtype;
    }
  }
  return c10::get_default_dtype_as_scalartype();
}

at::MemoryFormat memory_format(const std::string& name) {
  if (name == "contiguous_format") return at::MemoryFormat::Contiguous;
  if (name == "preserve_format") return at::MemoryFormat::Preserve;
  if (name == "channels_last") return at::MemoryFormat::ChannelsLast;
  if (name == "channels_last_3d") return at::MemoryFormat::ChannelsLast3d;
  TORCH_CHECK_VALUE(false, "there is no memory format ", name);
}

c10::IValue convert(py::handle value, const c10::TypePtr& type, const char* what,
                    const std::string& target) {
  try {
    return torch::jit::toIValue(value, type);
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, "argument '", what, "' of ", target, " must be ", type->str(),
                      ", got ", py::repr(value).cast<std::string>(), " (", error.what(), ")");
  }
}

// Sizes and dtypes are known now; what depends on elements is looked at in every call.
void check_demands(const AtenStep& step) {
  const auto tensor = [](const std::optional<View>& view) -> std::optional<at::Tensor> {
    if (!view) return std::nullopt;
    const Geometry& g = view->geometry;
    return at::empty_strided(g.sizes, g.strides, at::TensorOptions(g.dtype).device(at::kMeta));
  };
  torch::jit::Stack stack;
  for (const AtenArgument& argument : step.arguments) {
    switch (argument.kind) {
      case AtenArgument::Kind::kConstant:
        stack.push_back(argument.constant);
        break;
      case AtenArgument::Kind::kTensor:
        stack.push_back(*tensor(argument.views[0]));
        break;
      case AtenArgument::Kind::kTensorList: {
        c10::List<at::Tensor> list;
        for (const auto& view : argument.views) list.push_back(*tensor(view));
        stack.push_back(std::move(list));
        break;
      }
      case AtenArgument::Kind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& view : argument.views) list.push_back(tensor(view));
        stack.push_back(std::move(list));
        break;
      }
    }
  }
  try {
    (void)meet(*step.demands, step.op, stack);  // no elements yet
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, error.what_without_backtrace());
  }
}

}  // namespace

std::unique_ptr<Step> Builder::make_aten(const py::dict& spec, std::string name, std::string loc) {
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
  step->demands = demands_of(*op);
  if (step->demands != nullptr) check_demands(*step);
  if (!step->on_core) step->host_kernel = host_kernel_of(*op);
  if (op_name == "neuron::check_noted_values") {
    const AtenArgument& note = step->arguments[0];
    TORCH_CHECK_VALUE(note.views.size() == 1 && note.views[0]->geometry.numel == 1, target,
                      " needs a note of one element");
    step->noted = note.views[0];
  }
  for (const py::handle out : items(field(spec, "outs"), "outs")) add_result(*step, out);
  if (boolean(field(spec, "host"), "host")) {
    step->counted = &op_entry(overload.empty() ? op_name : op_name + "." + overload);
    step->counted_as = counted_dtype(*step);
  }
  return step;
}

bool Builder::is_whole(const View& v) {
  const Geometry& g = program_->buffers[v.buffer].geometry;
  const bool whole = v.offset == 0 && g.dense && g.dtype == v.geometry.dtype &&
                     g.sizes == v.geometry.sizes && g.strides == v.geometry.strides;
  if (whole && first_[v.buffer].step == static_cast<int32_t>(program_->steps.size())) {
    may_bring_memory_[v.buffer] = true;
  }
  return whole;
}

void Builder::add_result(AtenStep& step, py::handle out) {
  step.outs.push_back(optional_view(out, "a result", true));
  step.whole.push_back(step.outs.back() && is_whole(*step.outs.back()));
}

AtenArgument Builder::make_argument(const AtenStep& step, const c10::Argument& argument,
                                    py::handle value, const std::string& target) {
  const bool written = is_written(argument);
  const c10::TypePtr type = strip_optional(argument.real_type());
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
      list && !value.is_none() && is_tensor(strip_optional(list->getElementType()))) {
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
  const auto kind = type->kind();
  // As a number any of these would be taken, and used as an index without a look.
  const bool by_name = kind == c10::TypeKind::MemoryFormatType || kind == c10::TypeKind::LayoutType;
  TORCH_CHECK_VALUE(
      !PyLong_Check(value.ptr()) || (kind != c10::TypeKind::ScalarTypeType && !by_name),
      "argument '", what, "' of ", target, " must be ", type->str(), ", got ",
      py::repr(value).cast<std::string>());
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

}  // namespace torch_neuronx::program
