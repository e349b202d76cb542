// Threads that run tasks: a fixed pool for computing (codecs, reductions) and a growing one for tasks that
// may block. Tasks begin under FloatRules, whatever the thread that made the executor has set.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/status.h"
#include "core/thread.h"

namespace geocomm::core {

// `threads` workers, or as many as the system allows (with none there must be no tasks: why_none()), one FIFO
// queue. Tasks must not block on other tasks of the same pool and must not throw: that ends the process.
// The destructor runs what is queued, then joins.
class ThreadPool {
 public:
  ThreadPool(std::size_t threads, std::string name);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  void submit(Task task);
  std::size_t thread_count() const { return workers_.size(); }
  // Ok, unless it has no threads: then what to do.
  const Status& why_none() const { return why_none_; }
  // Whether the calling thread is one of it.
  bool is_worker() const;

 private:
  void run();

  std::mutex mutex_;  // guards queue_, stopping_
  std::condition_variable wake_;
  std::deque<Task> queue_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
  Status why_none_;
};

// Runs tasks that block (a collective's WAN exchange, a Future's callbacks, which may themselves wait for
// another collective): each on an idle thread where there is one, else on a new one. Of the idle threads the
// last one to become so is taken, so that few do most of the work and keep what libraries give each thread
// (OpenMP a team of others). Idle threads end after `keep`. No task runs on the thread that submits it, so
// that may be done under any lock. The destructor waits for the tasks. Tasks must not throw: that ends the
// process.
class GrowingExecutor {
 public:
  explicit GrowingExecutor(std::string name, std::chrono::milliseconds keep = std::chrono::seconds(10));
  ~GrowingExecutor();
  GrowingExecutor(const GrowingExecutor&) = delete;
  GrowingExecutor& operator=(const GrowingExecutor&) = delete;

  // For whom somebody keeps a thread (keep_one()): where the system allows no more, the task waits until one
  // comes free, and one warning says what to do.
  void post(Task task);
  // For a task that the caller can do itself, and would wait for: false, and it is not taken, where it would
  // have to wait for a thread.
  bool try_post(Task task);
  // From now on there is a thread, until as many calls of keep_no_more(). An error, which says what to do,
  // where there is none and the system allows none.
  Status keep_one();
  void keep_no_more();
  std::size_t thread_count() const;

 private:
  struct Worker {
    std::condition_variable wake;
    Task task;
  };
  void run();
  bool hand_to_idle_locked(Task& task);
  // Whether a thread takes it at once.
  bool begin_locked(Task& task);
  Status add_thread_locked();
  // For a worker without a task. False: its time is up, or there will be no more tasks.
  bool wait_for_task(std::unique_lock<std::mutex>& lock, Worker& worker);

  const std::string name_;
  const std::chrono::milliseconds keep_;
  mutable std::mutex mutex_;  // guards all below, and every Worker
  std::condition_variable ended_;
  std::vector<Worker*> idle_;
  std::deque<Task> waiting_;  // for a thread that starts, or ends its task
  std::size_t threads_ = 0;
  std::size_t keepers_ = 0;  // for whom a thread is kept
  bool is_short_ = false;    // of threads, and that was said
  bool stopping_ = false;
};

}  // namespace geocomm::core
