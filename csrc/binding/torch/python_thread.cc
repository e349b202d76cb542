#include "binding/torch/python_thread.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace geocomm::binding {

GilRelease::GilRelease()
    : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}

GilRelease::~GilRelease() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

bool CallGate::enter() {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  ++inside_;
  return true;
}

void CallGate::leave() {
  std::lock_guard lock(mutex_);
  if (--inside_ == 0) left_.notify_all();
}

void CallGate::close(core::Deadline deadline) {
  std::unique_lock lock(mutex_);
  closed_ = true;
  left_.wait_until(lock, deadline.when(), [&] { return inside_ == 0; });
}

bool runs_signal_handlers() {
  return ::gettid() == ::getpid() && Py_IsInitialized() != 0;
}

void run_signal_handlers() {
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace geocomm::binding
