#include "core/executor.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>

#include "core/float_rules.h"
#include "core/log.h"

namespace geocomm::core {

void set_thread_name(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

std::optional<std::thread> start_thread(Task body, const char* otherwise) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    log(LogLevel::Warning, "cannot start a thread: ", error.what(),
        ". Raise the limit of processes (ulimit -u, or ", "pids.max of the container); ", otherwise);
    return std::nullopt;
  }
}

ThreadPool::ThreadPool(std::size_t threads, std::string name) {
  for (std::size_t i = 0; i < std::max<std::size_t>(threads, 1); ++i) {
    auto worker =
        start_thread([this, name = name + std::to_string(i)] { run(name); }, "until then fewer compute");
    if (!worker) break;
    workers_.push_back(std::move(*worker));
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

bool GrowingExecutor::hand_over_locked(Task task) {
  if (!idle_.empty()) {
    Worker& worker = *idle_.back();
    idle_.pop_back();
    worker.task = std::move(task);
    worker.wake.notify_one();
    return true;
  }
  waiting_.push_back(std::move(task));
  ++threads_;
  idle_.reserve(threads_);  // a thread that has nothing to do takes its place without memory
  if (auto thread = start_thread([this] { run(); }, "until then tasks wait for each other")) {
    thread->detach();
    return true;
  }
  return --threads_ > 0;
}

void GrowingExecutor::submit(Task task) {
  std::unique_lock lock(mutex_);
  if (hand_over_locked(std::move(task))) return;
  const FloatRules rules;
  while (!waiting_.empty()) {
    Task next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    next();
    next = nullptr;
    lock.lock();
  }
}

void GrowingExecutor::post(Task task) {
  std::lock_guard lock(mutex_);
  (void)hand_over_locked(std::move(task));
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
  worker.wake.wait_for(lock, keep_, [&] { return stopping_ || worker.task; });
  if (worker.task) return true;
  std::erase(idle_, &worker);
  return false;
}

void GrowingExecutor::run() {
  set_thread_name(name_);
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
