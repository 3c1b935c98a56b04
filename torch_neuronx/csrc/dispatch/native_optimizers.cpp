// Fused SGD in 16 bits. PyTorch's CPU kernel (2.13) gives wrong parameters and momenta there, as
// soon as there is momentum and a tensor has as many elements as one of its vectors. So the step is
// made in float32, like those of CUDA's kernel, and what is stored is rounded once.
#include <ATen/ops/_fused_sgd.h>
#include <torch/library.h>

#include "dispatch/host_call.h"
#include "dispatch/native.h"
#include "dispatch/trusting.h"

namespace torch_neuronx {
namespace {

bool narrow(const at::Tensor& t) { return at::isReducedFloatingType(t.scalar_type()); }

// A float32 copy for the time of a step.
class Wide {
 public:
  explicit Wide(const at::Tensor& t) : stored_(t), value_(t.to(at::kFloat)) {}
  at::TensorList list() const { return value_; }
  void store() const { stored_.copy_(value_); }

 private:
  at::Tensor stored_;
  at::Tensor value_;
};

// `Rate` is a number, or a reference to a tensor of one element.
template <class Rate>
void fused_sgd(at::TensorList params, at::TensorList grads, at::TensorList momenta,
               double weight_decay, double momentum, Rate rate, double dampening, bool nesterov,
               bool maximize, bool is_first_step, const std::optional<at::Tensor>& grad_scale,
               const std::optional<at::Tensor>& found_inf) {
  if (params.empty()) return;
  run_on_host(params[0].device().index(), [&](HostArgs& host) {
    const auto aliases = [&](at::TensorList list) {
      std::vector<at::Tensor> found;
      for (const at::Tensor& t : list) found.push_back(host.written(t));
      return found;
    };
    const auto scale = host(grad_scale), bad = host(found_inf);
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sgd_", "");
    torch::jit::Stack call{
        aliases(params), aliases(grads), aliases(momenta), weight_decay,  momentum, 0.0,
        dampening,       nesterov,       maximize,         is_first_step, scale,    bad};
    const StandIns stand_ins = meet(*demands_of(op), op, call);
    const auto p = call[0].toTensorVector(), g = call[1].toTensorVector(),
               m = call[2].toTensorVector();
    const auto step = [&](at::TensorList self, at::TensorList gradients, at::TensorList moving) {
      if constexpr (std::is_same_v<Rate, double>) {
        at::_fused_sgd_(self, gradients, moving, weight_decay, momentum, rate, dampening, nesterov,
                        maximize, is_first_step, scale, bad);
      } else {
        at::_fused_sgd_(self, gradients, moving, weight_decay, momentum, host(rate), dampening,
                        nesterov, maximize, is_first_step, scale, bad);
      }
    };
    if (std::none_of(p.begin(), p.end(), narrow)) {
      step(p, g, m);
    } else {  // one by one, so that no more than one is there twice
      for (size_t i = 0; i < p.size(); ++i) {
        TORCH_CHECK(g[i].scalar_type() == p[i].scalar_type() &&
                        (m.empty() || m[i].scalar_type() == p[i].scalar_type()),
                    "_fused_sgd_: a parameter, its gradient and its momentum must have one dtype, "
                    "but parameter ",
                    i, " has ", p[i].scalar_type(), " and its gradient ", g[i].scalar_type());
        const Wide param(p[i]), grad(g[i]);
        const auto moving = m.empty() ? std::nullopt : std::optional<Wide>(m[i]);
        step(param.list(), grad.list(), moving ? moving->list() : at::TensorList());
        param.store();
        if (scale.has_value()) grad.store();  // without its scale
        if (moving) moving->store();
      }
    }
    stand_ins.store();
    return std::tuple<>();
  });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "_fused_sgd_", fused_sgd<double>);
  NEURON_IMPL(m, "_fused_sgd_.tensor_lr", fused_sgd<const at::Tensor&>);
}

}  // namespace
}  // namespace torch_neuronx
