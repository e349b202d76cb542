#include "binding/operation/operation.h"

#include <utility>

namespace geocomm::binding {

std::exception_ptr Operation::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void Operation::skip(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
}

void Operation::fail(std::exception_ptr error) {
  skip(error);
  group_->failed(error);
}

void Operation::fail(core::Status status) {
  fail(group_->to_exception(std::move(status), id_));
}

void Operation::run(std::function<void()>& step) {
  if (!step || error()) return;
  try {
    step();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Operation::run_exchange() {
  if (!steps_.exchange || error()) return;
  core::Status status = core::without_throwing(steps_.exchange);
  if (!status.is_ok()) fail(std::move(status));
}

void Operation::finish() {
  steps_ = {};
  const auto group = std::exchange(group_, nullptr);
  auto failure = error();
  if (failure) failure = group->named(failure, id_);
  const auto done = std::exchange(done_, nullptr);
  if (done) done(failure);
}

void Operation::wait_for_waiter(core::GrowingExecutor& executor) {
  std::lock_guard lock(mutex_);
  executor_ = &executor;
  waits_for_waiter_ = true;
  if (!over_) return;
  share_ = shared_from_this();
  post_rest_locked();
}

void Operation::over(std::shared_ptr<Operation> operation) {
  Operation& self = *operation;
  std::lock_guard lock(self.mutex_);
  self.over_ = true;
  if (!self.waits_for_waiter_ && !self.begun_) return;  // whoever submits it has a share
  self.share_ = std::move(operation);
  if (self.begun_ || self.waiters_ == 0) return self.post_rest_locked();
  self.changed_.notify_all();
}

// Nobody waits: a thread of the executor runs it, which is not long since it is over, unless another has
// begun it.
void Operation::post_rest_locked() {
  executor_->post([operation = std::move(share_)] { operation->run_rest(); });
}

void Operation::run_once_over(const Wait& wait) {
  std::shared_ptr<Operation> share;
  {
    std::unique_lock lock(mutex_);
    if (!waits_for_waiter_) return;
    ++waiters_;
    try {
      wait(lock, changed_, deadline_, [&] { return over_ || !waits_for_waiter_; });
    } catch (...) {
      if (--waiters_ == 0 && share_) post_rest_locked();
      throw;
    }
    --waiters_;
    share = std::move(share_);
  }
  run_rest();
}

void Operation::run_rest() {
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(waits_for_waiter_, false)) return;
    begun_ = true;
  }
  run_exchange();
  finish();
}

}  // namespace geocomm::binding
