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

c10::BoxedKernel issuer_for(const c10::OperatorHandle& op, c10::KernelFunction run) {
  return c10::BoxedKernel::makeFromFunctor(std::make_unique<IssuingKernel>(op, std::move(run)));
}

}  // namespace torch_neuronx::detail
