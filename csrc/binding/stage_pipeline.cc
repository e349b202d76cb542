#include "binding/stage_pipeline.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace geocomm::binding {

namespace {

struct Entry {
  StagedOperation operation;
  std::exception_ptr error;  // written by the stage that runs; guarded by State::mutex between stages
  bool exchanged = false;    // guarded by State::mutex
};

}  // namespace

// Shared with the two threads, so that neither the pipeline's destructor nor a process's end has to wait for
// a stage that is blocked in the inner backend.
struct StagePipeline::State : std::enable_shared_from_this<State> {
  State(core::GrowingExecutor& executor_in, std::size_t slots,
        std::function<void(std::exception_ptr)> on_failure_in)
      : executor(executor_in), free_slots(slots), on_failure(std::move(on_failure_in)) {}

  void run_pre() {
    core::set_thread_name("geocomm-pre");
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || !pre_queue.empty(); });
      if (pre_queue.empty()) return;
      auto entry = std::move(pre_queue.front());
      pre_queue.pop_front();
      run_stage(lock, *entry, entry->operation.pre);
      changed.wait(lock, [&] { return free_slots > 0 || failure; });
      if (entry->error || failure || !entry->operation.exchange) {
        if (!entry->error) entry->error = failure;
        entry->exchanged = true;
        changed.notify_all();
        continue;
      }
      --free_slots;
      executor.submit([self = shared_from_this(), entry] { self->run_exchange(*entry); });
    }
  }

  void run_exchange(Entry& entry) {
    const core::Status status = entry.operation.exchange();
    std::exception_ptr error = status.is_ok() ? nullptr : entry.operation.to_exception(status);
    std::unique_lock lock(mutex);
    ++free_slots;
    if (error) record(lock, entry, error);
    entry.exchanged = true;
    changed.notify_all();
  }

  void run_post() {
    core::set_thread_name("geocomm-post");
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] {
        return (stopping && post_queue.empty()) || (!post_queue.empty() && post_queue.front()->exchanged);
      });
      if (post_queue.empty()) return;
      auto entry = std::move(post_queue.front());
      post_queue.pop_front();
      run_stage(lock, *entry, entry->operation.post);
      executor.submit([self = shared_from_this(), entry] {
        // What the stages own is freed before anyone learns that the operation is done.
        auto done = std::move(entry->operation.done);
        auto error = entry->error;
        entry->operation = {};
        done(error);
        done = nullptr;
        std::lock_guard guard(self->mutex);
        --self->pending;
        self->changed.notify_all();
      });
    }
  }

  // Called and left with the lock held; not held while the stage runs.
  void run_stage(std::unique_lock<std::mutex>& lock, Entry& entry, std::function<void()>& stage) {
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
  std::deque<std::shared_ptr<Entry>> pre_queue;
  std::deque<std::shared_ptr<Entry>> post_queue;
  std::size_t free_slots;
  std::size_t pending = 0;
  std::exception_ptr failure;
  bool started = false;
  bool stopping = false;
  std::function<void(std::exception_ptr)> on_failure;
};

StagePipeline::StagePipeline(core::GrowingExecutor& executor, std::size_t max_concurrent_exchanges,
                             std::function<void(std::exception_ptr)> on_failure)
    : state_(std::make_shared<State>(executor, max_concurrent_exchanges, std::move(on_failure))) {}

StagePipeline::~StagePipeline() {
  std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
}

void StagePipeline::submit(StagedOperation operation) {
  auto entry = std::make_shared<Entry>();
  entry->operation = std::move(operation);
  std::lock_guard lock(state_->mutex);
  if (!state_->started) {
    state_->started = true;
    std::thread([state = state_] { state->run_pre(); }).detach();
    std::thread([state = state_] { state->run_post(); }).detach();
  }
  ++state_->pending;
  state_->pre_queue.push_back(entry);
  state_->post_queue.push_back(std::move(entry));
  state_->changed.notify_all();
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
