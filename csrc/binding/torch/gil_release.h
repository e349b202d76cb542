// Lets go of Python's lock, where this thread has it, for as long as it lives: threads that are waited for
// may need it to free Python's objects. (pybind11's own insists that the thread has it.)
#pragma once

#include <Python.h>

namespace geocomm::binding {

class GilRelease {
 public:
  GilRelease() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~GilRelease() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace geocomm::binding
