#include "gemm/bindings_gemm.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "gemm/aten_gemm.h"
#include "gemm/methods.h"
#include "gemm/packed_b.h"
#include "gemm/probe.h"
#include "gemm/scratch.h"

namespace torch_neuronx::gemm {
namespace {

namespace py = pybind11;
using namespace pybind11::literals;  // "name"_a

at::Tensor undefined_or(const std::optional<at::Tensor>& t) { return t ? *t : at::Tensor(); }

void check_cpu(const at::Tensor& t, const char* name) {
  TORCH_CHECK(t.device().is_cpu(), name, " must be a CPU tensor, but is on ", t.device());
}

bool gemm_run(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
              const std::optional<at::Tensor>& c0, double alpha, double beta, uint64_t generation) {
  check_cpu(a, "a");
  check_cpu(b, "b");
  check_cpu(out, "out");
  if (c0) check_cpu(*c0, "c0");
  const py::gil_scoped_release nogil;
  if (out.dim() == 3) return try_baddbmm(out, undefined_or(c0), a, b, beta, alpha);
  return try_addmm(out, undefined_or(c0), a, b, beta, alpha, generation);
}

Method method_of(const std::string& name) {
  for (const Method method : {Method::kPanel, Method::kDot, Method::kStream}) {
    if (name == method_name(method)) return method;
  }
  TORCH_CHECK_VALUE(false, "method must be panel, dot or stream, got \"", name, "\"");
}

// False: the method does not apply. The rule and the probe are not asked.
bool gemm_run_method(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                     const std::optional<at::Tensor>& c0, double alpha, double beta,
                     const std::string& method, bool packed, uintptr_t epilogue) {
  const Method chosen = method_of(method);
  const py::gil_scoped_release nogil;
  auto p = problem_of(out, undefined_or(c0), a, b, beta, alpha);
  TORCH_CHECK_VALUE(p, "these operands do not make a problem");
  p->epilogue.function = reinterpret_cast<EpilogueFunction>(epilogue);
  if (p->batch == 0 || p->m == 0 || p->n == 0 || is_empty_sum(*p)) {
    run_with(*p, chosen);
    return true;
  }
  Problem q = normalised(*p);
  if (!applicable(q, chosen)) return false;
  if (packed && q.batch == 1) q.packed_b = pack(q);
  run_with(q, chosen);
  return true;
}

std::string gemm_method(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  const py::gil_scoped_release nogil;
  const auto p = problem_of(out, at::Tensor(), a, b, 0, 1);
  if (!p || !has_kernels(p->dtype)) return "aten";
  if (p->batch == 0 || p->m == 0 || p->n == 0 || p->k == 0) return "empty";
  return method_name(choose(normalised(*p)));
}

std::string gemm_probe_propose(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                               const std::string& method) {
  const py::gil_scoped_release nogil;
  const auto p = problem_of(out, at::Tensor(), a, b, 0, 1);
  TORCH_CHECK_VALUE(p && has_kernels(p->dtype), "no product that is measured");
  for (const Method candidate : {Method::kAten, Method::kPanel, Method::kDot, Method::kStream}) {
    const bool fits = candidate == Method::kAten || applicable(normalised(*p), candidate);
    if (fits && method == method_name(candidate))
      return method_name(propose_decision(normalised(*p), candidate));
  }
  TORCH_CHECK_VALUE(false, "no method for this product: ", method);
}

py::list gemm_probe_report() {
  py::list rows;
  for (const auto& [c, d] : decisions()) {
    rows.append(py::dict(
        "dtype"_a = c10::toString(c.dtype), "batch"_a = int(c.batch), "m"_a = int(c.m),
        "n"_a = int(c.n), "k"_a = int(c.k), "a_layout"_a = int(c.a), "b_layout"_a = int(c.b),
        "methods"_a = int(c.methods), "threads"_a = int(c.threads),
        "method"_a = method_name(d.method), "ours_us"_a = d.ours_us, "aten_us"_a = d.aten_us));
  }
  return rows;
}

py::dict gemm_cache_stats() {
  const CacheStats s = PackedCache::instance().stats();
  return py::dict("hits"_a = s.hits, "misses"_a = s.misses, "packed"_a = s.packed,
                  "evicted"_a = s.evicted, "entries"_a = s.entries, "bytes"_a = s.bytes,
                  "byte_limit"_a = s.byte_limit);
}

void gemm_clear() {
  PackedCache::instance().clear();
  forget_decisions();
  release_scratch();
}

py::dict gemm_kernels() {
  py::dict names;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Kernels* kernels = kernels_for(dtype);
    names[c10::toString(dtype)] = kernels == nullptr ? "none" : kernels->name;
  }
  return names;
}

}  // namespace

void bind_gemm(py::module& m) {
  m.def("gemm_run", &gemm_run, "a"_a, "b"_a, "out"_a, "c0"_a = py::none(), "alpha"_a = 1.0,
        "beta"_a = 0.0, "generation"_a = 0,
        "out = alpha * a @ b + beta * c0 on CPU tensors; False if ATen should do it");
  m.def(
      "gemm_run_method", &gemm_run_method, "a"_a, "b"_a, "out"_a, "c0"_a = py::none(),
      "alpha"_a = 1.0, "beta"_a = 0.0, "method"_a = "panel", "packed"_a = false, "epilogue"_a = 0,
      "The same with a method of the caller's choice; False if it does not apply. `epilogue`: the "
      "address of an EpilogueFunction that gets the sums instead of `out`");
  m.def("gemm_method", &gemm_method, "a"_a, "b"_a, "out"_a, "The method that gemm_run would take");
  m.def("gemm_kernels", &gemm_kernels, "Names of the micro-kernels in use, by dtype");
  m.def("gemm_probe_report", &gemm_probe_report, "What is decided so far, a dict per class");
  m.def("gemm_probe_path", &probe_file_path, "The decisions' file, or an empty string");
  m.def("gemm_probe_agreement", &agreement, "Equal in processes that decide alike");
  m.def("gemm_probe_keeps_rule", &keeps_rule, "Whether the fixed rule decides alone");
  m.def("gemm_probe_propose", &gemm_probe_propose, "a"_a, "b"_a, "out"_a, "method"_a,
        "As if `method` had been measured to be the fastest; the method that counts");
  m.def("gemm_cache_stats", &gemm_cache_stats, "Counters of the packed-weight cache");
  m.def("gemm_clear_packed", [] { PackedCache::instance().clear(); }, "Forget packed weights");
  m.def("gemm_clear", &gemm_clear, "Forget packed weights, decisions and this thread's scratch");
}

}  // namespace torch_neuronx::gemm
