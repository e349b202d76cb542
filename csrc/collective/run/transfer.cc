#include "collective/run/transfer.h"

#include <algorithm>
#include <utility>

namespace geocomm::collective {

using core::Status;

namespace {

// Frames are made only so far ahead of the wire: while the channels hold less than this for all operations of
// the Exchange together, or less than the second for this one, which keeps every operation moving.
constexpr std::size_t kSharedQueueBytes = std::size_t{64} << 20;
constexpr std::size_t kOwnQueueBytes = std::size_t{4} << 20;
// Operations of so much, raw, leave the pool out.
constexpr std::uint64_t kSmallBytes = 64 * 1024;
// What a failed operation gives the news of a mismatch to get out.
constexpr std::chrono::seconds kTellGrace{5};
// Point-to-point: the two directions between two ranks have numbers of their own.
constexpr std::uint64_t kDownwardBit = std::uint64_t{1} << 61;
constexpr std::uint64_t kP2pBit = std::uint64_t{1} << 62;
constexpr int kP2pCounterBits = 24;
constexpr std::uint64_t kP2pCounterMask = (std::uint64_t{1} << kP2pCounterBits) - 1;

}  // namespace

std::uint64_t p2p_seq(std::int32_t tag, std::uint32_t counter) {
  return kP2pBit | std::uint64_t{static_cast<std::uint32_t>(tag)} << kP2pCounterBits |
         (counter & kP2pCounterMask);
}

std::int64_t shown_seq(const OpContext& context) {
  const bool p2p = context.kind == OpKind::SendRecv;
  return static_cast<std::int64_t>(p2p ? context.seq & kP2pCounterMask : context.seq);
}

// Bytes that a channel holds. The channel may drop a chunk without a word (cancel), so they are given back
// with the last reference.
class Transfer::QueuedBytes {
 public:
  QueuedBytes(std::shared_ptr<ExchangeShared> shared, std::size_t bytes)
      : shared_(std::move(shared)), bytes_(bytes) {
    shared_->queued_bytes += bytes_;
  }
  ~QueuedBytes() { shared_->queued_bytes -= bytes_; }
  QueuedBytes(const QueuedBytes&) = delete;
  QueuedBytes& operator=(const QueuedBytes&) = delete;

 private:
  std::shared_ptr<ExchangeShared> shared_;
  std::size_t bytes_;
};

class Transfer::Sink : public transport::ReceiveSink {
 public:
  Sink(std::shared_ptr<Transfer> transfer, std::size_t peer)
      : transfer_(std::move(transfer)), keep_alive_(transfer_->keep_alive_), peer_(peer) {}

  core::Result<std::span<std::byte>> place(std::uint32_t chunk, std::size_t chunk_bytes) override {
    return core::without_throwing([&] { return transfer_->place(peer_, chunk, chunk_bytes); });
  }

  void on_chunk(std::uint32_t chunk) override {
    std::unique_lock lock(transfer_->mutex_);
    if (transfer_->ended_) return;
    Peer& peer = transfer_->peers_[peer_];
    transfer_->defers_wake_ = true;
    Arrival arrival;
    Status status = core::without_throwing([&] {
      arrival = transfer_->on_arrival(peer_, chunk);
      return Status::ok();
    });
    if (!status.is_ok()) transfer_->fail_locked(std::move(status));
    transfer_->defers_wake_ = false;
    ++peer.arrived;
    // Nothing more is written. The operation has its own share until end(): the last one, with which a user's
    // tensor may go, is not let go here.
    if (peer.arrived == peer.receives) keep_alive_.reset();
    if (arrival.owed) ++peer.owed_arrived;
    if (arrival.sum) ++peer.sums_arrived;
    ExchangeShared& shared = *transfer_->shared_;
    // An operation is under way from the first chunk to the last that the peer sends without waiting.
    const std::uint32_t flowing = peer.owed > 0 ? peer.owed : peer.receives;
    const std::uint32_t flowed = peer.owed > 0 ? peer.owed_arrived : peer.arrived;
    const bool bounds = flowing > 1 && (peer.owed == 0 || arrival.owed);
    shared.rates.arrived(peer.rank, arrival.wire_bytes, bounds && flowed == 1, bounds && flowed == flowing);
    shared.raw_bytes_received += arrival.raw_bytes;
    shared.wire_bytes_received += arrival.wire_bytes;
    transfer_->record_->arrived(peer.rank, arrival.raw_bytes, arrival.wire_bytes);
    if (!std::exchange(transfer_->wake_deferred_, false)) return;
    const auto notify = transfer_->is_over_locked() ? std::exchange(transfer_->when_over_, nullptr) : nullptr;
    lock.unlock();
    if (notify) notify();
    transfer_->wake_.notify_all();
  }

  Status on_mismatch(std::uint64_t descriptor, std::uint32_t chunk_count) override {
    return transfer_->mismatch(peer_, descriptor, chunk_count);
  }

  void on_error(const Status& status) override {
    transfer_->fail(core::without_throwing(
        [&]() -> Status { return Status(status).with_peer(transfer_->peer_name(peer_)); }));
  }

 private:
  const std::shared_ptr<Transfer> transfer_;
  std::shared_ptr<void> keep_alive_;  // guarded by the operation's mutex
  const std::size_t peer_;
};

namespace {
OpContext without_keep_alive(OpContext context) {
  context.keep_alive.reset();
  return context;
}
}  // namespace

Transfer::Transfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context)
    : shared_(std::move(shared)),
      context_(without_keep_alive(context)),
      record_(context.record ? context.record : std::make_shared<OpRecord>(OpTimes{})),
      keep_alive_(context.keep_alive) {}

void Transfer::plan(std::vector<Peer> peers, std::size_t producers, std::size_t finishes, std::uint64_t bytes,
                    std::string codec) {
  peers_ = std::move(peers);
  codec_name_ = std::move(codec);
  producers_ = producers;
  pending_ = producers + finishes;
  produces_here_ = producers <= 1 || bytes <= kSmallBytes;
  finishes_here_ = finishes <= 1 || bytes <= kSmallBytes;
}

void Transfer::begin() {
  ++shared_->operations;
  record_->begins(codec_name_);
  if (Status opened = core::without_throwing([&] { return open(); }); !opened.is_ok())
    fail(std::move(opened));
  Status started = core::without_throwing([&] {
    start();
    return Status::ok();
  });
  if (!started.is_ok()) fail(std::move(started));
  std::unique_lock lock(mutex_);
  if (produces_here_) produce_here(lock);
  started_ = true;
  feed_locked();
  if (is_over_locked()) over_locked();  // nothing to do at all
}

Status Transfer::timed_produce(std::size_t job) {
  const std::uint64_t began = OpRecord::now();
  Status status = core::without_throwing([&] { return produce(job); });
  const std::uint64_t took = record_->made_frame(began);
  if (!codec_name_.empty()) shared_->encode_time += took;
  return status;
}

Status Transfer::timed_finish(const std::function<Status()>& task) {
  const std::uint64_t began = OpRecord::now();
  Status status = core::without_throwing(task);
  const std::uint64_t took = record_->used_frame(began);
  if (!codec_name_.empty()) shared_->decode_time += took;
  return status;
}

void Transfer::produce_here(std::unique_lock<std::mutex>& lock) {
  while (next_producer_ < std::min(producers_, released_producers_) && error_.is_ok()) {
    const std::size_t job = next_producer_++;
    lock.unlock();
    Status status = timed_produce(job);
    lock.lock();
    if (status.is_ok()) {
      finished_locked();
    } else {
      fail_locked(std::move(status));
    }
  }
}

Status Transfer::end() {
  std::unique_lock lock(mutex_);
  while (!is_over_locked()) {
    const bool in_time = wake_.wait_until(lock, context_.deadline.when(),
                                          [&] { return is_over_locked() || !waiting_thread_tasks_.empty(); });
    if (!in_time) {
      fail_locked(core::without_throwing([&] { return timeout_status_locked(); }));
    } else if (!is_over_locked()) {
      const auto task = std::move(waiting_thread_tasks_.front());
      waiting_thread_tasks_.pop_front();
      lock.unlock();
      Status status = task.finishes ? timed_finish(task.run) : core::without_throwing(task.run);
      lock.lock();
      if (!status.is_ok()) {
        fail_locked(std::move(status));
      } else if (task.finishes) {
        finished_locked();
      }
    }
  }
  ended_ = true;
  // Tasks only compute: they end without help from any peer.
  wake_.wait(lock, [&] { return tasks_ == 0; });
  Status status = std::move(error_);
  if (!status.is_ok()) tell_mismatched(lock);
  lock.unlock();
  if (!status.is_ok()) cancel_all();
  keep_alive_.reset();
  record_->exchanged();
  return status;
}

Status Transfer::open() {
  for (Peer& peer : peers_) {
    auto channel = config().channel_to(peer.rank);
    if (!channel.is_ok()) {
      return Status(channel.status()).with_peer(peer_name(static_cast<std::size_t>(&peer - peers_.data())));
    }
    peer.channel = std::move(channel).value();
  }
  const int self = config().topology.rank();
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_[i];
    if (peer.receives == 0) continue;
    record_->awaits(peer.rank, peer_name(i), peer.sums > 0);
    Status posted = peer.channel->post_receive(key(peer.rank, self), peer.receive_descriptor, peer.receives,
                                               std::make_shared<Sink>(shared_from_this(), i));
    if (!posted.is_ok()) return std::move(posted).with_peer(peer_name(i));
  }
  return Status::ok();
}

transport::OpKey Transfer::key(int from, int to) const {
  const bool downward = context_.kind == OpKind::SendRecv && from > to;
  return {config().group, context_.seq | (downward ? kDownwardBit : 0)};
}

void Transfer::fail(Status status) {
  std::lock_guard lock(mutex_);
  fail_locked(std::move(status));
}

void Transfer::fail_locked(Status status) {
  const bool succeeded = started_ && pending_ == 0;
  if (ended_ || succeeded || !error_.is_ok()) return;
  error_ = std::move(status).with_op(std::string(to_string(context_.kind)), shown_seq(context_));
  over_locked();
}

void Transfer::wake_locked() {
  wake_deferred_ |= defers_wake_;
  if (!defers_wake_) wake_.notify_all();
}

void Transfer::over_locked() {
  if (!defers_wake_) {
    if (const auto notify = std::exchange(when_over_, nullptr)) notify();
  }
  wake_locked();
}

// A peer that runs another operation learns of it from a chunk of this one, which must be out before what is
// queued is cancelled: if none was made yet, an empty one says as much.
void Transfer::tell_mismatched(std::unique_lock<std::mutex>& lock) {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i].mismatched || peers_[i].sends == 0 || peers_[i].given > 0) continue;
    lock.unlock();
    // A channel that takes nothing has failed, and the peer learns it from that.
    (void)core::without_throwing([&] { return send_to({i, 0}, core::Buffer(), 0); });
    lock.lock();
  }
  const auto until = context_.deadline.earlier(core::Deadline::after(kTellGrace));
  wake_.wait_until(lock, until.when(), [&] {
    return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
      return !peer.mismatched || peer.taken > 0 || peer.queued == 0;
    });
  });
}

void Transfer::cancel_all() {
  const int self = config().topology.rank();
  for (const Peer& peer : peers_) {
    if (!peer.channel) continue;
    const transport::OpKey sent = key(self, peer.rank);
    const transport::OpKey received = key(peer.rank, self);
    if (peer.sends > 0 || sent == received) peer.channel->cancel(sent);
    if (peer.receives > 0 && received != sent) peer.channel->cancel(received);
  }
}

bool Transfer::may_produce_locked() const {
  return started_ && !ended_ && error_.is_ok() &&
         next_producer_ < std::min(producers_, released_producers_) &&
         producing_ <= config().pool->thread_count() &&
         (queued_bytes_ < kOwnQueueBytes || shared_->queued_bytes < kSharedQueueBytes);
}

void Transfer::feed_locked() {
  while (may_produce_locked()) {
    Status submitted = core::without_throwing([&] {
      config().pool->submit([self = shared_from_this(), job = next_producer_] { self->run_producer(job); });
      return Status::ok();
    });
    if (!submitted.is_ok()) return fail_locked(std::move(submitted));
    ++next_producer_;
    ++producing_;
    ++tasks_;
  }
}

void Transfer::run_producer(std::size_t job) {
  {
    std::lock_guard lock(mutex_);
    if (ended_ || !error_.is_ok()) {
      --producing_;
      end_task_locked();
      return;
    }
  }
  Status status = timed_produce(job);
  std::lock_guard lock(mutex_);
  --producing_;
  if (status.is_ok()) {
    finished_locked();
    feed_locked();
  } else {
    fail_locked(std::move(status));
  }
  end_task_locked();
}

void Transfer::submit_finish_locked(std::function<Status()> task) {
  if (ended_ || !error_.is_ok()) return;
  if (finishes_here_) {
    waiting_thread_tasks_.push_back({std::move(task), true});
    wake_locked();
    return;
  }
  config().pool->submit([self = shared_from_this(), task = std::move(task)] {
    bool ended = false;
    {
      std::lock_guard lock(self->mutex_);
      ended = self->ended_ || !self->error_.is_ok();
    }
    Status status = ended ? Status::ok() : self->timed_finish(task);
    std::lock_guard lock(self->mutex_);
    if (!status.is_ok()) {
      self->fail_locked(std::move(status));
    } else if (!ended) {
      self->finished_locked();
    }
    self->end_task_locked();
  });
  ++tasks_;
}

void Transfer::finished_locked() {
  if (--pending_ == 0) over_locked();
}

void Transfer::call_waiting_thread_locked(std::function<Status()> task) {
  waiting_thread_tasks_.push_back({std::move(task), false});
  wake_locked();
}

void Transfer::release_producers_locked(std::size_t first) {
  released_producers_ = first;
  feed_locked();
}

void Transfer::end_task_locked() {
  if (--tasks_ == 0) wake_.notify_all();
}

Status Transfer::send(const std::vector<Target>& targets, const core::Buffer& payload,
                      std::uint64_t raw_bytes) {
  for (const Target& target : targets) GEOCOMM_RETURN_IF_ERROR(send_to(target, payload, raw_bytes));
  return Status::ok();
}

Status Transfer::relay(const std::vector<Target>& targets, const core::Buffer& payload,
                       std::uint64_t raw_bytes) {
  GEOCOMM_RETURN_IF_ERROR(send(targets, payload, raw_bytes));
  shared_->relayed_bytes += targets.size() * payload.size();
  return Status::ok();
}

Status Transfer::send_to(const Target& target, const core::Buffer& payload, std::uint64_t raw_bytes) {
  const std::size_t index = target.peer;
  const std::size_t bytes = payload.size();
  {
    std::lock_guard lock(mutex_);
    ++peers_[index].queued;
    ++peers_[index].given;
    queued_bytes_ += bytes;
  }
  const Peer& peer = peers_[index];
  const auto sent = [self = shared_from_this(), index, bytes](const Status& status) {
    std::lock_guard lock(self->mutex_);
    --self->peers_[index].queued;
    self->queued_bytes_ -= bytes;
    self->wake_.notify_all();
    if (status.is_ok()) {
      ++self->peers_[index].taken;
      self->feed_locked();
    } else {
      self->fail_locked(core::without_throwing(
          [&]() -> Status { return Status(status).with_peer(self->peer_name(index)); }));
    }
  };
  Status status = core::without_throwing([&] {
    auto held = std::make_shared<QueuedBytes>(shared_, bytes);
    const auto on_sent = [sent, held = std::move(held)](const Status& status) mutable {
      held.reset();
      sent(status);
    };
    return peer.channel->send({.key = key(config().topology.rank(), peer.rank),
                               .descriptor = peer.send_descriptor,
                               .chunk = target.number,
                               .chunk_count = peer.sends,
                               .payload = payload,
                               .write_here = produces_here_},
                              on_sent);
  });
  if (!status.is_ok()) {  // on_sent will not run
    std::lock_guard lock(mutex_);
    --peers_[index].queued;
    queued_bytes_ -= bytes;
    return std::move(status).with_peer(peer_name(index));
  }
  shared_->raw_bytes_sent += raw_bytes;
  shared_->wire_bytes_sent += bytes;
  record_->sent(raw_bytes, bytes);
  return Status::ok();
}

}  // namespace geocomm::collective
