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

std::shared_ptr<StreamOperation> StreamOperation::create(OperationId id, core::Deadline deadline,
                                                         std::shared_ptr<OperationGroup> group,
                                                         std::shared_ptr<StreamLease> lease, InnerUse inner,
                                                         Around around) {
  std::shared_ptr<StreamOperation> self(new StreamOperation(std::move(id), deadline, std::move(group),
                                                            std::move(lease), inner, std::move(around)));
  const StreamLease& own = *self->lease_;
  self->over_ = std::make_unique<StreamGate>(own, StreamWord::Over);
  self->ready_ = std::make_unique<StreamSignal>(own, StreamWord::Ready);
  self->finish_ = std::make_unique<StreamSignal>(own, StreamWord::Finish);
  return self;
}

void StreamOperation::use() {
  if (order_) order_->use(std::static_pointer_cast<StreamOperation>(shared_from_this()));
}

// Runs it with this operation as the current one. What it throws is the operation's error.
void StreamOperation::run_stage(const std::function<void()>& stage) {
  try {
    around_([&] {
      const Current current(this);
      stage();
    });
  } catch (...) {
    fail(std::current_exception());
  }
}

// By itself, so that nothing which throws before it keeps the host from learning how far the stream has come.
void StreamOperation::signal(StreamSignal& signal) {
  run_stage([&] { require(signal.enqueue(), kNoSignal); });
  signal.give_unless_enqueued();
}

// Where nothing can be enqueued, whoever waits learns that, at least: a stream is needed for success alone.
void StreamOperation::tell(Told& told) {
  const Told tells = std::exchange(told, nullptr);
  if (!tells) return;
  const auto with_error = [&] { tells(has_failed() ? group_->named(error(), id_) : nullptr); };
  bool is_told = false;
  run_stage([&] {
    with_error();
    is_told = true;
  });
  if (is_told) return;
  try {
    with_error();
  } catch (...) {
    fail(std::current_exception());
  }
}

void StreamOperation::require(bool taken, const char* what) const {
  if (!taken) std::rethrow_exception(group_->to_exception(Status(StatusCode::Driver, what), id_));
}

void StreamOperation::enqueue_first() {
  run_stage([&] {
    if (steps_.pre) steps_.pre();
    steps_.pre = nullptr;
  });
  signal(*ready_);
  // Where this throws, the exchange does not begin.
  if (!pieces_there_ || has_failed()) return;
  run_stage([&] {
    for (std::uint32_t i = 0; i < pieces_.count; ++i) {
      pieces_.to_host(i);
      require(pieces_there_->enqueue(), kNoSignal);
    }
  });
}

void StreamOperation::set_pieces(Pieces pieces) {
  pieces_there_ = std::make_unique<StreamSignal>(*lease_, StreamWord::PiecesThere, pieces.count);
  pieces_made_ = std::make_unique<StreamGate>(*lease_, StreamWord::PiecesMade, pieces.count);
  pieces_ = std::move(pieces);
}

void StreamOperation::set_middle(Middle middle) {
  arrived_ = std::make_unique<StreamGate>(*lease_, StreamWord::Arrived, middle.count);
  made_ = std::make_unique<StreamSignal>(*lease_, StreamWord::Made, middle.count);
  middle_ = std::move(middle);
}

void StreamOperation::enqueue_next_of_middle_locked() {
  run_stage([&] { middle_.enqueue(middle_enqueued_); });
  ++middle_enqueued_;
  if (has_failed()) return;
  run_stage([&] { require(made_->enqueue(), kNoSignal); });
}

void StreamOperation::enqueue_middle_if_due(std::uint32_t parts) {
  // A thread that has the lock is about it, and may wait for the device, and so for this exchange.
  const std::unique_lock lock(middle_mutex_, std::try_to_lock);
  if (!lock) return;
  while (middle_enqueued_ < std::min(parts, middle_.count) && !has_failed()) enqueue_next_of_middle_locked();
}

void StreamOperation::enqueue_rest() {
  const std::lock_guard lock(rest_mutex_);
  if (is_enqueued()) return;
  const auto close = [&](StreamGate& gate) { require(gate.enqueue(), kNoGate); };
  // Where `pre` failed there is nothing to exchange. An exchange that failed changes nothing: the other ranks
  // of the site, which may not know yet, take part in this stage with this one.
  if (middle_.count > 0) {
    const std::lock_guard middle_lock(middle_mutex_);
    while (middle_enqueued_ < middle_.count && !has_failed()) {
      run_stage([&] { require(arrived_->enqueue(middle_enqueued_ + 1), kNoGate); });
      if (!has_failed()) enqueue_next_of_middle_locked();
    }
  }
  if (pieces_.back && !has_failed()) {
    run_stage([&] {
      for (std::uint32_t i = 0; i < pieces_.count; ++i) {
        require(pieces_made_->enqueue(i + 1), kNoGate);
        pieces_.back(i);
      }
    });
  }
  if (steps_.post && !has_failed()) {
    run_stage([&] {
      close(*over_);
      steps_.post();
    });
  }
  tell(when_enqueued_);
  signal(*finish_);
  steps_.post = nullptr;
  {
    std::lock_guard state(enqueued_mutex_);
    enqueued_.store(true, std::memory_order_release);
  }
  was_enqueued_.notify_all();
}

bool StreamOperation::wait_until_enqueued(core::Deadline deadline) {
  std::unique_lock lock(enqueued_mutex_);
  return was_enqueued_.wait_until(lock, deadline.when(), [&] { return is_enqueued(); });
}

void StreamOperation::open() {
  is_over_.store(true, std::memory_order_release);
  if (arrived_) arrived_->open();
  if (pieces_made_) pieces_made_->open();
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

Status StreamOperation::wait_until_made(std::uint32_t parts, core::Deadline deadline) {
  enqueue_middle_if_due(parts);
  bool is_late = false;
  nap_until([&] { return is_made(parts) || has_failed() || (is_late = deadline.expired()); });
  if (is_made(parts)) return Status::ok();
  if (!is_late) return {StatusCode::Driver, "this rank's part could not be reduced on the device"};
  return {StatusCode::Timeout,
          "the device has not reduced this rank's part in time: is it stuck in another kernel?"};
}

core::Result<std::uint32_t> StreamOperation::wait_for_pieces(std::uint32_t count, core::Deadline deadline) {
  bool is_late = false;
  nap_until([&] { return pieces_there_->given() >= count || (is_late = deadline.expired()); });
  if (!is_late) return pieces_there_->given();
  return Status(StatusCode::Timeout,
                "the device has not copied this operation's data in time: is it stuck in another kernel?");
}

void StreamOperation::run_exchange() {
  if (has_failed()) return open();  // where `pre` failed there is nothing to exchange
  Status status = run(steps_.exchange, deadline_, [this] { return group_->failure(); });
  if (!status.is_ok()) fail(std::move(status));
}

void StreamOperation::end() {
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
    is_broken = true;  // unless it answers
    run_stage([&] { is_broken = lease_->device().driver().has_failed(lease_->stream()); });
    return is_broken;
  });
  Status status;
  if (is_broken) {
    status = Status(StatusCode::Driver, "a kernel has failed on the device");
  } else if (check_) {
    status = check_();
  }
  if (!status.is_ok()) fail(std::move(status));
  held_.clear();
  middle_ = {};
  pieces_ = {};
  check_ = nullptr;
  if (is_broken) return;
  let_go_of_words();
  lease_.reset();
}

// Whoever holds the Work may do so for long.
void StreamOperation::let_go_of_words() {
  for (const auto* gate : {&over_, &arrived_, &pieces_made_}) {
    if (*gate) (*gate)->let_go();
  }
  for (const auto* signal : {&ready_, &made_, &pieces_there_, &finish_}) {
    if (*signal) (*signal)->let_go();
  }
}

void StreamOperation::finish() {
  open();  // also where there was no exchange
  // Somebody holds the Work and does not wait for it. Other ranks of the site may wait for this one's last
  // step; after so long, few programs are still to make calls that need it in a certain place.
  constexpr std::chrono::seconds kUnused{10};
  const auto self = std::static_pointer_cast<StreamOperation>(shared_from_this());
  if (!order_->enqueue_unused(self) && !has_failed()) wait_until_enqueued(core::Deadline::after(kUnused));
  order_->use(self);
  tell(when_over_);
  end();
  Operation::finish();
}

void StreamLane::submit(const std::shared_ptr<StreamOperation>& operation, Runs runs) {
  operation->order_ = order_;
  order_->issue(operation, [&] { host_.submit(operation, runs); });
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
    enqueue_until(operation);
  } else if (operation->is_early()) {
    operation->wait_until_over();
  }
  operation->enqueue_rest();  // or waits for the thread that is about it
}

void EnqueueOrder::use_all() {
  enqueue_until(nullptr);
}

void EnqueueOrder::enqueue_until(const std::shared_ptr<StreamOperation>& last) {
  for (;;) {
    std::shared_ptr<StreamOperation> early;
    {
      const std::lock_guard lock(mutex_);
      auto end = collectives_.end();
      if (last) {
        end = std::ranges::find(collectives_, last);
        if (end == collectives_.end()) return;
        ++end;
      }
      const auto found =
          std::find_if(collectives_.begin(), end, [](const auto& one) { return one->is_early(); });
      if (found == end) return enqueue_locked(end);
      early = *found;
    }
    // Exchanges begin in the order of issue: none waits for a thread that stands here.
    early->wait_until_over();
  }
}

void EnqueueOrder::enqueue_locked(Collectives::iterator end) {
  for (auto next = collectives_.begin(); next != end; ++next) (*next)->enqueue_rest();
  collectives_.erase(collectives_.begin(), end);
}

bool EnqueueOrder::enqueue_unused(const std::shared_ptr<StreamOperation>& operation) {
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
