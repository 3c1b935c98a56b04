#include "kernels/bindings_kernels.h"

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>

#include "kernels/mersenne.h"
#include "kernels/multi_tensor.h"
#include "kernels/norm.h"
#include "kernels/philox.h"
#include "kernels/pointwise.h"

namespace torch_neuronx {
namespace {

namespace py = pybind11;
namespace k = kernels;
using at::Tensor;
using Optional = std::optional<Tensor>;

void check(const Tensor& t, const char* name) {
  TORCH_CHECK(t.device().is_cpu() && t.is_contiguous(), name, " must be a contiguous CPU tensor");
}
void check_like(const Tensor& t, const Tensor& like, const char* name) {
  check(t, name);
  TORCH_CHECK(t.numel() == like.numel() && t.scalar_type() == like.scalar_type(), name,
              " must have ", like.numel(), " elements of ", like.scalar_type(), ", has ", t.numel(),
              " of ", t.scalar_type());
}
void check_float(const Tensor& t, int64_t n, const char* name) {
  check(t, name);
  TORCH_CHECK(t.scalar_type() == at::kFloat && t.numel() == n, name, " must have ", n,
              " float32 elements");
}
template <class E>
E enum_of(int value) {
  TORCH_CHECK(value >= 0 && value < static_cast<int>(E::kCount), "no operator number ", value);
  return static_cast<E>(value);
}
void* data(const Optional& t) { return t ? t->data_ptr() : nullptr; }

struct Shape {
  int64_t rows, cols;
};
Shape shape_of(const Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "expected a 2-d tensor");
  return {x.size(0), x.size(1)};
}
void check_weight(const Optional& w, const Tensor& x, at::ScalarType dtype, const char* name) {
  if (w) {
    check(*w, name);
    TORCH_CHECK(w->numel() == x.size(1) && w->scalar_type() == dtype, name, " must have ",
                x.size(1), " elements of ", dtype);
  }
}
at::ScalarType weight_dtype(const Tensor& x, const Optional& w) {
  return w ? w->scalar_type() : x.scalar_type();
}

void bind_pointwise(py::module_& m) {
  m.def("kernel_unary", [](int op, const Tensor& x, const Tensor& out) {
    check(x, "x");
    check_like(out, x, "out");
    py::gil_scoped_release release;
    k::unary(enum_of<k::UnaryOp>(op), x.scalar_type(), x.data_ptr(), out.data_ptr(), x.numel());
  });
  m.def("kernel_unary_grad", [](int op, const Tensor& grad, const Tensor& x, const Tensor& out) {
    check(x, "saved");
    check_like(grad, x, "grad");
    check_like(out, x, "out");
    py::gil_scoped_release release;
    k::unary_grad(enum_of<k::UnaryGradOp>(op), x.scalar_type(), grad.data_ptr(), x.data_ptr(),
                  out.data_ptr(), x.numel());
  });
  m.def("kernel_binary",
        [](int op, const Tensor& a, const Tensor& b, const Tensor& out, double alpha) {
          check(a, "a");
          check_like(b, a, "b");
          check_like(out, a, "out");
          py::gil_scoped_release release;
          k::binary(enum_of<k::BinaryOp>(op), a.scalar_type(), a.data_ptr(), b.data_ptr(),
                    out.data_ptr(), a.numel(), alpha);
        });
  m.def(
      "kernel_binary_scalar",
      [](int op, const Tensor& a, double scalar, const Tensor& out, double alpha, bool reverse) {
        check(a, "a");
        check_like(out, a, "out");
        py::gil_scoped_release release;
        k::binary_scalar(enum_of<k::BinaryOp>(op), a.scalar_type(), a.data_ptr(), scalar,
                         out.data_ptr(), a.numel(), alpha, reverse);
      },
      py::arg("op"), py::arg("a"), py::arg("scalar"), py::arg("out"), py::arg("alpha"),
      py::arg("reverse"));
  m.def(
      "kernel_binary_row",
      [](int op, const Tensor& a, const Tensor& row, const Tensor& out, double alpha,
         bool reverse) {
        const auto [rows, cols] = shape_of(a);
        check(a, "a");
        check_weight(row, a, a.scalar_type(), "row");
        check_like(out, a, "out");
        py::gil_scoped_release release;
        k::binary_row(enum_of<k::BinaryOp>(op), a.scalar_type(), a.data_ptr(), row.data_ptr(),
                      out.data_ptr(), rows, cols, alpha, reverse);
      },
      py::arg("op"), py::arg("a"), py::arg("row"), py::arg("out"), py::arg("alpha"),
      py::arg("reverse"));
}

void bind_norm(py::module_& m) {
  m.def(
      "kernel_softmax",
      [](const Tensor& x, const Tensor& out, bool log) {
        const auto [rows, cols] = shape_of(x);
        check(x, "x");
        check_like(out, x, "out");
        py::gil_scoped_release release;
        k::softmax(x.scalar_type(), x.data_ptr(), out.data_ptr(), rows, cols, log);
      },
      py::arg("x"), py::arg("out"), py::arg("log"));
  m.def(
      "kernel_sum_rows",
      [](const Tensor& x, const Tensor& out, bool mean) {
        const auto [rows, cols] = shape_of(x);
        check(x, "x");
        check(out, "out");
        TORCH_CHECK_VALUE(
            out.numel() == rows && out.scalar_type() == x.scalar_type() &&
                cols <= k::longest_summed_row(),
            "out must have an element for each row of x, and rows are not longer than ",
            k::longest_summed_row());
        py::gil_scoped_release release;
        k::sum_rows(x.scalar_type(), x.data_ptr(), out.data_ptr(), rows, cols, mean);
      },
      py::arg("x"), py::arg("out"), py::arg("mean"));
  m.def(
      "kernel_softmax_backward",
      [](const Tensor& grad, const Tensor& y, const Tensor& out, bool log) {
        const auto [rows, cols] = shape_of(y);
        check(y, "y");
        check_like(grad, y, "grad");
        check_like(out, y, "out");
        py::gil_scoped_release release;
        k::softmax_backward(y.scalar_type(), grad.data_ptr(), y.data_ptr(), out.data_ptr(), rows,
                            cols, log);
      },
      py::arg("grad"), py::arg("y"), py::arg("out"), py::arg("log"));
  m.def("kernel_layer_norm",
        [](const Tensor& x, const Optional& weight, const Optional& bias, double eps,
           const Tensor& out, const Tensor& mean, const Tensor& rstd) {
          const auto [rows, cols] = shape_of(x);
          const at::ScalarType w = weight_dtype(x, weight ? weight : bias);
          check(x, "x");
          check_weight(weight, x, w, "weight");
          check_weight(bias, x, w, "bias");
          check_like(out, x, "out");
          check_float(mean, rows, "mean");
          check_float(rstd, rows, "rstd");
          py::gil_scoped_release release;
          k::layer_norm(x.scalar_type(), w, x.data_ptr(), data(weight), data(bias), eps,
                        out.data_ptr(), mean.data_ptr<float>(), rstd.data_ptr<float>(), rows, cols);
        });
  m.def("kernel_layer_norm_backward",
        [](const Tensor& grad, const Tensor& x, const Tensor& mean, const Tensor& rstd,
           const Optional& weight, const Optional& grad_in, const Optional& grad_weight,
           const Optional& grad_bias) {
          const auto [rows, cols] = shape_of(x);
          const at::ScalarType w = weight_dtype(x, weight ? weight : grad_weight);
          check(x, "x");
          check_like(grad, x, "grad");
          check_float(mean, rows, "mean");
          check_float(rstd, rows, "rstd");
          check_weight(weight, x, w, "weight");
          check_weight(grad_weight, x, w, "grad_weight");
          check_weight(grad_bias, x, w, "grad_bias");
          if (grad_in) check_like(*grad_in, x, "grad_in");
          py::gil_scoped_release release;
          k::layer_norm_backward(x.scalar_type(), w, grad.data_ptr(), x.data_ptr(),
                                 mean.data_ptr<float>(), rstd.data_ptr<float>(), data(weight),
                                 data(grad_in), data(grad_weight), data(grad_bias), rows, cols);
        });
  m.def("kernel_rms_norm", [](const Tensor& x, const Optional& weight, double eps,
                              const Tensor& out, const Tensor& rstd) {
    const auto [rows, cols] = shape_of(x);
    const at::ScalarType w = weight_dtype(x, weight);
    check(x, "x");
    check_weight(weight, x, w, "weight");
    check_like(out, x, "out");
    check_float(rstd, rows, "rstd");
    py::gil_scoped_release release;
    k::rms_norm(x.scalar_type(), w, x.data_ptr(), data(weight), eps, out.data_ptr(),
                rstd.data_ptr<float>(), rows, cols);
  });
  m.def("kernel_rms_norm_backward", [](const Tensor& grad, const Tensor& x, const Tensor& rstd,
                                       const Optional& weight, const Optional& grad_in,
                                       const Optional& grad_weight) {
    const auto [rows, cols] = shape_of(x);
    const at::ScalarType w = weight_dtype(x, weight ? weight : grad_weight);
    check(x, "x");
    check_like(grad, x, "grad");
    check_float(rstd, rows, "rstd");
    check_weight(weight, x, w, "weight");
    check_weight(grad_weight, x, w, "grad_weight");
    if (grad_in) check_like(*grad_in, x, "grad_in");
    py::gil_scoped_release release;
    k::rms_norm_backward(x.scalar_type(), w, grad.data_ptr(), x.data_ptr(), rstd.data_ptr<float>(),
                         data(weight), data(grad_in), data(grad_weight), rows, cols);
  });
}

// fill(state, dtype, out, n, a, b), as kernel_philox_<name>(seed, offset, out, a, b)
template <class Fill>
void def_fill(py::module_& m, const char* name, Fill fill) {
  m.def(name, [fill](uint64_t seed, uint64_t offset, const Tensor& out, double a, double b) {
    check(out, "out");
    py::gil_scoped_release release;
    fill({seed, offset}, out.scalar_type(), out.data_ptr(), out.numel(), a, b);
  });
}

void bind_philox(py::module_& m) {
  m.def("kernel_philox_block", [](std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    std::array<uint32_t, 4> out;
    k::philox_block(counter.data(), key.data(), out.data());
    return out;
  });
  m.def("kernel_philox_words", [](uint64_t seed, uint64_t offset, const Tensor& out) {
    check(out, "out");
    TORCH_CHECK(out.element_size() == 4, "out must have 4-byte elements");
    k::philox_words({seed, offset}, static_cast<uint32_t*>(out.data_ptr()), out.numel());
  });
  def_fill(m, "kernel_philox_uniform", &k::philox_uniform);
  def_fill(m, "kernel_philox_normal", &k::philox_normal);
  def_fill(m, "kernel_philox_log_normal", &k::philox_log_normal);
  def_fill(m, "kernel_philox_cauchy", &k::philox_cauchy);
  const auto one_parameter = [](auto f) {
    return [f](k::PhiloxState s, at::ScalarType t, void* out, int64_t n, double a, double) {
      f(s, t, out, n, a);
    };
  };
  def_fill(m, "kernel_philox_exponential", one_parameter(&k::philox_exponential));
  def_fill(m, "kernel_philox_geometric", one_parameter(&k::philox_geometric));
  def_fill(m, "kernel_philox_bernoulli", one_parameter(&k::philox_bernoulli));
  def_fill(m, "kernel_philox_random_full",
           [](k::PhiloxState s, at::ScalarType t, void* out, int64_t n, double, double) {
             k::philox_random_full(s, t, out, n);
           });
  def_fill(m, "kernel_philox_randperm",
           [](k::PhiloxState s, at::ScalarType t, void* out, int64_t n, double, double) {
             k::philox_randperm(s, t, out, n);
           });
  m.def("kernel_philox_random_from_to",
        [](uint64_t seed, uint64_t offset, const Tensor& out, uint64_t range, int64_t base) {
          check(out, "out");
          k::philox_random_from_to({seed, offset}, out.scalar_type(), out.data_ptr(), out.numel(),
                                   range, base);
        });
  m.def("kernel_philox_bernoulli_tensor",
        [](uint64_t seed, uint64_t offset, const Tensor& out, const Tensor& p) {
          check(out, "out");
          check(p, "p");
          TORCH_CHECK(p.numel() == out.numel(), "p and out differ in size");
          k::philox_bernoulli_tensor({seed, offset}, out.scalar_type(), out.data_ptr(),
                                     p.scalar_type(), p.data_ptr(), out.numel());
        });
  m.def("kernel_mersenne_bernoulli", [](uint64_t seed, const Tensor& out, double p) {
    check(out, "out");
    TORCH_CHECK(out.scalar_type() == at::kBool, "out must have bool elements");
    TORCH_CHECK(p >= 0 && p <= 1, "p must be between 0 and 1");
    k::mersenne_bernoulli(seed, p, out.mutable_data_ptr<bool>(), out.numel());
  });
}

// One step as Python gives it: (op, dst, a, b, c, scalar), scalar None to take the group's.
using PyStep = std::tuple<int, uint8_t, uint8_t, uint8_t, uint8_t, std::optional<double>>;

void bind_multi_tensor(py::module_& m) {
  m.def("kernel_run_program", [](const std::vector<PyStep>& steps, int slot_count,
                                 const std::vector<std::vector<Optional>>& groups,
                                 const std::vector<std::vector<double>>& scalars) {
    std::vector<k::Step> program;
    for (const auto& [op, dst, a, b, c, scalar] : steps) {
      program.push_back(
          {enum_of<k::Op>(op), dst, a, b, c, !scalar.has_value(), scalar.value_or(0)});
    }
    at::ScalarType dtype = at::kFloat;
    std::vector<k::TensorGroup> list;
    for (size_t g = 0; g < groups.size(); ++g) {
      k::TensorGroup group;
      const Tensor* first = nullptr;
      for (const Optional& slot : groups[g]) {
        if (slot) {
          check(*slot, "slot");
          if (first == nullptr) first = &*slot;
          check_like(*slot, *first, "slot");
          TORCH_CHECK(g == 0 || slot->scalar_type() == dtype, "groups differ in dtype");
          dtype = slot->scalar_type();
          group.numel = slot->numel();
        }
        group.slots.push_back(data(slot));
      }
      if (!scalars.empty()) group.scalars = scalars.at(g);
      list.push_back(std::move(group));
    }
    py::gil_scoped_release release;
    k::run_program(program, slot_count, dtype, list);
  });
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("kernel_isa", [] { return std::string(k::isa_name(k::active_isa())); });
  m.def("kernel_lanes", [] { return k::norm_table().sum_lanes / 4; });
  m.def("kernel_isas", [] {
    std::vector<std::string> names;
    for (int i = 0; i <= static_cast<int>(k::best_isa()); ++i) {
      names.emplace_back(k::isa_name(static_cast<k::Isa>(i)));
    }
    return names;
  });
  m.def("kernel_force_isa", [](const std::string& name) {
    for (int i = 0; i <= static_cast<int>(k::Isa::Avx512); ++i) {
      if (name == k::isa_name(static_cast<k::Isa>(i))) {
        return k::force_isa(static_cast<k::Isa>(i));
      }
    }
    throw py::value_error("no instruction set called " + name);
  });
  bind_pointwise(m);
  bind_norm(m);
  bind_philox(m);
  bind_multi_tensor(m);
}

}  // namespace torch_neuronx
