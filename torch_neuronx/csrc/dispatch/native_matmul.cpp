// Matrix products: our tiled kernels (gemm/) where they are at least as fast as ATen's, else
// ATen's.
#include <ATen/ops/addmm.h>
#include <ATen/ops/addr.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "dispatch/host_call.h"
#include "dispatch/native.h"
#include "gemm/aten_gemm.h"
#include "memory/allocator.h"
#include "registry/registry.h"

namespace torch_neuronx {
namespace {

// Operands that our kernels take together: a host tensor that stands for a number goes to ATen, and
// so does what ATen refuses.
template <class... Rest>
bool together(const at::Tensor& first, const Rest&... rest) {
  return ((rest.device() == first.device() && rest.scalar_type() == first.scalar_type()) && ...);
}

template <class Fn>
at::Tensor& host_out(at::Tensor& out, Fn fn) {
  (void)run_on_host(out.device().index(), [&](HostArgs& host) {
    at::Tensor target = host.written(out);
    fn(host, target);
    return target;
  });
  return out;
}

at::Tensor& wrote(at::Tensor& out) {
  mark_written(*out.storage().unsafeGetStorageImpl());
  return out;
}

// `out` is the product of `a` and something else, and done.
at::Tensor& counted(at::Tensor& out, const at::Tensor& a) {
  registry::count_flops(2.0 * static_cast<double>(out.numel()) * static_cast<double>(a.size(-1)));
  return out;
}

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (a.dim() == 2 && b.dim() == 2 && together(a, b, out) && out.dim() == 2 &&
      out.size(0) == a.size(0) && out.size(1) == b.size(1) &&
      gemm::try_addmm(out, {}, a, b, 0, 1, generation_of(*b.storage().unsafeGetStorageImpl()))) {
    return counted(wrote(out), a);
  }
  (void)host_out(out, [&](HostArgs& host, at::Tensor& o) { at::mm_out(o, host(a), host(b)); });
  return counted(out, a);
}
at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 2, "self must be a matrix");
  TORCH_CHECK(b.dim() == 2, "mat2 must be a matrix");
  at::Tensor out = empty_on(core_of(a, b), {a.size(0), b.size(1)}, {}, a.scalar_type());
  return mm_out(a, b, out);
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                      const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  if (a.dim() == 2 && b.dim() == 2 && together(a, b, self, out) && out.dim() == 2 &&
      out.size(0) == a.size(0) && out.size(1) == b.size(1) &&
      gemm::try_addmm(out, self, a, b, beta, alpha,
                      generation_of(*b.storage().unsafeGetStorageImpl()))) {
    return counted(wrote(out), a);
  }
  (void)host_out(out, [&](HostArgs& host, at::Tensor& o) {
    at::addmm_out(o, host(self), host(a), host(b), beta, alpha);
  });
  return counted(out, a);
}
at::Tensor addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  TORCH_CHECK(a.dim() == 2, "mat1 must be a matrix, got ", a.dim(), "-D tensor");
  TORCH_CHECK(b.dim() == 2, "mat2 must be a matrix, got ", b.dim(), "-D tensor");
  at::Tensor out = empty_on(core_of(a, b), {a.size(0), b.size(1)}, {}, a.scalar_type());
  return addmm_out(self, a, b, beta, alpha, out);
}
at::Tensor& addmm_(at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                   const at::Scalar& beta, const at::Scalar& alpha) {
  const bool fits =
      a.dim() == 2 && b.dim() == 2 && self.sizes() == at::IntArrayRef({a.size(0), b.size(1)});
  if (fits) return addmm_out(self, a, b, beta, alpha, self);
  // As out= it would be resized; ATen's own refuses it.
  return host_out(self,
                  [&](HostArgs& host, at::Tensor& o) { o.addmm_(host(a), host(b), beta, alpha); });
}

bool batched(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  return a.dim() == 3 && b.dim() == 3 && out.dim() == 3 && together(a, b, out) &&
         out.size(0) == a.size(0) && out.size(1) == a.size(1) && out.size(2) == b.size(2) &&
         a.size(0) == b.size(0);
}

at::Tensor& bmm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (batched(a, b, out) && gemm::try_bmm(out, a, b)) return counted(wrote(out), a);
  (void)host_out(out, [&](HostArgs& host, at::Tensor& o) { at::bmm_out(o, host(a), host(b)); });
  return counted(out, a);
}
at::Tensor bmm(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(b.dim() == 3, "batch2 must be a 3D tensor");
  at::Tensor out = empty_on(core_of(a, b), {a.size(0), a.size(1), b.size(2)}, {}, a.scalar_type());
  return bmm_out(a, b, out);
}

at::Tensor& baddbmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                        const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  if (batched(a, b, out) && together(a, self) && gemm::try_baddbmm(out, self, a, b, beta, alpha))
    return counted(wrote(out), a);
  (void)host_out(out, [&](HostArgs& host, at::Tensor& o) {
    at::baddbmm_out(o, host(self), host(a), host(b), beta, alpha);
  });
  return counted(out, a);
}
at::Tensor baddbmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                   const at::Scalar& beta, const at::Scalar& alpha) {
  TORCH_CHECK(a.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(b.dim() == 3, "batch2 must be a 3D tensor");
  at::Tensor out = empty_on(core_of(a, b), {a.size(0), a.size(1), b.size(2)}, {}, a.scalar_type());
  return baddbmm_out(self, a, b, beta, alpha, out);
}
at::Tensor& baddbmm_(at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                     const at::Scalar& beta, const at::Scalar& alpha) {
  const bool fits = a.dim() == 3 && b.dim() == 3 &&
                    self.sizes() == at::IntArrayRef({a.size(0), a.size(1), b.size(2)});
  if (fits) return baddbmm_out(self, a, b, beta, alpha, self);
  return host_out(
      self, [&](HostArgs& host, at::Tensor& o) { o.baddbmm_(host(a), host(b), beta, alpha); });
}

// PyTorch's calls addr.out with `self` twice. That operator knows by its references that it works
// in place; behind the boxed kernel they are two, and `self` would be resized.
at::Tensor& addr_(at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                  const at::Scalar& beta, const at::Scalar& alpha) {
  TORCH_CHECK(self.dim() == 2, "2D tensor expected, got ", self.dim(), "D tensor for input");
  TORCH_CHECK(self.size(0) == a.numel() && self.size(1) == b.numel(),
              "size mismatch, input: ", self.sizes(), ", v1: ", a.sizes(), ", v2: ", b.sizes());
  return at::addr_out(self, self, a, b, beta, alpha);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  NEURON_IMPL(m, "mm", mm);
  NEURON_IMPL(m, "mm.out", mm_out);
  NEURON_IMPL(m, "addmm", addmm);
  NEURON_IMPL(m, "addmm.out", addmm_out);
  NEURON_IMPL(m, "addmm_", addmm_);
  NEURON_IMPL(m, "addr_", addr_);
  NEURON_IMPL(m, "bmm", bmm);
  NEURON_IMPL(m, "bmm.out", bmm_out);
  NEURON_IMPL(m, "baddbmm", baddbmm);
  NEURON_IMPL(m, "baddbmm.out", baddbmm_out);
  NEURON_IMPL(m, "baddbmm_", baddbmm_);
}

}  // namespace
}  // namespace torch_neuronx
