#include "queue/failure.h"

#include <Python.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

namespace torch_neuronx::queue {
namespace {

// The types that have a type of their own in Python; the first that fits is taken.
template <class... Types>
struct Kinds {};
using Known = Kinds<c10::OutOfMemoryError, c10::IndexError, c10::ValueError, c10::TypeError,
                    c10::NotImplementedError, c10::LinAlgError, c10::DistBackendError, c10::Error>;

std::exception_ptr of_kind(const c10::Error&, const std::string&, Kinds<>) { return nullptr; }

template <class First, class... Rest>
std::exception_ptr of_kind(const c10::Error& error, const std::string& text,
                           Kinds<First, Rest...>) {
  if (std::is_same_v<First, c10::Error> || dynamic_cast<const First*>(&error) != nullptr)
    return std::make_exception_ptr(First({__func__, __FILE__, __LINE__}, text));
  return of_kind(error, text, Kinds<Rest...>{});
}

std::mutex g_finder_mutex;
std::atomic<bool> g_finds{false};
std::function<std::string()>& finder() {
  static auto* made = new std::function<std::string()>;  // never destroyed: it may hold Python's
  return *made;
}

constexpr c10::DispatchKeySet kTransforms({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                           c10::DispatchKey::FuncTorchDynamicLayerBackMode});

// Whether this thread is in PyTorch's printing of a tensor; the caller holds Python's lock.
bool prints_a_tensor() {
  bool found = false;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && !found) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    const char* name = PyUnicode_AsUTF8(code->co_name);
    found = file != nullptr && name != nullptr && std::string_view(name) == "_str" &&
            std::string_view(file).find("_tensor_str.py") != std::string_view::npos;
    if (file == nullptr || name == nullptr) PyErr_Clear();  // a name that is no UTF-8
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return found;
}

int transform_again(void*) {
  c10::impl::LocalDispatchKeySet state = c10::impl::tls_local_dispatch_key_set();
  state.excluded_ = state.excluded_ - kTransforms;
  c10::impl::_force_tls_local_dispatch_key_set(state);
  return 0;
}

}  // namespace

void leave_printing() {
  if (!c10::impl::tls_local_dispatch_key_set().excluded_.has_any(kTransforms)) return;
  if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr) return;
  const PyGILState_STATE lock = PyGILState_Ensure();
  // C++ on the way up to Python restores what it found, so that this has to come after it: as soon
  // as the interpreter goes on. It does for the main thread alone, and not if 32 others wait.
  if (prints_a_tensor()) Py_AddPendingCall(&transform_again, nullptr);
  PyGILState_Release(lock);
}

void set_line_finder(std::function<std::string()> made) {
  const std::lock_guard<std::mutex> lock(g_finder_mutex);
  finder() = std::move(made);
  g_finds.store(finder() != nullptr);
}
bool finds_lines() { return g_finds.load(std::memory_order_relaxed); }
std::string users_line() {
  if (!finds_lines()) return "";
  std::function<std::string()> find;
  {
    const std::lock_guard<std::mutex> lock(g_finder_mutex);
    find = finder();
  }
  return find ? find() : "";
}

std::exception_ptr with_name(std::exception_ptr failure, const std::string& name,
                             const std::string& called_at) {
  const std::string note =
      "\nThis is an error of " + name + (called_at.empty() ? "" : ", called " + called_at) +
      ", which ran after its call had returned; calls behind it did not run. " +
      (called_at.empty() ? "TORCH_NEURONX_ENABLE_STACK_TRACE=1 tells the line of the call, " : "") +
      "NEURON_LAUNCH_BLOCKING=1 runs each operator at its call.";
  try {
    std::rethrow_exception(failure);
  } catch (const c10::AcceleratorError& error) {
    return std::make_exception_ptr(
        c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                              error.get_error_code(), error.what_without_backtrace() + note));
  } catch (const c10::Error& error) {
    return of_kind(error, error.what_without_backtrace() + note, Known{});
  } catch (const std::bad_alloc&) {
    return failure;
  } catch (const std::exception& error) {
    return std::make_exception_ptr(c10::Error({__func__, __FILE__, __LINE__}, error.what() + note));
  } catch (...) {
    return failure;  // of a type that has no text
  }
}

}  // namespace torch_neuronx::queue
