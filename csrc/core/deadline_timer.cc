#include "core/deadline_timer.h"

#include <algorithm>

namespace geocomm::core {

DeadlineTimer::~DeadlineTimer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<DeadlineTimer::Id> DeadlineTimer::add(Deadline deadline, Task task) {
  std::lock_guard lock(mutex_);
  if (!running_) {
    if (thread_.joinable()) thread_.join();  // it has ended but for its last steps, which need no lock
    GEOCOMM_ASSIGN_OR_RETURN(thread_, start_thread("geocomm-timer", [this] { run(); }));
    running_ = true;
  }
  const Id id{deadline.when(), next_++};
  tasks_.emplace(id, std::move(task));
  if (deadline.when() < sleeps_until_) changed_.notify_all();
  return id;
}

void DeadlineTimer::cancel(const Id& id) {
  Task dropped;  // what it owns is freed without the lock
  std::lock_guard lock(mutex_);
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return;
  dropped = std::move(found->second);
  tasks_.erase(found);
}

bool DeadlineTimer::has_thread() const {
  std::lock_guard lock(mutex_);
  return running_;
}

void DeadlineTimer::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto now = Deadline::Clock::now();
    if (tasks_.empty()) {
      sleeps_until_ = now + keep_;
      const auto wanted = [this] { return stopping_ || !tasks_.empty(); };
      if (!changed_.wait_until(lock, sleeps_until_, wanted)) break;
      continue;
    }
    if (const auto due = tasks_.begin()->first.first; now < due) {
      sleeps_until_ = std::min(due, now + keep_);  // all of them may be cancelled meanwhile
      changed_.wait_until(lock, sleeps_until_);
      continue;
    }
    Task task = std::move(tasks_.begin()->second);
    tasks_.erase(tasks_.begin());
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
  running_ = false;
}

}  // namespace geocomm::core
