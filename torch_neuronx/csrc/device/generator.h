// The device's random number generator: counter based (Philox), so a state is a seed and an offset
// and a result depends on them alone, never on the number of threads.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>
#include <optional>

namespace torch_neuronx {

struct PhiloxState {
  uint64_t seed;
  uint64_t offset;  // a multiple of 4
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

  // The caller holds mutex_.
  PhiloxState philox() const { return state_; }
  void advance() { state_.offset += 4; }

 private:
  NeuronGenerator* clone_impl() const override;
  PhiloxState state_;
};

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);

// `generator`, or the default one of core `index`; throws for a generator of another device.
at::Generator choose_generator(const std::optional<at::Generator>& generator,
                               c10::DeviceIndex index);

// While alive, what this thread draws is drawn from `state`, which was taken from a generator when
// the operator was issued.
class GivenDraws {
 public:
  explicit GivenDraws(PhiloxState* state);
  ~GivenDraws();
  GivenDraws(const GivenDraws&) = delete;
  GivenDraws& operator=(const GivenDraws&) = delete;
  static PhiloxState* current();

 private:
  PhiloxState* const outer_;
};

// Takes the numbers of `draws` calls of with_philox() from a generator.
PhiloxState take_draws(at::Generator generator, uint64_t draws);

// How many calls of with_philox() this thread has made.
uint64_t draws_of_thread();
namespace detail {
void count_draw();
}

// Calls draw(state) with the generator locked. The offset advances by 4, the least that it can,
// whatever is drawn: each offset has numbers of its own (kernels/philox.h).
template <class Draw>
void with_philox(const std::optional<at::Generator>& generator, c10::DeviceIndex index, Draw draw) {
  if (PhiloxState* given = GivenDraws::current()) {
    draw(*given);
    given->offset += 4;
    return;
  }
  detail::count_draw();
  at::Generator chosen = choose_generator(generator, index);
  std::lock_guard<std::mutex> lock(chosen.mutex());
  auto* impl = chosen.get<NeuronGenerator>();
  draw(impl->philox());
  impl->advance();
}

// A CPU generator whose stream is a function of the device generator's state, for random operators
// that run their CPU kernel. Right after manual_seed(s) it is what the CPU's own generator is after
// manual_seed(s), so such an operator then gives the CPU's numbers.
at::Generator host_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex index);

}  // namespace torch_neuronx
