#include "core/executor.h"

#include <algorithm>
#include <utility>

#include "core/float_rules.h"
#include "core/log.h"

namespace geocomm::core {

ThreadPool::ThreadPool(std::size_t threads, std::string name) {
  const std::size_t wanted = std::max<std::size_t>(threads, 1);
  workers_.reserve(wanted);
  while (workers_.size() < wanted) {
    auto worker = without_throwing(
        [&] { return start_thread(name + std::to_string(workers_.size()), [this] { run(); }); });
    if (!worker.is_ok()) {
      log(LogLevel::Warning, worker.status().message(), "; until then fewer compute");
      if (workers_.empty()) why_none_ = worker.status();
      break;
    }
    workers_.push_back(std::move(worker).value());
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::submit(Task task) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  wake_.notify_one();
}

bool ThreadPool::is_worker() const {
  const auto self = std::this_thread::get_id();
  return std::ranges::any_of(workers_, [&](const std::thread& worker) { return worker.get_id() == self; });
}

void ThreadPool::run() {
  const FloatRules rules;
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

GrowingExecutor::GrowingExecutor(std::string name, std::chrono::milliseconds keep)
    : name_(std::move(name)), keep_(keep) {}

GrowingExecutor::~GrowingExecutor() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  for (Worker* worker : idle_) worker->wake.notify_one();
  ended_.wait(lock, [&] { return threads_ == 0; });
}

bool GrowingExecutor::hand_to_idle_locked(Task& task) {
  if (idle_.empty()) return false;
  Worker& worker = *idle_.back();
  idle_.pop_back();
  worker.task = std::move(task);
  worker.wake.notify_one();
  return true;
}

// It takes what waits, or becomes idle.
Status GrowingExecutor::add_thread_locked() {
  return without_throwing([&] {
    idle_.reserve(threads_ + 1);  // a thread that has nothing to do takes its place without memory
    auto thread = start_thread(name_, [this] { run(); });
    if (!thread.is_ok()) return thread.status();
    thread->detach();
    ++threads_;
    return Status::ok();
  });
}

bool GrowingExecutor::begin_locked(Task& task) {
  if (hand_to_idle_locked(task)) return true;
  const Status added = add_thread_locked();
  if (added.is_ok()) {
    waiting_.push_front(std::move(task));
  } else if (!is_short_) {
    log(LogLevel::Warning, added.message(), "; until then tasks wait for each other");
  }
  is_short_ = !added.is_ok();
  return added.is_ok();
}

void GrowingExecutor::post(Task task) {
  std::lock_guard lock(mutex_);
  if (!begin_locked(task)) waiting_.push_back(std::move(task));
}

bool GrowingExecutor::try_post(Task task) {
  std::lock_guard lock(mutex_);
  return begin_locked(task);
}

Status GrowingExecutor::keep_one() {
  std::lock_guard lock(mutex_);
  if (threads_ == 0) GEOCOMM_RETURN_IF_ERROR(add_thread_locked());
  ++keepers_;
  return Status::ok();
}

void GrowingExecutor::keep_no_more() {
  std::lock_guard lock(mutex_);
  --keepers_;
}

std::size_t GrowingExecutor::thread_count() const {
  std::lock_guard lock(mutex_);
  return threads_;
}

bool GrowingExecutor::wait_for_task(std::unique_lock<std::mutex>& lock, Worker& worker) {
  if (!waiting_.empty()) {
    worker.task = std::move(waiting_.front());
    waiting_.pop_front();
    return true;
  }
  if (stopping_) return false;
  idle_.push_back(&worker);
  const auto is_called = [&] { return stopping_ || worker.task; };
  while (!worker.wake.wait_for(lock, keep_, is_called) && keepers_ > 0 && threads_ == 1) {
  }
  if (worker.task) return true;
  std::erase(idle_, &worker);
  return false;
}

void GrowingExecutor::run() {
  Worker worker;
  std::unique_lock lock(mutex_);
  while (wait_for_task(lock, worker)) {
    Task next = std::move(worker.task);
    worker.task = nullptr;
    lock.unlock();
    {
      // Not for good: what a user's callback sets must not reach the next task.
      const FloatRules rules;
      next();
    }
    next = nullptr;  // what it owns is released before the thread counts as idle
    lock.lock();
  }
  --threads_;
  // Under the lock: the destructor may free this object as soon as it is released.
  ended_.notify_all();
}

}  // namespace geocomm::core
