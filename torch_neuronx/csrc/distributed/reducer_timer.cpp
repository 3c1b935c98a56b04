// When the phases of a DDP step began and ended, for DDP's own logging data. What an operator does on
// the device is done when it returns, so the host's clock says it.
#include <c10/core/Device.h>

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace torch_neuronx::distributed {
namespace {

class NeuronTimer final : public c10d::Timer {
 public:
  explicit NeuronTimer(c10::Device) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start);
    const int64_t to = getTimeRef(end);
    // A phase that ends before it begins belongs to two steps: one was cut short.
    if (from < 0 || to < from) return std::nullopt;
    return to - from;
  }
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, NeuronTimer);

}  // namespace
}  // namespace torch_neuronx::distributed
