// The Python face: ProgramView, and Program with a vectorcall of its own, because the call path of
// pybind11 would cost as much as a small program.
#include <Python.h>
// Needs the above.
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "program/build.h"
#include "program/call.h"
#include "program/enqueued.h"
#include "program/parse.h"
#include "program/python_program.h"
#include "program/regions.h"
#include "program/tallies.h"

namespace torch_neuronx::program {
namespace {

struct PyProgram {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* keep;  // what the addresses in the program depend on
  std::shared_ptr<const Program> program;
};

PyProgram* self_of(PyObject* self) { return reinterpret_cast<PyProgram*>(self); }

PyObject* wrap(Tensors& results) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(results.size()));
  if (list == nullptr) throw python_error();
  for (size_t i = 0; i < results.size(); ++i) {
    PyObject* item = THPVariable_Wrap(std::move(results[i]));
    if (item == nullptr) {
      Py_DECREF(list);
      throw python_error();
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
  }
  return list;
}

PyObject* call_program(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  HANDLE_TH_ERRORS
  PyProgram* self = self_of(object);
  const bool one = PyVectorcall_NARGS(nargsf) == 1 && kwnames == nullptr;
  TORCH_CHECK_TYPE(one && (PyList_CheckExact(args[0]) || PyTuple_Check(args[0])),
                   "a program takes one list or tuple of tensors");
  const std::shared_ptr<const Program> program = self->program;
  PyObject* const sequence = args[0];
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence));
  TORCH_CHECK_VALUE(count == program->arguments.size(), "program ", program->name, " takes ",
                    program->arguments.size(), " arguments, got ", count);
  Tensors inputs;
  inputs.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(sequence, static_cast<Py_ssize_t>(i));
    TORCH_CHECK_TYPE(THPVariable_Check(item), "program ", program->name, ": argument ", i,
                     " must be a tensor, got ", Py_TYPE(item)->tp_name);
    inputs.push_back(THPVariable_Unpack(item));
    check_argument(*program, i, inputs.back());
  }
  if (is_to_be_enqueued(*program, inputs)) {
    Tensors results = enqueue(program, owner_of(object), inputs);
    if (PyList_CheckExact(sequence) && PyList_SetSlice(sequence, 0, PY_SSIZE_T_MAX, nullptr) < 0) {
      throw python_error();
    }
    return wrap(results);
  }
  // From here the tensors are the program's: it lets go of each after its last use.
  if (PyList_CheckExact(sequence) && PyList_SetSlice(sequence, 0, PY_SSIZE_T_MAX, nullptr) < 0) {
    throw python_error();
  }
  Tensors results;
  {
    const pybind11::gil_scoped_release nogil;
    results = call(*program, inputs);
  }
  return wrap(results);
  END_HANDLE_TH_ERRORS
}

PyObject* new_program(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"spec", "keep", nullptr};
  PyObject *spec = nullptr, *keep = Py_None;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "O!|O", const_cast<char**>(names), &PyDict_Type,
                                  &spec, &keep) == 0) {
    return nullptr;
  }
  auto program = build(pybind11::reinterpret_borrow<pybind11::dict>(spec));
  PyObject* object = type->tp_alloc(type, 0);
  if (object == nullptr) return nullptr;
  PyProgram* self = self_of(object);
  self->vectorcall = &call_program;
  self->keep = Py_NewRef(keep);
  new (&self->program) std::shared_ptr<const Program>(std::move(program));
  return object;
  END_HANDLE_TH_ERRORS
}

void delete_program(PyObject* object) {
  PyProgram* self = self_of(object);
  PyTypeObject* type = Py_TYPE(object);
  self->program.~shared_ptr();
  Py_CLEAR(self->keep);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* name_of(PyObject* object, void*) {
  const std::string& name = self_of(object)->program->name;
  return PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size()));
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PyProgram, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef getters[] = {{"name", &name_of, nullptr, "The program's name", nullptr},
                         {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(&new_program)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(&delete_program)},
                       {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                       {Py_tp_members, members},
                       {Py_tp_getset, getters},
                       {0, nullptr}};
PyType_Spec type_spec = {"torch_neuronx._C.Program", sizeof(PyProgram), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};

PyTypeObject* program_type = nullptr;  // lives as long as the module

}  // namespace

std::shared_ptr<const Program> program_of(py::handle object) {
  TORCH_CHECK_TYPE(Py_TYPE(object.ptr()) == program_type, "expected a program, got ",
                   Py_TYPE(object.ptr())->tp_name);
  return self_of(object.ptr())->program;
}

void bind_program(py::module& m) {
  install_regions();
  bind_tallies(m);
  m.def("next_region", &next_region);
  m.def("finish_region", &finish_region);
  m.def("stop_regions", &stop_regions);
  m.def("region_stats", [] {
    const RegionStats now = region_stats();
    return py::dict(py::arg("regions") = now.regions, py::arg("operators") = now.calls,
                    py::arg("unwritten") = now.unwritten, py::arg("compiled") = now.compiled,
                    py::arg("given_up") = now.given_up, py::arg("forgotten") = now.forgotten,
                    py::arg("ended_by_operator") = now.ended_boundary,
                    py::arg("ended_full") = now.ended_full, py::arg("ended_idle") = now.ended_idle,
                    py::arg("ended_by_read") = now.ended_read);
  });
  m.def("reset_region_stats", &reset_region_stats);
  m.def("regions_seen", &regions_seen);
  m.def("set_low_threshold", &set_low_threshold);
  m.def("set_skips_unread", &set_skips_unread);
  m.def("region_worth", &worth);
  m.def("set_region_worth", &set_worth);
  py::class_<View>(m, "ProgramView")
      .def(py::init([](py::handle buffer, py::handle dtype, py::handle shape, py::handle strides,
                       py::handle offset) {
             const int64_t id = integer(buffer, "the buffer of a view");
             TORCH_CHECK_VALUE(id >= 0 && id < (int64_t(1) << 31), "there is no buffer ", id);
             View view;
             view.buffer = static_cast<int32_t>(id);
             view.geometry = make_geometry(dtype_of(dtype, "a view"), extents(shape, "a shape"),
                                           extents(strides, "strides"));
             view.offset = integer(offset, "the offset of a view");
             return view;
           }),
           py::arg("buffer"), py::arg("dtype"), py::arg("shape"), py::arg("strides"),
           py::arg("offset"));
  PyObject* type = PyType_FromSpec(&type_spec);
  if (type == nullptr) throw py::error_already_set();
  program_type = reinterpret_cast<PyTypeObject*>(type);
  m.attr("Program") = py::reinterpret_steal<py::object>(type);
  // What AOTAutograd asks for: the callee takes a list and may empty it.
  m.attr("Program").attr("_boxed_call") = true;
}

}  // namespace torch_neuronx::program
