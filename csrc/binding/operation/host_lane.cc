#include "binding/operation/host_lane.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace geocomm::binding {

// Shared with the tasks, so that neither the lane's destructor nor a process's end has to wait for a step
// that is blocked in the inner backend.
//
// Each step inside the site is some task's at a time, which takes it for all operations that are due. A task
// that has no further operation to take the step for goes on with the one it has, if that may keep its
// thread.
//
// Where no further thread can be had, the one that has made a step makes the next one of the same operation:
// so one thread makes all steps in order of issue, as the other ranks can, too.
struct HostLane::State : std::enable_shared_from_this<State> {
  struct Entry {
    const std::shared_ptr<Operation> operation;
    bool has_slot = false;
    bool exchanged = false;
  };
  using EntryPtr = std::shared_ptr<Entry>;
  using Lock = std::unique_lock<std::mutex>;

  State(core::GrowingExecutor& executor_in, std::size_t slots) : executor(executor_in), free_slots(slots) {}

  void submit(const std::shared_ptr<Operation>& operation) {
    const auto entry = std::make_shared<Entry>(Entry{operation});
    std::lock_guard lock(mutex);
    ++pending;
    pre_queue.push_back(entry);
    post_queue.push_back(entry);
    if (!std::exchange(pre_taken, true)) executor.post(task(&State::run_pres));
  }

  template <typename... Arguments>
  core::Task task(void (State::*step)(Lock&, Arguments...), Arguments... arguments) {
    return [self = shared_from_this(), step, arguments...] {
      Lock own(self->mutex);
      (*self.*step)(own, arguments...);
    };
  }

  // The next step of `operation`, which nothing else keeps this thread from.
  template <typename... Arguments>
  void go_on(Lock& lock, Operation& operation, void (State::*step)(Lock&, Arguments...),
             Arguments... arguments) {
    if (!operation.may_keep_thread_ && executor.try_post(task(step, arguments...))) return;
    (this->*step)(lock, arguments...);
  }

  void note_failure_locked(const Operation& operation) {
    if (failure || !operation.error()) return;
    failure = operation.error();
    changed.notify_all();
  }

  void run_pres(Lock& lock) {
    for (;;) {
      const EntryPtr entry = std::move(pre_queue.front());
      pre_queue.pop_front();
      Operation& operation = *entry->operation;
      run(lock, operation, &Operation::run_pre);
      changed.wait(lock, [&] { return free_slots > 0 || failure; });
      if (failure) operation.skip(failure);
      if (!operation.error()) {
        entry->has_slot = true;
        --free_slots;
      }
      pre_taken = !pre_queue.empty();
      if (!pre_taken) return go_on(lock, operation, &State::run_exchange, entry);
      if (executor.try_post(task(&State::run_exchange, entry))) continue;
      executor.post(task(&State::run_pres));
      return run_exchange(lock, entry);
    }
  }

  // Then the step after it, for whom it is due.
  void run_exchange(Lock& lock, EntryPtr entry) {
    if (entry->has_slot) {
      run(lock, *entry->operation, &Operation::run_exchange);
      ++free_slots;
      changed.notify_all();
    }
    entry->exchanged = true;
    if (post_taken || !is_post_due()) return;
    post_taken = true;
    go_on(lock, *entry->operation, &State::run_posts);
  }

  void run_posts(Lock& lock) {
    while (is_post_due()) {
      const EntryPtr entry = std::move(post_queue.front());
      post_queue.pop_front();
      run(lock, *entry->operation, &Operation::run_post);
      if (!is_post_due()) {
        post_taken = false;
        return finish(lock, entry);
      }
      executor.post(task(&State::finish, entry));
    }
    post_taken = false;
  }

  bool is_post_due() const { return !post_queue.empty() && post_queue.front()->exchanged; }

  void finish(Lock& lock, EntryPtr entry) {
    lock.unlock();
    entry->operation->finish();
    lock.lock();
    --pending;
    changed.notify_all();
  }

  // Called and left with the lock held; not held while the step runs.
  void run(Lock& lock, Operation& operation, void (Operation::*step)()) {
    if (failure) operation.skip(failure);
    lock.unlock();
    (operation.*step)();
    lock.lock();
    note_failure_locked(operation);
  }

  core::GrowingExecutor& executor;
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<EntryPtr> pre_queue;
  std::deque<EntryPtr> post_queue;
  bool pre_taken = false;  // a task has the step
  bool post_taken = false;
  std::size_t free_slots;
  std::size_t pending = 0;
  std::exception_ptr failure;
};

HostLane::HostLane(core::GrowingExecutor& executor, std::size_t most_exchanges)
    : state_(std::make_shared<State>(executor, most_exchanges)) {}

void HostLane::submit(const std::shared_ptr<Operation>& operation, Runs runs) {
  switch (runs) {
    case Runs::InOrder:
      return state_->submit(operation);
    case Runs::Beside:
      return state_->executor.post([operation] {
        operation->run_pre();
        operation->run_exchange();
        operation->run_post();
        operation->finish();
      });
    case Runs::OnWaiter:
      return operation->wait_for_waiter(state_->executor);
  }
}

void HostLane::fail(std::exception_ptr why) {
  std::lock_guard lock(state_->mutex);
  if (!state_->failure) state_->failure = std::move(why);
  state_->changed.notify_all();
}

bool HostLane::wait_idle(core::Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline.when(), [&] { return state_->pending == 0; });
}

}  // namespace geocomm::binding
