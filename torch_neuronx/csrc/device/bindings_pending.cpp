#include "device/bindings_pending.h"

#include <Python.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "device/pending.h"

namespace py = pybind11;

namespace torch_neuronx {
namespace {

// Pending work that is done when Python says so.
class TestCompletion final : public Completion,
                             public std::enable_shared_from_this<TestCompletion> {
 public:
  bool done() const noexcept override {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }
  void wait() override {
    if (PyGILState_Check()) held_python_lock_ = true;
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiters_;
    changed_.wait(lock, [&] { return done_; });
    --waiters_;
    if (failure_) TORCH_CHECK_WITH(DistBackendError, false, *failure_);
  }
  std::chrono::steady_clock::time_point finished_at() const noexcept override {
    std::lock_guard<std::mutex> lock(mutex_);
    return finished_at_;
  }
  void finish(std::optional<std::string> failure) {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    failure_ = std::move(failure);
    finished_at_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
  int waiters() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return waiters_;
  }
  // References besides Python's own.
  long kept_by() const { return weak_from_this().use_count() - 1; }  // NOLINT: as the library says
  bool held_python_lock() const { return held_python_lock_; }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::optional<std::string> failure_;
  std::chrono::steady_clock::time_point finished_at_;
  int waiters_ = 0;
  std::atomic<bool> held_python_lock_{false};
};

}  // namespace

void bind_pending(py::module_& m) {
  py::class_<TestCompletion, std::shared_ptr<TestCompletion>>(m, "TestCompletion")
      .def(py::init<>())
      .def(
          "add_to",
          [](const std::shared_ptr<TestCompletion>& self, c10::Stream stream) {
            add_pending(stream, self);
          },
          py::call_guard<py::gil_scoped_release>())
      // With Python's lock held, as a careless caller would.
      .def("add_to_holding_python", [](const std::shared_ptr<TestCompletion>& self,
                                       c10::Stream stream) { add_pending(stream, self); })
      .def("set", [](TestCompletion& self) { self.finish(std::nullopt); })
      .def("fail", [](TestCompletion& self, std::string text) { self.finish(std::move(text)); })
      .def_property_readonly("waiters", &TestCompletion::waiters)
      .def_property_readonly("held_python_lock", &TestCompletion::held_python_lock)
      .def_property_readonly("kept_by", &TestCompletion::kept_by);
  m.def("pending_count", [](c10::Stream stream) { return pending_of(stream).size(); });
}

}  // namespace torch_neuronx
