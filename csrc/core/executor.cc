#include "core/executor.h"

#include <pthread.h>

#include <algorithm>

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
  wake_.notify_all();
  ended_.wait(lock, [&] { return threads_ == 0; });
}

void GrowingExecutor::submit(Task task) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(task));
  // One idle thread takes one task: with more tasks queued than threads idle, a task would wait behind a
  // blocked one.
  if (idle_ >= queue_.size()) {
    wake_.notify_one();
    return;
  }
  ++threads_;
  std::thread([this] { run(); }).detach();
}

std::size_t GrowingExecutor::thread_count() const {
  std::lock_guard lock(mutex_);
  return threads_;
}

void GrowingExecutor::run() {
  set_thread_name(name_);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (queue_.empty()) {
      ++idle_;
      const bool woken = wake_.wait_for(lock, keep_, [&] { return stopping_ || !queue_.empty(); });
      --idle_;
      if (queue_.empty() && (stopping_ || !woken)) break;
      continue;
    }
    Task task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it owns is released before the thread counts as idle
    lock.lock();
  }
  --threads_;
  // Under the lock: the destructor may free this object as soon as it is released.
  ended_.notify_all();
}

}  // namespace geocomm::core
