// The Python face of the native core: torch_neuronx._C (contract in _C.pyi).
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/Stream.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "attention/bindings_attention.h"
#include "conv/bindings_conv.h"
#include "device/bindings_faults.h"
#include "device/bindings_pending.h"
#include "device/bindings_profiler.h"
#include "device/generator.h"
#include "device/state.h"
#include "device/stream.h"
#include "dispatch/bindings_predicting.h"
#include "dispatch/bindings_trusting.h"
#include "dispatch/boxed.h"
#include "dispatch/op_table.h"
#include "distributed/bindings_distributed.h"
#include "distributed/bindings_network.h"
#include "distributed/bindings_planning.h"
#include "distributed/bindings_reduce.h"
#include "gemm/bindings_gemm.h"
#include "inference/bindings_inference.h"
#include "kernels/bindings_kernels.h"
#include "memory/allocator.h"
#include "memory/bindings_memory.h"
#include "nki/bindings_nki.h"
#include "program/build.h"
#include "queue/bindings_queue.h"
#include "queue/queue.h"
#include "registry/bindings_registry.h"

namespace py = pybind11;

namespace torch_neuronx {
namespace {

// Wraps a Python callable so that C++ threads may call it and its exceptions cross intact.
PortabilityHandler wrap(py::object callable) {
  if (callable.is_none()) return {};
  auto held = std::shared_ptr<py::object>(new py::object(std::move(callable)), [](py::object* o) {
    if (!Py_IsInitialized()) return;  // the static handler outlives the interpreter
    py::gil_scoped_acquire gil;
    delete o;
  });
  return [held](const std::string& op, const std::string& dtype) {
    py::gil_scoped_acquire gil;
    try {
      (*held)(op, dtype);
    } catch (py::error_already_set& e) {
      e.restore();
      python_error error;
      error.persist();
      throw error;
    }
  };
}

}  // namespace
}  // namespace torch_neuronx

PYBIND11_MODULE(_C, m) {
  using namespace torch_neuronx;  // NOLINT: the module is the namespace's public face
  m.def(
      "configure",
      [](int count, size_t hbm_bytes, std::string name) {
        configure({count, hbm_bytes, std::move(name)});
      },
      py::arg("device_count"), py::arg("hbm_bytes"), py::arg("name"));
  m.def("register_kernels", [] {
    install_cpu_allocator();
    register_boxed_kernels();
  });
  m.def("init", &ensure_initialized);
  m.def("is_initialized", &is_initialized);
  m.def("call_at_first_use", [](py::function call) {
    // Never freed: the interpreter may be gone by then.
    auto* const kept = new py::function(std::move(call));
    call_at_first_use([kept] {
      const py::gil_scoped_acquire lock;
      (*kept)();
    });
  });
  m.def("is_in_bad_fork", &is_in_bad_fork);
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_default_device", [](int i) {
    check_device_index(i);
    set_default_device(static_cast<c10::DeviceIndex>(i));
  });
  m.def("set_device", [](int i) {
    check_device_index(i);
    set_current_device(static_cast<c10::DeviceIndex>(i));
  });
  m.def("exchange_device", [](int i) {
    check_device_index(i);
    return static_cast<int>(exchange_device(static_cast<c10::DeviceIndex>(i)));
  });
  m.def("maybe_exchange_device", [](int i) {
    if (i < 0) return static_cast<int>(current_device());
    check_device_index(i);
    return static_cast<int>(exchange_device(static_cast<c10::DeviceIndex>(i)));
  });
  m.def(
      "synchronize",
      [](int i) {
        check_device_index(i);
        ensure_initialized();
        synchronize(static_cast<c10::DeviceIndex>(i));
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("default_generator", [](int i) {
    check_device_index(i);
    return py::reinterpret_steal<py::object>(
        THPGenerator_Wrap(default_generator(static_cast<c10::DeviceIndex>(i))));
  });
  m.def("default_stream", [](int i) {
    check_device_index(i);
    return py::reinterpret_steal<py::object>(
        THPStream_Wrap(default_stream(static_cast<c10::DeviceIndex>(i))));
  });
  m.def("set_operator_table", &set_operator_table);
  m.def("set_portability", [](int mode, py::object handler) {
    TORCH_CHECK(mode >= 0 && mode <= 2, "portability mode must be 0, 1 or 2, but got ", mode);
    set_portability(static_cast<Portability>(mode), wrap(std::move(handler)));
  });
  m.def("operator_counts", [] {
    queue::wait_all();  // a call counts when its work is done
    std::vector<std::tuple<std::string, std::string, int64_t, bool>> rows;
    for (auto& c : operator_counts()) rows.emplace_back(c.name, c.dtype, c.calls, c.native);
    return rows;
  });
  m.def(
      "reset_operator_counts",
      [] {
        queue::wait_holding_locks();  // and a failure is kept for whoever waits next
        reset_operator_counts();
      },
      py::call_guard<py::gil_scoped_release>());
  conv::bind_conv(m);
  gemm::bind_gemm(m);
  nki::bind_nki(m);
  attention::bind_attention(m);
  bind_kernels(m);
  bind_memory(m);
  bind_faults(m);
  bind_profiler(m);
  bind_pending(m);
  registry::bind_registry(m);
  predicting::bind_predicting(m);
  bind_trusting(m);
  queue::bind_queue(m);
  program::bind_program(m);
  inference::bind_inference(m);
  distributed::bind_distributed(m);
  distributed::bind_network(m);
  distributed::bind_planning(m);
  distributed::bind_reduce(m);
}
