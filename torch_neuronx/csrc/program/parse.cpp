#include "program/parse.h"

#include <torch/csrc/Dtype.h>

#include <algorithm>
#include <numeric>

namespace torch_neuronx::program {
namespace {

constexpr int64_t kMaxBytes = int64_t(1) << 46;  // more than any machine has

int64_t multiplied(int64_t a, int64_t b) {
  int64_t product = 0;
  TORCH_CHECK_VALUE(!__builtin_mul_overflow(a, b, &product) && std::abs(product) <= kMaxBytes,
                    "a tensor of the program is larger than any memory");
  return product;
}
int64_t added(int64_t a, int64_t b) {
  TORCH_CHECK_VALUE(std::abs(a + b) <= kMaxBytes,
                    "a tensor of the program is larger than any memory");
  return a + b;
}

// No two elements share memory and there are no gaps, in whatever order of dimensions.
bool is_dense(const Geometry& g) {
  c10::SmallVector<size_t, 5> order;
  for (size_t d = 0; d < g.sizes.size(); ++d) {
    if (g.sizes[d] != 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return g.strides[a] < g.strides[b]; });
  int64_t expected = 1;
  for (const size_t d : order) {
    if (g.strides[d] != expected) return false;
    expected *= g.sizes[d];
  }
  return true;
}

}  // namespace

Geometry make_geometry(at::ScalarType dtype, Extents sizes, Extents strides) {
  Geometry g;
  g.dtype = dtype;
  TORCH_CHECK_VALUE(sizes.size() == strides.size(), "a tensor of the program has ", sizes.size(),
                    " sizes but ", strides.size(), " strides");
  g.numel = 1;
  bool empty = false;
  for (const int64_t size : sizes) {
    TORCH_CHECK_VALUE(size >= 0, "a tensor of the program has the size ", size);
    empty = empty || size == 0;
  }
  g.contiguous = true;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (!empty) {
      if (sizes[i] != 1 && strides[i] != g.numel) g.contiguous = false;
      const int64_t reach = multiplied(sizes[i] - 1, strides[i]);
      (reach < 0 ? g.low : g.high) = added(reach < 0 ? g.low : g.high, reach);
      g.numel = multiplied(g.numel, sizes[i]);
    }
  }
  g.sizes = std::move(sizes);
  g.strides = std::move(strides);
  if (empty) {
    g.numel = g.low = g.high = 0;
  } else {
    g.low = multiplied(g.low, g.itemsize());
    g.high = multiplied(g.high + 1, g.itemsize());
  }
  g.dense = g.contiguous || is_dense(g);
  return g;
}

std::string describe(at::ScalarType dtype, at::IntArrayRef sizes) {
  return c10::str(c10::getDtypeNames(dtype).first, sizes);
}
std::string describe(at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return c10::str(describe(dtype, sizes), ", strides ", strides);
}

int64_t integer(py::handle value, const char* what) {
  TORCH_CHECK_VALUE(PyLong_Check(value.ptr()), what, " must be an integer, got ",
                    Py_TYPE(value.ptr())->tp_name);
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  TORCH_CHECK_VALUE(overflow == 0, what, " is out of range");
  return number;
}

bool boolean(py::handle value, const char* what) {
  TORCH_CHECK_VALUE(PyBool_Check(value.ptr()), what, " must be a bool, got ",
                    Py_TYPE(value.ptr())->tp_name);
  return value.ptr() == Py_True;
}

std::string text(py::handle value, const char* what) {
  TORCH_CHECK_VALUE(PyUnicode_Check(value.ptr()), what, " must be a str, got ",
                    Py_TYPE(value.ptr())->tp_name);
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (data == nullptr) {
    PyErr_Clear();
    TORCH_CHECK_VALUE(false, what, " is not valid Unicode");
  }
  return {data, static_cast<size_t>(size)};
}

at::ScalarType dtype_of(py::handle value, const char* what) {
  TORCH_CHECK_VALUE(THPDtype_Check(value.ptr()), what, " must have a torch.dtype, got ",
                    Py_TYPE(value.ptr())->tp_name);
  return reinterpret_cast<THPDtype*>(value.ptr())->scalar_type;
}

std::vector<py::handle> items(py::handle value, const char* what) {
  TORCH_CHECK_VALUE(PyTuple_Check(value.ptr()) || PyList_Check(value.ptr()), what,
                    " must be a list or tuple, got ", Py_TYPE(value.ptr())->tp_name);
  PyObject** first = PySequence_Fast_ITEMS(value.ptr());
  return {first, first + PySequence_Fast_GET_SIZE(value.ptr())};
}

Extents extents(py::handle value, const char* what) {
  Extents result;
  for (const py::handle item : items(value, what)) result.push_back(integer(item, what));
  TORCH_CHECK_VALUE(result.size() <= 64, what, " has more than 64 dimensions");
  return result;
}

View view_of(py::handle value, const char* what) {
  TORCH_CHECK_VALUE(py::isinstance<View>(value), what, " must be a ProgramView, got ",
                    Py_TYPE(value.ptr())->tp_name);
  return value.cast<View>();
}

py::handle field(const py::dict& spec, const char* name) {
  PyObject* value = PyDict_GetItemString(spec.ptr(), name);
  TORCH_CHECK_VALUE(value != nullptr, "the program has no field '", name, "'");
  return value;
}

}  // namespace torch_neuronx::program
