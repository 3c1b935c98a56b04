// Waiting without keeping other Python threads from running.
#pragma once

#include <Python.h>

namespace torch_neuronx {

// Lets go of Python's lock if the calling thread holds it, and takes it again at the end: another
// thread may have to do something before what we wait for can happen.
class WithoutPythonLock {
 public:
  WithoutPythonLock()
      : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutPythonLock() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutPythonLock(const WithoutPythonLock&) = delete;
  WithoutPythonLock& operator=(const WithoutPythonLock&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace torch_neuronx
