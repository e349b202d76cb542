// ExposedTime: for how long the program's threads stood still for operations that cross sites.
//
// A thread that calls wait() stands still, as long as it is in there. Who takes an operation's Future waits
// for that inside of torch (DDP does, and the hooks), where nobody sees it begin. So what counts then is the
// time from the taking of the Future to the operation's end in which the thread neither ran nor stood in
// line for a core: the kernel says how much of both a thread has had. Knows nothing of torch.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>

namespace geocomm::binding {

class ExposedTime {
 public:
  using Clock = std::chrono::steady_clock;

  // The calling thread holds up nothing by waiting: it does not count, from now on.
  static void leave_out_this_thread();

  std::int64_t nanoseconds() const;

  // The calling thread is in wait() as long as this lives.
  class Wait {
   public:
    explicit Wait(ExposedTime& exposed) : exposed_(exposed) { exposed_.wait_begins(); }
    ~Wait() { exposed_.wait_ends(); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    ExposedTime& exposed_;
  };

  // The calling thread has taken the Future of an operation: the thread's id for ended(), 0 if it does not
  // count.
  pid_t future_taken();
  // The operation has ended; from any thread, once for each future_taken().
  void ended(pid_t thread);

 private:
  struct Watched {
    int futures = 0;  // of operations that have not ended
    int waits = 0;
    Clock::time_point seen;
    std::chrono::nanoseconds busy_when_seen{};  // unless it is in wait()
  };
  void wait_begins();
  void wait_ends();
  // Counts for how long a thread has stood still since it was seen last. Needs the mutex.
  void count(pid_t thread, Watched& watched);

  mutable std::mutex mutex_;  // guards all below
  std::chrono::nanoseconds total_{};
  std::map<pid_t, Watched> watched_;  // threads that wait, or have Futures of operations that have not ended
};

}  // namespace geocomm::binding
