// The hottest pointwise operators, without aliases, and fills and copies of plain memory.
#include <ATen/Parallel.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/ops/add.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/div.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sub_native.h>
#include <torch/library.h>

#include <cstring>

#include "dispatch/host_call.h"
#include "dispatch/native.h"
#include "dispatch/structured.h"

namespace torch_neuronx {
namespace {

template <class Impl, class... Extra>
at::Tensor functional(const at::Tensor& self, const at::Tensor& other, const Extra&... extra) {
  Functional<Impl> op;
  op.meta(self, other, extra...);
  op.impl(self, other, extra..., op.out);
  return std::move(op.out);
}

template <class Impl, class... Extra>
at::Tensor& in_place(at::Tensor& self, const at::Tensor& other, const Extra&... extra) {
  InPlace<Impl> op(self);
  op.meta(self, other, extra...);
  op.impl(self, other, extra..., self);
  mark_written(*self.storage().unsafeGetStorageImpl());
  return self;
}

using AddImpl = at::native::structured_ufunc_add_CPU;
using SubImpl = at::native::structured_sub_out;
using MulImpl = at::native::structured_mul_out;
using DivImpl = at::native::structured_div_out;

// The direct path does no type conversion: ATen's iterator converts operands for CPU kernels only
// when it sees CPU tensors.
bool direct(const at::Tensor& a, const at::Tensor& b) { return a.scalar_type() == b.scalar_type(); }
bool direct_div(const at::Tensor& a, const at::Tensor& b) {
  return direct(a, b) &&
         (c10::isFloatingType(a.scalar_type()) || c10::isComplexType(a.scalar_type()));
}
template <class Fn>
at::Tensor converted(const at::Tensor& a, const at::Tensor& b, Fn fn) {
  return run_on_host(core_of(a, b), [&](HostArgs& host) { return fn(host(a), host(b)); });
}
template <class Fn>
at::Tensor& converted_(at::Tensor& a, const at::Tensor& b, Fn fn) {
  (void)run_on_host(a.device().index(), [&](HostArgs& host) {
    at::Tensor self = host.written(a);
    fn(self, host(b));
    return self;
  });
  return a;
}

at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha) {
  if (C10_LIKELY(direct(a, b))) return functional<AddImpl>(a, b, alpha);
  return converted(a, b, [&](const auto& x, const auto& y) { return at::add(x, y, alpha); });
}
at::Tensor& add_(at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha) {
  if (C10_LIKELY(direct(a, b))) return in_place<AddImpl>(a, b, alpha);
  return converted_(a, b, [&](auto& x, const auto& y) { x.add_(y, alpha); });
}
at::Tensor sub(const at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha) {
  if (C10_LIKELY(direct(a, b))) return functional<SubImpl>(a, b, alpha);
  return converted(a, b, [&](const auto& x, const auto& y) { return at::sub(x, y, alpha); });
}
at::Tensor& sub_(at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha) {
  if (C10_LIKELY(direct(a, b))) return in_place<SubImpl>(a, b, alpha);
  return converted_(a, b, [&](auto& x, const auto& y) { x.sub_(y, alpha); });
}
at::Tensor mul(const at::Tensor& a, const at::Tensor& b) {
  if (C10_LIKELY(direct(a, b))) return functional<MulImpl>(a, b);
  return converted(a, b, [](const auto& x, const auto& y) { return at::mul(x, y); });
}
at::Tensor& mul_(at::Tensor& a, const at::Tensor& b) {
  if (C10_LIKELY(direct(a, b))) return in_place<MulImpl>(a, b);
  return converted_(a, b, [](auto& x, const auto& y) { x.mul_(y); });
}
at::Tensor div(const at::Tensor& a, const at::Tensor& b) {
  if (C10_LIKELY(direct_div(a, b))) return functional<DivImpl>(a, b);
  return converted(a, b, [](const auto& x, const auto& y) { return at::div(x, y); });
}
at::Tensor& div_(at::Tensor& a, const at::Tensor& b) {
  if (C10_LIKELY(direct_div(a, b))) return in_place<DivImpl>(a, b);
  return converted_(a, b, [](auto& x, const auto& y) { x.div_(y); });
}

// Fills with zero bytes, in parallel when there is enough of them.
at::Tensor& zero_(at::Tensor& self) {
  if (!self.is_non_overlapping_and_dense()) return self.fill_(0);
  auto* data = static_cast<char*>(self.mutable_data_ptr());
  constexpr int64_t kGrain = 1 << 20;
  at::parallel_for(0, static_cast<int64_t>(self.nbytes()), kGrain, [&](int64_t begin, int64_t end) {
    std::memset(data + begin, 0, static_cast<size_t>(end - begin));
  });
  mark_written(*self.storage().unsafeGetStorageImpl());
  return self;
}

// The CPU's kernels under the device's name: they read and write through data pointers.
template <class Stub, class... Args>
struct Forward {
  static inline Stub* stub = nullptr;
  static void call(Args... args) { (*stub)(at::kCPU, args...); }
  static bool install(Stub& s) {
    stub = &s;
    s.set_privateuse1_dispatch_ptr(&call);
    return true;
  }
};
[[maybe_unused]] const bool g_stubs_installed =
    Forward<decltype(at::native::add_stub), at::TensorIteratorBase&, const at::Scalar&>::install(
        at::native::add_stub) &&
    Forward<decltype(at::native::mul_stub), at::TensorIteratorBase&>::install(
        at::native::mul_stub) &&
    Forward<decltype(at::native::div_true_stub), at::TensorIteratorBase&>::install(
        at::native::div_true_stub);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "add.Tensor", add);
  NEURON_IMPL(m, "add_.Tensor", add_);
  NEURON_IMPL(m, "sub.Tensor", sub);
  NEURON_IMPL(m, "sub_.Tensor", sub_);
  NEURON_IMPL(m, "mul.Tensor", mul);
  NEURON_IMPL(m, "mul_.Tensor", mul_);
  NEURON_IMPL(m, "div.Tensor", div);
  NEURON_IMPL(m, "div_.Tensor", div_);
  NEURON_IMPL(m, "zero_", zero_);
}

}  // namespace
}  // namespace torch_neuronx
