#include "queue/call_key.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <string_view>

#include "device/state.h"
#include "dispatch/schema.h"
#include "memory/allocator.h"

namespace torch_neuronx::queue {
namespace {

using c10::IValue;

constexpr size_t kMaxTensors = 250;  // their numbers are bytes of a word

// The first byte of a word that says what follows.
enum Tag : uint64_t {
  kUndefined = 1,
  kAgain,
  kDevice,
  kHostNumber,
  kNone,
  kList,
  kInt,
  kDouble,
  kBool,
  kComplex,
  kString,
  kPlace,
  kInts,
  kDoubles,
  kBools,
  kGenerator,
  kNumber,
  kNumbers,
  kOverlap,
  kState
};
constexpr uint64_t word(Tag tag, uint64_t rest = 0) { return tag << 56 | rest; }

// Without those that every tensor of its device has.
c10::DispatchKeySet own_keys(const at::Tensor& t) {
  return t.key_set() -
         (c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
}

Argument::Role role_of(const c10::TypePtr& type) {
  using Role = Argument::Role;
  if (is_tensor(type)) return Role::kTensor;
  const auto list = type->cast<c10::ListType>();
  const c10::TypePtr element = list ? strip_optional(list->getElementType()) : type;
  if (list && is_tensor(element)) return Role::kTensorList;
  const bool number =
      element->kind() == c10::TypeKind::NumberType || element->kind() == c10::TypeKind::FloatType;
  return number ? Role::kNumber : Role::kValue;
}

// Operators that no number is refused by, and whose results have the same shape with any: a rate
// that changes with each step must not make each step a new kind of call. The names are without
// "aten::", "_foreach_" and the "_" at the end of those that write in place.
constexpr std::string_view kTakeAnyNumber[] = {"add",          "sub",
                                               "rsub",         "mul",
                                               "div",          "true_divide",
                                               "addcmul",      "addcdiv",
                                               "lerp",         "fill",
                                               "clamp",        "eq",
                                               "ne",           "lt",
                                               "le",           "gt",
                                               "ge",           "where",
                                               "maximum",      "minimum",
                                               "masked_fill",  "clamp_min",
                                               "clamp_max",    "remainder",
                                               "fmod",         "pow",
                                               "addmm",        "addmv",
                                               "addr",         "baddbmm",
                                               "addbmm",       "xlogy",
                                               "full",         "copysign",
                                               "_fused_adamw", "_fused_adam",
                                               "_fused_sgd",   "_fused_adagrad"};

bool takes_any_number(std::string_view name) {
  if (name.starts_with("aten::")) name.remove_prefix(6);
  if (name.starts_with("_foreach_")) name.remove_prefix(9);
  if (name.ends_with('_')) name.remove_suffix(1);
  return std::find(std::begin(kTakeAnyNumber), std::end(kTakeAnyNumber), name) !=
         std::end(kTakeAnyNumber);
}

// Switches of the process that decide what an operator returns, or whether it refuses.
uint64_t process_state() {
  const auto& context = at::globalContext();
  return static_cast<uint64_t>(context.deterministicAlgorithms()) |
         static_cast<uint64_t>(context.deterministicAlgorithmsWarnOnly()) << 1 |
         static_cast<uint64_t>(c10::GradMode::is_enabled()) << 2 |
         static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 8;
}

}  // namespace

bool is_plain(const at::Tensor& t) {
  return own_keys(t) == c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) && t.has_storage();
}

bool is_host_number(const at::Tensor& t) {
  return t.dim() == 0 && own_keys(t) == c10::DispatchKeySet(c10::DispatchKey::CPU);
}

Signature::Signature(const c10::OperatorHandle& op) {
  using Role = Argument::Role;
  const auto& schema = op.schema();
  bool only_out = true;  // all tensors are out= arguments, so numbers decide the shape (arange)
  for (const auto& argument : schema.arguments()) {
    const bool written = is_written(argument);
    const auto role = role_of(strip_optional(argument.real_type()));
    bool optional_items = false;
    if (role == Role::kTensorList) {
      const auto list = strip_optional(argument.real_type())->cast<c10::ListType>();
      optional_items = !is_tensor(list->getElementType());
    }
    arguments.push_back({role, written, optional_items, argument.name() == "alpha"});
    writes = writes || written;
    if (role == Role::kTensor || role == Role::kTensorList)
      only_out = only_out && written && argument.kwarg_only();
  }
  for (const auto& ret : schema.returns()) {
    const int source = written_argument(schema, ret);
    returns.push_back(source < 0 && ret.alias_info() != nullptr ? -2 : source);
  }
  const bool any_number = !only_out && takes_any_number(op.operator_name().name);
  for (Argument& argument : arguments) {
    if (argument.role == Role::kNumber && !any_number) argument.role = Role::kValue;
  }
}

bool CallKey::add_tensor(const at::Tensor& t, bool written, size_t argument, int item) {
  if (!t.defined()) {
    words.push_back(word(kUndefined));
    return true;
  }
  const auto* impl = t.unsafeGetTensorImpl();
  if (!t.device().is_privateuseone()) {
    if (written || item >= 0 || !is_host_number(t)) return false;
    words.push_back(word(kHostNumber, static_cast<uint64_t>(t.scalar_type()) |
                                          static_cast<uint64_t>(impl->is_wrapped_number()) << 8));
    return true;
  }
  const auto place = [&](size_t tensor) {
    places.push_back({static_cast<uint16_t>(argument), static_cast<int16_t>(item),
                      static_cast<uint8_t>(tensor)});
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i]->is_same(t)) continue;
    words.push_back(word(kAgain, i));
    place(i);
    return true;
  }
  if (!is_plain(t) || tensors.size() >= kMaxTensors) return false;
  if (core < 0) core = t.device().index();
  if (core != t.device().index()) return false;
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  size_t number = 0;
  while (number < storages.size() && storages[number] != storage) ++number;
  if (number == storages.size()) {
    if (!is_block(*storage)) return false;
    storages.push_back(storage);
  }
  place(tensors.size());
  tensors.push_back(&t);
  storage_of.push_back(static_cast<uint8_t>(number));
  const bool kept_for_backward = t.requires_grad() && c10::GradMode::is_enabled();
  const auto dims = static_cast<uint64_t>(t.dim());
  words.push_back(word(kDevice, static_cast<uint64_t>(t.scalar_type()) |
                                    static_cast<uint64_t>(impl->is_wrapped_number()) << 8 |
                                    static_cast<uint64_t>(kept_for_backward) << 9 | number << 16 |
                                    dims << 24));
  for (const int64_t size : t.sizes()) words.push_back(static_cast<uint64_t>(size));
  for (const int64_t stride : t.strides()) words.push_back(static_cast<uint64_t>(stride));
  return true;
}

void CallKey::add_number(const IValue& value) {
  if (value.isList()) {
    words.push_back(word(kNumbers, value.toListRef().size()));
    for (const IValue& item : value.toListRef()) add_number(item);
    return;
  }
  // Some operators refuse negative whole numbers.
  const uint64_t kind = value.isInt()      ? 1 + static_cast<uint64_t>(value.toInt() < 0)
                        : value.isDouble() ? 3
                        : value.isBool()   ? 4
                        : value.isNone()   ? 5
                                           : 6;
  words.push_back(word(kNumber, kind));
}

bool CallKey::add_value(const IValue& value) {
  const auto bits = [](double x) { return std::bit_cast<uint64_t>(x); };
  if (value.isNone()) {
    words.push_back(word(kNone));
  } else if (value.isInt()) {
    words.append({word(kInt), static_cast<uint64_t>(value.toInt())});
  } else if (value.isBool()) {
    words.push_back(word(kBool, value.toBool()));
  } else if (value.isDouble()) {
    words.append({word(kDouble), bits(value.toDouble())});
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    words.append({word(kComplex), bits(number.real()), bits(number.imag())});
  } else if (value.isIntList()) {
    const auto list = value.toIntVector();
    words.push_back(word(kInts, list.size()));
    for (const int64_t each : list) words.push_back(static_cast<uint64_t>(each));
  } else if (value.isDoubleList()) {
    const auto list = value.toDoubleVector();
    words.push_back(word(kDoubles, list.size()));
    for (const double each : list) words.push_back(bits(each));
  } else if (value.isBoolList()) {
    const auto list = value.toBoolList();
    words.push_back(word(kBools, list.size()));
    for (const bool each : list) words.push_back(each);
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    words.push_back(word(kString, text.size()));
    for (size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
      uint64_t part = 0;
      std::memcpy(&part, text.data() + i, std::min(sizeof part, text.size() - i));
      words.push_back(part);
    }
  } else if (value.isDevice()) {
    const auto device = value.toDevice();
    words.push_back(word(
        kPlace, static_cast<uint64_t>(device.type()) << 8 | static_cast<uint8_t>(device.index())));
  } else if (value.isGenerator()) {
    if (value.toGenerator().device().type() != kNeuron) return false;
    words.push_back(word(kGenerator));
  } else {
    return false;
  }
  return true;
}

bool CallKey::read(const Signature& signature, const torch::jit::Stack& stack) {
  using Role = Argument::Role;
  const size_t base = stack.size() - signature.arguments.size();
  for (size_t i = 0; i < signature.arguments.size(); ++i) {
    const Role role = signature.arguments[i].role;
    const bool written = signature.arguments[i].written;
    const IValue& value = stack[base + i];
    if (value.isTensor()) {
      if (!add_tensor(value.toTensor(), written, i, -1)) return false;
    } else if (role == Role::kTensorList && !value.isNone()) {
      const auto items = value.toListRef();
      words.push_back(word(kList, items.size()));
      for (size_t k = 0; k < items.size(); ++k) {
        if (items[k].isNone()) {
          words.push_back(word(kNone));
        } else if (!add_tensor(items[k].toTensor(), written, i, static_cast<int>(k))) {
          return false;
        }
      }
    } else if (role == Role::kNumber) {
      add_number(value);
    } else if (!add_value(value)) {
      return false;
    }
  }
  if (core < 0) return false;
  // Operators that write refuse operands that overlap, so where views of one storage lie matters.
  if (signature.writes && storages.size() < tensors.size()) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto first = std::find(storage_of.begin(), storage_of.end(), storage_of[i]);
      const auto* with = tensors[static_cast<size_t>(first - storage_of.begin())];
      words.append({word(kOverlap, i),
                    static_cast<uint64_t>(tensors[i]->storage_offset() - with->storage_offset())});
    }
  }
  words.append({word(kState), process_state()});
  return true;
}

std::vector<uint64_t> CallKey::family() const {
  std::vector<uint64_t> kept;
  for (size_t i = 0; i < words.size(); ++i) {
    const uint64_t rest = words[i] & (word(Tag{1}) - 1);
    kept.push_back(words[i]);
    switch (static_cast<Tag>(words[i] >> 56)) {
      case kDevice:
        i += 2 * (rest >> 24);  // sizes and strides
        break;
      case kInts:
        i += rest;
        break;
      case kInt:
      case kOverlap:
        ++i;
        break;
      case kDouble:
      case kState:
        kept.push_back(words[++i]);
        break;
      case kComplex:
        kept.insert(kept.end(), {words[i + 1], words[i + 2]});
        i += 2;
        break;
      case kDoubles:
      case kBools:
        for (uint64_t n = 0; n < rest; ++n) kept.push_back(words[++i]);
        break;
      case kString:
        for (uint64_t n = 0; n < rest; n += sizeof(uint64_t)) kept.push_back(words[++i]);
        break;
      default:
        break;
    }
  }
  return kept;
}

uint64_t CallKey::hash() const {
  uint64_t h = 0x9e3779b97f4a7c15ULL;
  for (const uint64_t each : words) {
    h = (h ^ each) * 0xff51afd7ed558ccdULL;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace torch_neuronx::queue
