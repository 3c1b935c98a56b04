#include "dispatch/native.h"

#include <memory>
#include <utility>

namespace torch_neuronx::detail {
namespace {

class IssuingKernel final : public c10::OperatorKernel {
 public:
  IssuingKernel(const c10::OperatorHandle& op, c10::KernelFunction run)
      : issuer_(op, [run = std::move(run)](const c10::OperatorHandle& handle,
                                           c10::DispatchKeySet keys, torch::jit::Stack* stack) {
          run.callBoxed(handle, keys, stack);
        }) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    order_deferred();
    issuer_(op, keys, stack);
  }

 private:
  queue::Issuer issuer_;
};

}  // namespace

c10::OperatorHandle find_operator(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == name.npos ? "" : name.substr(dot + 1).c_str());
}

c10::BoxedKernel issuer_for(const c10::OperatorHandle& op, c10::KernelFunction run) {
  return c10::BoxedKernel::makeFromFunctor(std::make_unique<IssuingKernel>(op, std::move(run)));
}

}  // namespace torch_neuronx::detail
