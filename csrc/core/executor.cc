#include "core/executor.h"

#include <pthread.h>

#include <algorithm>

#include "core/float_rules.h"

namespace geocomm::core {

void set_thread_name(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

ThreadPool::ThreadPool(std::size_t threads, std::string name) {
  for (std::size_t i = 0; i < std::max<std::size_t>(threads, 1); ++i) {
    workers_.emplace_back([this, name = name + std::to_string(i)] { run(name); });
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

void ThreadPool::run(const std::string& name) {
  set_thread_name(name);
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

void GrowingExecutor::submit(Task task) {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) {
    ++threads_;
    std::thread([this, task = std::move(task)]() mutable { run(std::move(task)); }).detach();
    return;
  }
  Worker& worker = *idle_.back();
  idle_.pop_back();
  worker.task = std::move(task);
  worker.wake.notify_one();
}

std::size_t GrowingExecutor::thread_count() const {
  std::lock_guard lock(mutex_);
  return threads_;
}

bool GrowingExecutor::wait_for_task(std::unique_lock<std::mutex>& lock, Worker& worker) {
  if (stopping_) return false;
  idle_.push_back(&worker);
  worker.wake.wait_for(lock, keep_, [&] { return stopping_ || worker.task; });
  if (worker.task) return true;
  std::erase(idle_, &worker);
  return false;
}

void GrowingExecutor::run(Task task) {
  set_thread_name(name_);
  Worker worker;
  worker.task = std::move(task);
  std::unique_lock lock(mutex_, std::defer_lock);
  do {
    Task next = std::move(worker.task);
    worker.task = nullptr;
    if (lock.owns_lock()) lock.unlock();
    {
      // Not for good: what a user's callback sets must not reach the next task.
      const FloatRules rules;
      next();
    }
    next = nullptr;  // what it owns is released before the thread counts as idle
    lock.lock();
  } while (wait_for_task(lock, worker));
  --threads_;
  // Under the lock: the destructor may free this object as soon as it is released.
  ended_.notify_all();
}

}  // namespace geocomm::core
