// The device's random number generator: counter based (Philox), so a state is a seed and an offset
// and a result depends on them alone, never on the number of threads.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <optional>

namespace torch_neuronx {

struct PhiloxState {
  uint64_t seed;
  uint64_t offset;  // 128-bit counters are consumed from here on
};

class NeuronGenerator final : public c10::GeneratorImpl {
 public:
  explicit NeuronGenerator(c10::DeviceIndex index);
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;  // CPU uint8[16]: seed, offset
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type();

  // Takes `counters` from the sequence; the caller holds mutex_.
  PhiloxState advance(uint64_t counters);

 private:
  NeuronGenerator* clone_impl() const override;
  PhiloxState state_;
};

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);

// The state for one random operator that uses up to `counters`, from `generator` or the default one
// of core `index`. Locks the generator.
PhiloxState take(const std::optional<at::Generator>& generator, c10::DeviceIndex index,
                 uint64_t counters);

}  // namespace torch_neuronx
