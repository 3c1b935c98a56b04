// When the phases of a DDP step began and ended, for DDP's own logging data. What an operator does
// on the device is done when it returns, so the host's clock says it.
#include <c10/core/Device.h>

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace c10d {  // where the registry's own names are looked for
namespace {

class NeuronTimer final : public Timer {
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
}  // namespace c10d
