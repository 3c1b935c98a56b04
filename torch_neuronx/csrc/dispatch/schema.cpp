#include "dispatch/schema.h"

namespace torch_neuronx {

c10::OperatorHandle find_operator(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == name.npos ? "" : name.substr(dot + 1).c_str());
}

c10::TypePtr strip_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

bool is_written(const c10::Argument& argument) {
  const auto* info = argument.alias_info();
  return info != nullptr && info->isWrite();
}

int written_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (!is_written(result)) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info != nullptr && *info == *result.alias_info()) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace torch_neuronx
