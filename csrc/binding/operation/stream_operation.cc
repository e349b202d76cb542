#include "binding/operation/stream_operation.h"

#include <algorithm>
#include <utility>

namespace geocomm::binding {

using core::Status;
using core::StatusCode;

namespace {

thread_local StreamOperation* t_current = nullptr;

class Current {
 public:
  explicit Current(StreamOperation* operation) : before_(std::exchange(t_current, operation)) {}
  ~Current() { t_current = before_; }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  StreamOperation* const before_;
};

constexpr const char* kNoSignal = "CUDA refused to tell the host how far a stream has come";
constexpr const char* kNoGate = "CUDA refused to make a stream wait for the host";

}  // namespace

StreamOperation* StreamOperation::current() {
  return t_current;
}

std::shared_ptr<StreamOperation> StreamOperation::create(std::shared_ptr<StreamLease> lease, InnerUse inner) {
  DeviceStreams& device = lease->device();
  if (lease->stream() == nullptr) return nullptr;
  std::shared_ptr<StreamOperation> self(new StreamOperation(std::move(lease), inner));
  self->arrived_ = StreamGate::create(device);
  self->over_ = StreamGate::create(device);
  self->ready_ = StreamSignal::create(device);
  self->made_ = StreamSignal::create(device);
  self->finish_ = StreamSignal::create(device);
  return self->arrived_ && self->over_ && self->ready_ && self->made_ && self->finish_ ? self : nullptr;
}

// Runs it with this operation as the current one. What it throws is the operation's error.
void StreamOperation::run_stage(const std::function<void()>& stage) {
  stages_.around([&] {
    const Current current(this);
    std::exception_ptr error;
    try {
      stage();
    } catch (...) {
      error = std::current_exception();
    }
    if (!error) return;
    {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = error;
    }
    if (stages_.failed) stages_.failed(error);
  });
}

void StreamOperation::require(bool taken, const char* what) const {
  if (!taken) std::rethrow_exception(stages_.to_exception(Status(StatusCode::Driver, what)));
}

bool StreamOperation::has_failed() const {
  std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void StreamOperation::enqueue_first() {
  run_stage([&] {
    if (stages_.pre) stages_.pre();
    stages_.pre = nullptr;
  });
  run_stage([&] { require(ready_->enqueue(lease_->stream()), kNoSignal); });
}

void StreamOperation::enqueue_middle_locked() {
  if (std::exchange(middle_enqueued_, true)) return;
  run_stage([&] {
    middle_();
    require(made_->enqueue(lease_->stream()), kNoSignal);
  });
}

void StreamOperation::enqueue_middle_if_due() {
  // A thread that has the lock is about it, and may wait for the device, and so for this exchange.
  const std::unique_lock lock(middle_mutex_, std::try_to_lock);
  if (lock && middle_ && !has_failed()) enqueue_middle_locked();
}

void StreamOperation::enqueue_rest() {
  const std::lock_guard lock(rest_mutex_);
  if (is_enqueued()) return;
  const auto close = [&](StreamGate& gate) { require(gate.enqueue(lease_->stream()), kNoGate); };
  // Where `pre` failed there is nothing to exchange. An exchange that failed changes nothing: the other ranks
  // of the site, which may not know yet, take part in this stage with this one.
  if (middle_ && !has_failed()) {
    const std::lock_guard middle_lock(middle_mutex_);
    if (!middle_enqueued_) run_stage([&] { close(*arrived_); });
    if (!has_failed()) enqueue_middle_locked();
  }
  if (stages_.post && !has_failed()) {
    run_stage([&] {
      close(*over_);
      stages_.post();
    });
  }
  run_stage([&] {
    if (stages_.enqueued) stages_.enqueued();
    require(finish_->enqueue(lease_->stream()), kNoSignal);
  });
  stages_.post = nullptr;
  stages_.enqueued = nullptr;
  {
    std::lock_guard state(mutex_);
    enqueued_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

bool StreamOperation::wait_until_enqueued(core::Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline.when(), [&] { return is_enqueued(); });
}

void StreamOperation::open() {
  if (arrived_) arrived_->open();
  if (over_) over_->open();
}

Status StreamOperation::run(const std::function<Status()>& exchange, core::Deadline deadline,
                            const std::function<Status()>& group) {
  Status status;
  nap_until([&] {
    if (is_ready()) return true;
    if (deadline.expired()) {
      status = Status(StatusCode::Timeout,
                      "the device has not come to this operation in time: is it stuck in another kernel?");
    } else {
      status = group();
    }
    return !status.is_ok();
  });
  if (status.is_ok() && exchange) status = core::without_throwing(exchange);
  open();
  return status;
}

Status StreamOperation::wait_until_made(core::Deadline deadline) {
  enqueue_middle_if_due();
  bool is_late = false;
  nap_until([&] { return is_made() || has_failed() || (is_late = deadline.expired()); });
  if (is_made()) return Status::ok();
  if (!is_late) return {StatusCode::Driver, "this rank's part could not be reduced on the device"};
  return {StatusCode::Timeout,
          "the device has not reduced this rank's part in time: is it stuck in another kernel?"};
}

std::exception_ptr StreamOperation::end(std::exception_ptr failure) {
  open();
  // Asked now and then, since that may wait for the driver's lock: a device on which a kernel has failed
  // never comes to `finish`.
  constexpr std::chrono::seconds kBetweenQuestions{1};
  auto next_question = std::chrono::steady_clock::now() + kBetweenQuestions;
  bool is_broken = false;
  nap_until([&] {
    if (is_finished()) return true;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_question) return false;
    next_question = now + kBetweenQuestions;
    stages_.around([&] { is_broken = lease_->device().driver().has_failed(lease_->stream()); });
    return is_broken;
  });
  {
    std::lock_guard lock(mutex_);
    if (!failure) failure = error_;
  }
  Status status;
  if (is_broken) {
    status = Status(StatusCode::Driver, "a kernel has failed on the device");
  } else if (check_) {
    status = check_();
  }
  if (!failure && !status.is_ok()) failure = stages_.to_exception(std::move(status));
  held_.clear();
  stages_ = {};
  middle_ = nullptr;
  check_ = nullptr;
  if (!is_broken) lease_.reset();
  return failure;
}

void EnqueueOrder::issue(const std::shared_ptr<StreamOperation>& operation,
                         const std::function<void()>& submit) {
  std::lock_guard lock(mutex_);
  operation->enqueue_first();
  submit();
  if (operation->inner() != InnerUse::Beside) collectives_.push_back(operation);
}

void EnqueueOrder::use(const std::shared_ptr<StreamOperation>& operation) {
  if (operation->is_enqueued()) return;
  if (operation->inner() != InnerUse::Beside) {
    const std::lock_guard lock(mutex_);
    const auto end = std::ranges::find(collectives_, operation);
    if (end != collectives_.end()) enqueue_locked(end + 1);
  }
  operation->enqueue_rest();  // or waits for the thread that settles it
}

void EnqueueOrder::use_all() {
  const std::lock_guard lock(mutex_);
  enqueue_locked(collectives_.end());
}

void EnqueueOrder::enqueue_locked(Collectives::iterator end) {
  for (auto next = collectives_.begin(); next != end; ++next) (*next)->enqueue_rest();
  collectives_.erase(collectives_.begin(), end);
}

bool EnqueueOrder::settle(const std::shared_ptr<StreamOperation>& operation) {
  if (operation->is_enqueued()) return true;
  if (operation->inner() == InnerUse::FirstAndLast) return false;
  if (operation->inner() == InnerUse::First) {
    const std::lock_guard lock(mutex_);
    std::erase(collectives_, operation);
  }
  operation->enqueue_rest();
  return true;
}

}  // namespace geocomm::binding
