// Threads that run tasks: a fixed pool for computing (codecs, reductions) and a growing one for tasks that
// may block. Tasks begin under FloatRules, whatever the thread that made the executor has set.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace geocomm::core {

using Task = std::function<void()>;

// Nothing where the system allows no more threads: then it logs that, and what follows from it.
std::optional<std::thread> start_thread(Task body, const char* otherwise);

// `threads` workers, or as many as the system allows (thread_count(); with none there must be no tasks), one
// FIFO queue. Tasks must not block on other tasks of the same pool and must not throw. The destructor runs
// what is queued, then joins.
class ThreadPool {
 public:
  ThreadPool(std::size_t threads, std::string name);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  void submit(Task task);
  std::size_t thread_count() const { return workers_.size(); }
  // Whether the calling thread is one of it.
  bool is_worker() const;

 private:
  void run(const std::string& name);

  std::mutex mutex_;  // guards queue_, stopping_
  std::condition_variable wake_;
  std::deque<Task> queue_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

// Runs every task at once: on an idle thread where there is one, else on a new one. For tasks that block (a
// collective's WAN exchange, a Future's callbacks, which may themselves wait for another collective). Of the
// idle threads the last one to become so is taken, so that few do most of the work and keep what libraries
// give each thread (OpenMP a team of others). Idle threads end after `keep`. The destructor waits for the
// running tasks. Where the system allows no more threads, a task waits for a running one to end; where none
// runs, submit() itself does, and so its caller holds no lock that the task may take.
class GrowingExecutor {
 public:
  explicit GrowingExecutor(std::string name, std::chrono::milliseconds keep = std::chrono::seconds(10));
  ~GrowingExecutor();
  GrowingExecutor(const GrowingExecutor&) = delete;
  GrowingExecutor& operator=(const GrowingExecutor&) = delete;

  void submit(Task task);
  // The same from anywhere, also under locks that the task takes: where no thread can be had it is left to
  // the next call of either.
  void post(Task task);
  std::size_t thread_count() const;

 private:
  struct Worker {
    std::condition_variable wake;
    Task task;
  };
  void run();
  // Whether there is a thread that will take it.
  bool hand_over_locked(Task task);
  // For a worker without a task. False: its time is up, or there will be no more tasks.
  bool wait_for_task(std::unique_lock<std::mutex>& lock, Worker& worker);

  const std::string name_;
  const std::chrono::milliseconds keep_;
  mutable std::mutex mutex_;  // guards all below, and every Worker
  std::condition_variable ended_;
  std::vector<Worker*> idle_;
  std::deque<Task> waiting_;  // for a thread that starts, or ends its task
  std::size_t threads_ = 0;
  bool stopping_ = false;
};

// Names the calling thread (at most 15 characters are kept) for debuggers and `top -H`.
void set_thread_name(const std::string& name);

}  // namespace geocomm::core
