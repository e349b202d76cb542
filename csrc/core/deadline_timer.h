// Tasks at points in time that are mostly cancelled before: the deadlines of operations that nobody waits
// for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "core/deadline.h"
#include "core/status.h"
#include "core/thread.h"

namespace geocomm::core {

// Thread-safe. Has one thread while there are tasks, and up to twice `keep` longer, which is woken by a task
// only if that is due before it would wake anyway: not once per task where each is added after, and due
// after, one that was cancelled. Tasks must not block and must not throw: that ends the process.
class DeadlineTimer {
 public:
  using Id = std::pair<Deadline::Clock::time_point, std::uint64_t>;

  explicit DeadlineTimer(std::chrono::milliseconds keep = std::chrono::seconds(10)) : keep_(keep) {}
  // Drops the tasks that are not due.
  ~DeadlineTimer();
  DeadlineTimer(const DeadlineTimer&) = delete;
  DeadlineTimer& operator=(const DeadlineTimer&) = delete;

  // Runs `task` on the timer's thread once the deadline has passed. An error, and the task is dropped, where
  // the system has no thread for it.
  Result<Id> add(Deadline deadline, Task task);
  // Does nothing for a task that has begun.
  void cancel(const Id& id);
  bool has_thread() const;

 private:
  void run();

  const std::chrono::milliseconds keep_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::map<Id, Task> tasks_;
  std::uint64_t next_ = 0;
  Deadline::Clock::time_point sleeps_until_ = Deadline::Clock::time_point::max();
  bool stopping_ = false;
  bool running_ = false;  // the thread takes tasks
  std::thread thread_;
};

}  // namespace geocomm::core
