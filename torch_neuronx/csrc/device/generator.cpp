#include "device/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/TensorBase.h>
#include <c10/util/irange.h>

#include <array>
#include <cstring>
#include <mutex>

#include "device/state.h"

namespace torch_neuronx {
namespace {
constexpr size_t kStateBytes = 2 * sizeof(uint64_t);
}

NeuronGenerator::NeuronGenerator(c10::DeviceIndex index)
    : c10::GeneratorImpl(c10::Device(kNeuron, index),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_{c10::default_rng_seed_val, 0} {}

c10::DeviceType NeuronGenerator::device_type() { return kNeuron; }

void NeuronGenerator::set_current_seed(uint64_t seed) { state_ = {seed, 0}; }
void NeuronGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4, but got ", offset);
  state_.offset = offset;
}
uint64_t NeuronGenerator::get_offset() const { return state_.offset; }
uint64_t NeuronGenerator::current_seed() const { return state_.seed; }

uint64_t NeuronGenerator::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom();
  set_current_seed(random);
  return random;
}

void NeuronGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "RNG state of a neuron generator must have ",
              kStateBytes, " bytes (seed and offset), but got ", state.numel());
  uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  set_current_seed(words[0]);
  set_offset(words[1]);
}

c10::intrusive_ptr<c10::TensorImpl> NeuronGenerator::get_state() const {
  at::TensorBase tensor =
      at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::kByte, std::nullopt,
                            std::nullopt, std::nullopt, std::nullopt);
  const uint64_t words[2] = {state_.seed, state_.offset};
  std::memcpy(tensor.mutable_data_ptr(), words, kStateBytes);
  return tensor.getIntrusivePtr();
}

NeuronGenerator* NeuronGenerator::clone_impl() const {
  auto* copy = new NeuronGenerator(device().index());
  copy->state_ = state_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static const auto generators = [] {
    std::array<at::Generator, kMaxDevices> all;
    for (const auto i : c10::irange(kMaxDevices))
      all[static_cast<size_t>(i)] =
          at::make_generator<NeuronGenerator>(static_cast<c10::DeviceIndex>(i));
    return all;
  }();
  return generators[static_cast<size_t>(resolve_device_index(index))];
}

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<NeuronGenerator>(resolve_device_index(index));
}

at::Generator choose_generator(const std::optional<at::Generator>& generator,
                               c10::DeviceIndex index) {
  if (!generator.has_value() || !generator->defined()) return default_generator(index);
  TORCH_CHECK(generator->device().type() == kNeuron,
              "Expected a 'neuron' device type for generator but found '",
              generator->device().type(), "'");
  return *generator;
}

namespace {
thread_local PhiloxState* t_given = nullptr;
}
GivenDraws::GivenDraws(PhiloxState* state) : outer_(t_given) { t_given = state; }
GivenDraws::~GivenDraws() { t_given = outer_; }
PhiloxState* GivenDraws::current() { return t_given; }

namespace {
thread_local uint64_t t_draws = 0;
}
uint64_t draws_of_thread() { return t_draws; }
namespace detail {
void count_draw() { ++t_draws; }
}  // namespace detail

PhiloxState take_draws(at::Generator generator, uint64_t draws) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  auto* impl = generator.get<NeuronGenerator>();
  const PhiloxState state = impl->philox();
  for (uint64_t i = 0; i < draws; ++i) impl->advance();
  return state;
}

at::Generator host_generator(const std::optional<at::Generator>& generator,
                             c10::DeviceIndex index) {
  PhiloxState state{};
  with_philox(generator, index, [&](PhiloxState now) { state = now; });
  if (state.offset == 0) return at::make_generator<at::CPUGeneratorImpl>(state.seed);
  // splitmix64 of seed and offset: neighbouring states give unrelated Mersenne Twister streams.
  uint64_t z = state.seed + 0x9e3779b97f4a7c15ULL * (state.offset + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return at::make_generator<at::CPUGeneratorImpl>(z ^ (z >> 31));
}

}  // namespace torch_neuronx
