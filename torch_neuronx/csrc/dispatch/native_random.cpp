// Random operators on the device's own counter-based generator. Argument checks are PyTorch's
// (DistributionTemplates.h); the numbers are kernels/philox.h's.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randperm.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>

#include "device/generator.h"
#include "device/state.h"
#include "dispatch/dropout.h"
#include "dispatch/host_call.h"
#include "dispatch/native.h"
#include "kernels/mersenne.h"
#include "kernels/philox.h"
#include "memory/allocator.h"

namespace torch_neuronx {
namespace {

using OptionalGenerator = std::optional<at::Generator>;

// A neuron generator brings a tensor of any device here.
void check_place(const at::Tensor& t) {
  TORCH_CHECK(on_neuron(t), "Expected a '", t.device().type(),
              "' device type for generator but found 'neuron'");
}

// Whether a tensor is the CPU's: then `generator`, which is a core's, is replaced by a CPU
// generator in that state, and the CPU draws. Libraries that draw on the CPU for this device pass
// the generator on that their user made for it (diffusers' randn_tensor). Right after manual_seed
// the numbers are those of a CPU generator with that seed.
bool drawn_by_cpu(const at::Tensor& t, OptionalGenerator& generator) {
  if (!t.is_cpu() || !generator.has_value() || !generator->defined()) return false;
  generator = host_generator(generator, generator->device().index());
  return true;
}

// Calls fill(state, contiguous tensor).
template <class Fill>
void fill_random(const at::Tensor& t, const OptionalGenerator& generator, Fill fill) {
  check_place(t);
  const at::Tensor target = t.is_contiguous() ? t : at::empty_like(t, at::MemoryFormat::Contiguous);
  if (t.numel() == 0) return;
  with_philox(generator, t.device().index(), [&](PhiloxState state) {
    fill(kernels::PhiloxState{state.seed, state.offset}, target);
  });
  if (!target.is_same(t)) {
    t.copy_(target);
  } else {
    mark_written(*t.storage().unsafeGetStorageImpl());
  }
}

at::Tensor tensor_of(at::TensorIteratorBase& iter) { return at::Tensor(iter.tensor(0)); }
const at::Tensor& tensor_of(const at::Tensor& t) { return t; }

// The shape that PyTorch's templates expect of a distribution: default-constructible, called with
// an iterator or tensor, two parameters and a generator.
#define TN_TWO_PARAMETER(Name, function)                                                           \
  template <class>                                                                                 \
  struct Name {                                                                                    \
    template <class Target>                                                                        \
    void operator()(Target& target, double a, double b, const OptionalGenerator& generator) {      \
      fill_random(tensor_of(target), generator, [&](kernels::PhiloxState s, const at::Tensor& t) { \
        kernels::function(s, t.scalar_type(), t.mutable_data_ptr(), t.numel(), a, b);              \
      });                                                                                          \
    }                                                                                              \
  };
#define TN_ONE_PARAMETER(Name, function)                                                           \
  template <class>                                                                                 \
  struct Name {                                                                                    \
    template <class Target>                                                                        \
    void operator()(Target& target, double a, const OptionalGenerator& generator) {                \
      fill_random(tensor_of(target), generator, [&](kernels::PhiloxState s, const at::Tensor& t) { \
        kernels::function(s, t.scalar_type(), t.mutable_data_ptr(), t.numel(), a);                 \
      });                                                                                          \
    }                                                                                              \
  };
TN_TWO_PARAMETER(Uniform, philox_uniform)
TN_TWO_PARAMETER(Normal, philox_normal)
TN_TWO_PARAMETER(LogNormal, philox_log_normal)
TN_TWO_PARAMETER(Cauchy, philox_cauchy)
TN_ONE_PARAMETER(Exponential, philox_exponential)
TN_ONE_PARAMETER(Geometric, philox_geometric)
TN_ONE_PARAMETER(BernoulliScalar, philox_bernoulli)
#undef TN_TWO_PARAMETER
#undef TN_ONE_PARAMETER

template <class>
struct BernoulliTensor {
  void operator()(const at::Tensor& self, const at::Tensor& p, const OptionalGenerator& generator) {
    TORCH_CHECK_NOT_IMPLEMENTED(p.is_floating_point(), "\"bernoulli\" not implemented for '",
                                c10::toString(p.scalar_type()), "' as probabilities");
    const at::Tensor wide = p.to(self.device(), at::kDouble).expand_as(self).contiguous();
    TORCH_CHECK(
        wide.numel() == 0 || (wide.min().item<double>() >= 0 && wide.max().item<double>() <= 1),
        "Expected all elements of p to be in [0, 1]");
    fill_random(self, generator, [&](kernels::PhiloxState s, const at::Tensor& t) {
      kernels::philox_bernoulli_tensor(s, t.scalar_type(), t.mutable_data_ptr(), at::kDouble,
                                       wide.const_data_ptr(), t.numel());
    });
  }
};

template <class>
struct RandomFull {
  void operator()(at::TensorIteratorBase& iter, const OptionalGenerator& generator) {
    fill_random(tensor_of(iter), generator, [&](kernels::PhiloxState s, const at::Tensor& t) {
      kernels::philox_random_full(s, t.scalar_type(), t.mutable_data_ptr(), t.numel());
    });
  }
};

template <class>
struct RandomFromTo {
  void operator()(at::TensorIteratorBase& iter, uint64_t range, int64_t base,
                  const OptionalGenerator& generator) {
    fill_random(tensor_of(iter), generator, [&](kernels::PhiloxState s, const at::Tensor& t) {
      kernels::philox_random_from_to(s, t.scalar_type(), t.mutable_data_ptr(), t.numel(), range,
                                     base);
    });
  }
  // The whole 64-bit range.
  void operator()(at::TensorIteratorBase& iter, const OptionalGenerator& generator) {
    (*this)(iter, 0, std::numeric_limits<int64_t>::min(), generator);
  }
};

namespace templates = at::native::templates;
using G = NeuronGenerator;

at::Tensor& uniform(at::Tensor& self, double from, double to, OptionalGenerator generator) {
  if (drawn_by_cpu(self, generator)) return self.uniform_(from, to, generator);
  return templates::uniform_impl_<Uniform, G>(self, from, to, std::move(generator));
}
at::Tensor& normal(at::Tensor& self, double mean, double std, OptionalGenerator generator) {
  if (drawn_by_cpu(self, generator)) return self.normal_(mean, std, generator);
  return templates::normal_impl_<Normal, G>(self, mean, std, std::move(generator));
}
at::Tensor& log_normal(at::Tensor& self, double mean, double std, OptionalGenerator generator) {
  if (drawn_by_cpu(self, generator)) return self.log_normal_(mean, std, generator);
  return templates::log_normal_impl_<LogNormal, G>(self, mean, std, std::move(generator));
}
at::Tensor& cauchy(at::Tensor& self, double median, double sigma, OptionalGenerator generator) {
  if (drawn_by_cpu(self, generator)) return self.cauchy_(median, sigma, generator);
  return templates::cauchy_impl_<Cauchy, G>(self, median, sigma, std::move(generator));
}
at::Tensor& exponential(at::Tensor& self, double lambda, OptionalGenerator generator) {
  if (drawn_by_cpu(self, generator)) return self.exponential_(lambda, generator);
  return templates::exponential_impl_<Exponential, G>(self, lambda, std::move(generator));
}
at::Tensor& geometric(at::Tensor& self, double p, OptionalGenerator generator) {
  if (drawn_by_cpu(self, generator)) return self.geometric_(p, generator);
  return templates::geometric_impl_<Geometric, G>(self, p, std::move(generator));
}
at::Tensor& bernoulli_scalar(at::Tensor& self, double p, OptionalGenerator generator) {
  if (drawn_by_cpu(self, generator)) return self.bernoulli_(p, generator);
  return templates::bernoulli_impl_<BernoulliScalar, G>(self, p, std::move(generator));
}
at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, OptionalGenerator generator) {
  if (drawn_by_cpu(self, generator)) return self.bernoulli_(p, generator);
  return templates::bernoulli_impl_<BernoulliTensor, G>(self, p, std::move(generator));
}
at::Tensor& bernoulli_out(const at::Tensor& self, OptionalGenerator generator, at::Tensor& out) {
  return templates::bernoulli_out_impl<BernoulliTensor, G>(out, self, std::move(generator));
}
at::Tensor& random_full(at::Tensor& self, OptionalGenerator generator) {
  if (drawn_by_cpu(self, generator)) return self.random_(generator);
  return templates::random_impl<RandomFull, G>(self, std::move(generator));
}
at::Tensor& random_from(at::Tensor& self, int64_t from, std::optional<int64_t> to,
                        OptionalGenerator generator) {
  if (drawn_by_cpu(self, generator)) return self.random_(from, to, generator);
  return templates::random_from_to_impl<RandomFromTo, G>(self, from, to, std::move(generator));
}
at::Tensor& random_to(at::Tensor& self, int64_t to, OptionalGenerator generator) {
  return random_from(self, 0, to, std::move(generator));
}
at::Tensor normal_tensor_double(const at::Tensor& mean, double std, OptionalGenerator generator) {
  return templates::normal_impl<Normal, G>(mean, std, std::move(generator));
}
at::Tensor normal_double_tensor(double mean, const at::Tensor& std, OptionalGenerator generator) {
  return templates::normal_impl<Normal, G>(mean, std, std::move(generator));
}
at::Tensor normal_tensor_tensor(const at::Tensor& mean, const at::Tensor& std,
                                OptionalGenerator generator) {
  return templates::normal_impl<Normal, G>(mean, std, std::move(generator));
}
at::Tensor& normal_tensor_double_out(const at::Tensor& mean, double std,
                                     OptionalGenerator generator, at::Tensor& out) {
  return templates::normal_out_impl<Normal, G>(out, mean, std, std::move(generator));
}
at::Tensor& normal_double_tensor_out(double mean, const at::Tensor& std,
                                     OptionalGenerator generator, at::Tensor& out) {
  return templates::normal_out_impl<Normal, G>(out, mean, std, std::move(generator));
}
at::Tensor& normal_tensor_tensor_out(const at::Tensor& mean, const at::Tensor& std,
                                     OptionalGenerator generator, at::Tensor& out) {
  return templates::normal_out_impl<Normal, G>(out, mean, std, std::move(generator));
}

at::Tensor& randperm_out(int64_t n, OptionalGenerator generator, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  if (drawn_by_cpu(out, generator)) return at::randperm_out(out, n, generator);
  at::native::check_supported_max_int_with_precision(n, out);
  out.resize_({n});
  if (n > 0) {
    fill_random(out, generator, [&](kernels::PhiloxState s, const at::Tensor& t) {
      kernels::philox_randperm(s, t.scalar_type(), t.mutable_data_ptr(), n);
    });
  }
  return out;
}

// Whether at::bernoulli_ gives what the kernel does: on Intel's processors MKL draws, other
// numbers.
bool cpu_draws_by_mersenne() {
  static const bool same = [] {
    constexpr int64_t kCount = 2000;  // some 1,000 bits that would have to agree by chance
    constexpr uint64_t kSeed = 20261;
    const c10::InferenceMode guard;  // this is nobody's graph, mode or profile
    const at::DisableRecordFunctionGuard quiet;
    const at::Tensor drawn = at::empty({kCount}, at::kBool);
    drawn.bernoulli_(0.5, at::make_generator<at::CPUGeneratorImpl>(kSeed));
    bool ours[kCount];
    kernels::mersenne_bernoulli(kSeed, 0.5, ours, kCount);
    return std::equal(ours, ours + kCount, drawn.const_data_ptr<bool>());
  }();
  return same;
}

// x * keep * scale, in one pass where ATen, which converts `keep` first, makes three.
void scale_kept(const float* x, const bool* keep, float scale, float* out, int64_t count) {
  at::parallel_for(0, count, at::internal::GRAIN_SIZE, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = x[i] * static_cast<float>(keep[i]) * scale;
  });
}

std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double p,
                                           std::optional<bool> train) {
  if (!train.value_or(true) || input.numel() == 0) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const auto index = input.device().index();
  return run_on_host(index, [&](HostArgs& host) {
    const at::Tensor x = host(input);
    const at::Tensor keep = at::empty_like(x, x.options().dtype(at::kBool));
    draw_kept(keep, p, index);
    const double scale = dropout_scale(p);
    if (x.scalar_type() != at::kFloat || !x.is_contiguous())
      return std::make_tuple(x.mul(keep).mul_(scale), keep);
    at::Tensor out = at::empty_like(x);
    scale_kept(x.const_data_ptr<float>(), keep.const_data_ptr<bool>(), static_cast<float>(scale),
               out.mutable_data_ptr<float>(), x.numel());
    return std::make_tuple(out, keep);
  });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "uniform_", uniform);
  NEURON_IMPL(m, "normal_", normal);
  NEURON_IMPL(m, "log_normal_", log_normal);
  NEURON_IMPL(m, "cauchy_", cauchy);
  NEURON_IMPL(m, "exponential_", exponential);
  NEURON_IMPL(m, "geometric_", geometric);
  NEURON_IMPL(m, "bernoulli_.float", bernoulli_scalar);
  NEURON_IMPL(m, "bernoulli_.Tensor", bernoulli_tensor);
  NEURON_IMPL(m, "bernoulli.out", bernoulli_out);
  NEURON_IMPL(m, "random_", random_full);
  NEURON_IMPL(m, "random_.from", random_from);
  NEURON_IMPL(m, "random_.to", random_to);
  NEURON_IMPL(m, "normal.Tensor_float", normal_tensor_double);
  NEURON_IMPL(m, "normal.float_Tensor", normal_double_tensor);
  NEURON_IMPL(m, "normal.Tensor_Tensor", normal_tensor_tensor);
  NEURON_IMPL(m, "normal.Tensor_float_out", normal_tensor_double_out);
  NEURON_IMPL(m, "normal.float_Tensor_out", normal_double_tensor_out);
  NEURON_IMPL(m, "normal.Tensor_Tensor_out", normal_tensor_tensor_out);
  NEURON_IMPL(m, "randperm.generator_out", randperm_out);
  NEURON_IMPL(m, "native_dropout", dropout);
}

}  // namespace

// Drawn as the CPU's dropout draws it, so that a seeded model drops the same elements on both.
void draw_kept(const at::Tensor& keep, double p, c10::DeviceIndex core) {
  const at::Generator generator = host_generator(std::nullopt, core);
  const bool known = p >= 0 && p <= 1 && keep.is_non_overlapping_and_dense();
  if (!known || !cpu_draws_by_mersenne()) {
    keep.bernoulli_(1 - p, generator);
    return;
  }
  kernels::mersenne_bernoulli(generator.current_seed(), 1 - p, keep.mutable_data_ptr<bool>(),
                              keep.numel());
}

double dropout_scale(double p) { return p == 1 ? 0.0 : 1.0 / (1.0 - p); }

}  // namespace torch_neuronx
