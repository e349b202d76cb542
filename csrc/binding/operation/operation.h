// Operation: a collective or a message on its way. A lane (host_lane.h, stream_lane.h) is the only way in,
// finish() the only way out. Knows nothing of torch.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "core/deadline.h"
#include "core/executor.h"
#include "core/status.h"

namespace geocomm::binding {

// What an operation does, in this order. Each may be empty and may throw (from `exchange` that is Internal),
// runs at most once, and not after one that failed.
struct Steps {
  std::function<void()> pre;               // inside the site
  std::function<core::Status()> exchange;  // between sites; may block, up to the deadline
  std::function<void()> post;              // inside the site
};

enum class Runs {
  InOrder,   // `pre` and `post` one operation after the other, as they were issued
  Beside,    // at once
  OnWaiter,  // `exchange` alone: on the thread that waits; on another one if it is over() and nobody does
};

// What messages call it: "all_reduce", its number in the group.
struct OperationId {
  std::string title;
  std::int64_t seq = -1;
};

// What operations that fail together share. Thread-safe.
class OperationGroup {
 public:
  virtual ~OperationGroup() = default;
  // Why none of its operations can succeed any more; or ok.
  virtual core::Status failure() const = 0;
  // One of them has failed. Maybe under a lane's locks: it calls no lane.
  virtual void failed(const std::exception_ptr& error) = 0;
  virtual std::exception_ptr to_exception(core::Status status, const OperationId& operation) const = 0;
  // What the program gets for it; it is the last error of the process from now on.
  virtual std::exception_ptr named(const std::exception_ptr& error, const OperationId& operation) const = 0;
};

// Thread-safe. Its lane owns it until it is done, and so does whoever waits for it.
//
// What the steps hold (the program's tensors and Python's objects with them) is let go by the thread that
// finishes it, which may wait for Python's lock: one of an executor's or the program's own, never the IO
// thread; before anyone learns that it is done.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  using Done = std::function<void(std::exception_ptr)>;
  // condition_variable::wait_until(), which may throw: it runs the program's handlers of signals.
  using Wait = std::function<void(std::unique_lock<std::mutex>&, std::condition_variable&, core::Deadline,
                                  const std::function<bool()>&)>;

  Operation(OperationId id, core::Deadline deadline, std::shared_ptr<OperationGroup> group)
      : id_(std::move(id)), deadline_(deadline), group_(std::move(group)) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Before it is submitted.
  void set_steps(Steps steps) { steps_ = std::move(steps); }
  // Runs exactly once, with the exception or nullptr, on a thread that may block: it runs callbacks of the
  // program, which may wait for another operation.
  void on_done(Done done) { done_ = std::move(done); }
  // It may go through all its steps on one thread, which spares the time of waking others. Else the steps
  // inside the site are left to few threads: to each may belong a team of OpenMP's.
  void may_keep_thread(bool may) { may_keep_thread_ = may; }

  // Somebody is to wait for it: on a stream the rest is enqueued.
  virtual void use() {}
  // As Runs::OnWaiter: waits until it is over, or to the deadline, and runs it, unless another thread has
  // begun it. Does nothing to others.
  void run_once_over(const Wait& wait);
  // It would not wait any more. From any thread, under any lock, also before it is submitted. Takes the
  // caller's share of it, so that the last one is not let go there.
  static void over(std::shared_ptr<Operation> operation);

  // The first error, or nullptr.
  std::exception_ptr error() const;

 protected:
  friend class HostLane;

  // The steps as they run on a thread, one after the other.
  virtual void run_pre() { run(steps_.pre); }
  virtual void run_exchange();
  virtual void run_post() { run(steps_.post); }
  virtual void finish();
  // As Runs::OnWaiter, from now on.
  void wait_for_waiter(core::GrowingExecutor& executor);
  // The first error counts; the group hears of it.
  void fail(std::exception_ptr error);
  void fail(core::Status status);
  // The same with an error that the group knows.
  void skip(std::exception_ptr error);

  const OperationId id_;
  const core::Deadline deadline_;
  std::shared_ptr<OperationGroup> group_;
  Steps steps_;

 private:
  void run(std::function<void()>& step);
  void run_rest();
  void post_rest_locked();

  Done done_;
  bool may_keep_thread_ = false;

  mutable std::mutex mutex_;  // guards all below
  std::exception_ptr error_;
  // As Runs::OnWaiter.
  core::GrowingExecutor* executor_ = nullptr;
  bool waits_for_waiter_ = false;
  bool begun_ = false;
  bool over_ = false;
  int waiters_ = 0;
  std::shared_ptr<Operation> share_;  // over()'s, for the first of them
  std::condition_variable changed_;
};

}  // namespace geocomm::binding
