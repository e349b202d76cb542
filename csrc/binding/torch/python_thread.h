// Threads as Python's: its lock, the handlers of signals, the end of the interpreter.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "core/deadline.h"

namespace geocomm::binding {

// Lets go of Python's lock, where this thread has it, for as long as it lives: threads that are waited for
// may need it to free Python's objects. (pybind11's own insists that the thread has it.)
class GilRelease {
 public:
  GilRelease();
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  void* const state_;  // Python's of the thread; nullptr: it had no lock
};

// Lets threads call into Python until the interpreter is about to end. Thread-safe.
class CallGate {
 public:
  // False once it is closed. Otherwise leave() must follow.
  bool enter();
  void leave();
  // Returns when no thread is inside any more, or at the deadline. Not from inside.
  void close(core::Deadline deadline);

 private:
  std::mutex mutex_;  // guards all below
  std::condition_variable left_;
  bool closed_ = false;
  int inside_ = 0;
};

// Whether the calling thread is the one on which Python runs handlers of signals. It only notes that a signal
// has come: the handler runs once that thread asks, which may be waiting in C++ by then.
bool runs_signal_handlers();
// Runs those that are due, on that thread. Throws what one of them raises (KeyboardInterrupt), as pybind11
// hands it on.
void run_signal_handlers();

// changed.wait_until(lock, deadline.when(), is_done), and runs handlers of signals meanwhile, without the
// lock. If one throws, the lock is held again.
template <typename Done>
bool wait_with_signals(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                       core::Deadline deadline, Done is_done) {
  constexpr std::chrono::milliseconds kBetweenLooks{100};
  if (!runs_signal_handlers()) return changed.wait_until(lock, deadline.when(), is_done);
  class Unlocked {
   public:
    explicit Unlocked(std::unique_lock<std::mutex>& held) : held_(held) { held_.unlock(); }
    ~Unlocked() { held_.lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    std::unique_lock<std::mutex>& held_;
  };
  for (;;) {
    const auto next_look = deadline.earlier(core::Deadline::after(kBetweenLooks));
    if (changed.wait_until(lock, next_look.when(), is_done)) return true;
    if (deadline.expired()) return false;
    const Unlocked unlocked(lock);
    run_signal_handlers();
  }
}

}  // namespace geocomm::binding
