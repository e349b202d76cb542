#include "binding/torch/python_thread.h"

#include <pthread.h>
#include <pybind11/pybind11.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <ctime>

namespace geocomm::binding {

// A wheel for another machine is built with this machine's pyconfig.h, of which Python's headers read this
// much.
static_assert(SIZEOF_SHORT == sizeof(short) && SIZEOF_INT == sizeof(int) && SIZEOF_LONG == sizeof(long) &&
              SIZEOF_LONG_LONG == sizeof(long long) && SIZEOF_SIZE_T == sizeof(std::size_t) &&
              SIZEOF_VOID_P == sizeof(void*) && SIZEOF_WCHAR_T == sizeof(wchar_t) &&
              SIZEOF_OFF_T == sizeof(off_t) && SIZEOF_PID_T == sizeof(pid_t) &&
              SIZEOF_TIME_T == sizeof(time_t) && SIZEOF_LONG_DOUBLE == sizeof(long double) &&
              SIZEOF_PTHREAD_T == sizeof(pthread_t) && SIZEOF_FPOS_T == sizeof(fpos_t));

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
