#include "binding/operation/stage_pipeline.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace geocomm::binding {

namespace {

struct Entry {
  StagedOperation operation;
  std::exception_ptr error;  // written by the stage that runs; guarded by State::mutex between stages
  bool exchanged = false;    // guarded by State::mutex
};
using EntryPtr = std::shared_ptr<Entry>;

}  // namespace

// Shared with the tasks, so that neither the pipeline's destructor nor a process's end has to wait for a
// stage that is blocked in the inner backend.
//
// Each stage inside the site is some task's at a time, which takes it for all operations that are due. A task
// that has no further operation to take the stage for goes on with the one it has, if that may keep its
// thread.
struct StagePipeline::State : std::enable_shared_from_this<State> {
  State(core::GrowingExecutor& executor_in, std::size_t slots,
        std::function<void(std::exception_ptr)> on_failure_in)
      : executor(executor_in), free_slots(slots), on_failure(std::move(on_failure_in)) {}

  void run_pres() {
    std::unique_lock lock(mutex);
    for (;;) {
      const EntryPtr entry = std::move(pre_queue.front());
      pre_queue.pop_front();
      run_stage(lock, *entry, entry->operation.pre);
      changed.wait(lock, [&] { return free_slots > 0 || failure; });
      if (!entry->error) entry->error = failure;
      if (!entry->error && entry->operation.exchange) --free_slots;
      pre_taken = !pre_queue.empty();
      if (!pre_taken && entry->operation.may_keep_thread) return run_exchange(lock, *entry);
      executor.submit([self = shared_from_this(), entry] {
        std::unique_lock task_lock(self->mutex);
        self->run_exchange(task_lock, *entry);
      });
      if (!pre_taken) return;
    }
  }

  // As run_stage(). Then the stage after it, for whom it is due.
  void run_exchange(std::unique_lock<std::mutex>& lock, Entry& entry) {
    if (!entry.error && entry.operation.exchange) {
      lock.unlock();
      const core::Status status = core::without_throwing(entry.operation.exchange);
      const std::exception_ptr error = status.is_ok() ? nullptr : entry.operation.to_exception(status);
      lock.lock();
      ++free_slots;
      if (error) record(lock, entry, error);
      changed.notify_all();
    }
    entry.exchanged = true;
    if (post_taken || !is_post_due()) return;
    post_taken = true;
    if (entry.operation.may_keep_thread) return run_posts(lock);
    executor.submit([self = shared_from_this()] {
      std::unique_lock task_lock(self->mutex);
      self->run_posts(task_lock);
    });
  }

  void run_posts(std::unique_lock<std::mutex>& lock) {
    while (is_post_due()) {
      const EntryPtr entry = std::move(post_queue.front());
      post_queue.pop_front();
      run_stage(lock, *entry, entry->operation.post);
      if (!is_post_due()) {
        post_taken = false;
        return finish(lock, *entry);
      }
      executor.submit([self = shared_from_this(), entry] {
        std::unique_lock task_lock(self->mutex);
        self->finish(task_lock, *entry);
      });
    }
    post_taken = false;
  }

  bool is_post_due() const { return !post_queue.empty() && post_queue.front()->exchanged; }

  void finish(std::unique_lock<std::mutex>& lock, Entry& entry) {
    lock.unlock();
    // What the stages own is freed before anyone learns that the operation is done.
    auto done = std::move(entry.operation.done);
    const auto error = entry.error;
    entry.operation = {};
    done(error);
    done = nullptr;
    lock.lock();
    --pending;
    changed.notify_all();
  }

  // Called and left with the lock held; not held while the stage runs.
  void run_stage(std::unique_lock<std::mutex>& lock, Entry& entry, const std::function<void()>& stage) {
    if (!entry.error && failure) entry.error = failure;
    if (entry.error || !stage) return;
    std::exception_ptr error;
    lock.unlock();
    try {
      stage();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) record(lock, entry, error);
  }

  void record(std::unique_lock<std::mutex>& lock, Entry& entry, std::exception_ptr error) {
    entry.error = error;
    if (failure) return;
    failure = error;
    changed.notify_all();
    lock.unlock();
    on_failure(error);
    lock.lock();
  }

  core::GrowingExecutor& executor;
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<EntryPtr> pre_queue;
  std::deque<EntryPtr> post_queue;
  bool pre_taken = false;  // a task has the stage
  bool post_taken = false;
  std::size_t free_slots;
  std::size_t pending = 0;
  std::exception_ptr failure;
  std::function<void(std::exception_ptr)> on_failure;
};

StagePipeline::StagePipeline(core::GrowingExecutor& executor, std::size_t max_concurrent_exchanges,
                             std::function<void(std::exception_ptr)> on_failure)
    : state_(std::make_shared<State>(executor, max_concurrent_exchanges, std::move(on_failure))) {}

void StagePipeline::submit(StagedOperation operation) {
  const auto entry = std::make_shared<Entry>();
  entry->operation = std::move(operation);
  {
    std::lock_guard lock(state_->mutex);
    ++state_->pending;
    state_->pre_queue.push_back(entry);
    state_->post_queue.push_back(entry);
    if (std::exchange(state_->pre_taken, true)) return;
  }
  state_->executor.submit([state = state_] { state->run_pres(); });
}

void StagePipeline::fail(std::exception_ptr why) {
  std::lock_guard lock(state_->mutex);
  if (!state_->failure) state_->failure = std::move(why);
  state_->changed.notify_all();
}

bool StagePipeline::wait_idle(core::Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline.when(), [&] { return state_->pending == 0; });
}

}  // namespace geocomm::binding
