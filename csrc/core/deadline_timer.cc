#include "core/deadline_timer.h"

namespace geocomm::core {

DeadlineTimer::~DeadlineTimer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

DeadlineTimer::Id DeadlineTimer::add(Deadline deadline, Task task) {
  std::lock_guard lock(mutex_);
  const Id id{deadline.when(), next_++};
  tasks_.emplace(id, std::move(task));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
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

void DeadlineTimer::run() {
  set_thread_name("geocomm-timer");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (tasks_.empty()) {
      sleeps_until_ = Deadline::Clock::time_point::max();
      changed_.wait(lock);
      continue;
    }
    sleeps_until_ = tasks_.begin()->first.first;
    if (Deadline::Clock::now() < sleeps_until_) {
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
}

}  // namespace geocomm::core
