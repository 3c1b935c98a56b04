// What an operator's schema says, in the words that those who read schemas share.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace torch_neuronx {

// The operator of a name with its overload: "aten::add.Tensor".
c10::OperatorHandle find_operator(const std::string& name);

inline bool is_aten(const c10::OperatorName& name) { return name.name.rfind("aten::", 0) == 0; }

inline bool is_tensor(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType;
}

// T of an optional T; any other type as it is.
c10::TypePtr strip_optional(const c10::TypePtr& type);

// Whether an operator writes to an argument.
bool is_written(const c10::Argument& argument);

// The argument that a result is (of operators in place and with out=), or -1.
int written_argument(const c10::FunctionSchema& schema, const c10::Argument& result);

}  // namespace torch_neuronx
