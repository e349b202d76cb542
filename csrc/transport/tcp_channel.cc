#include "transport/tcp_channel.h"

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/str.h"
#include "transport/link/heartbeat.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

// A peer that does not read what it is told is told no more: neither replies nor acknowledgements.
constexpr std::size_t kMaxPendingControlBytes = 1024 * 1024;

}  // namespace

TcpChannel::TcpChannel(std::shared_ptr<ChannelContext> context, const ProcessId& peer_id,
                       std::string description)
    : context_(std::move(context)),
      peer_id_(peer_id),
      first_description_(std::move(description)),
      description_(&first_description_),
      mux_(context_->options.max_unexpected_bytes, context_->pool, context_->closed_groups,
           [this] { schedule_flush(); }),
      streams_(context_->loop),
      redialer_(context_->loop, *this) {}

// ---- any thread ----

void TcpChannel::describe(const std::string& description) {
  std::lock_guard lock(mutex_);
  if (given_description_ || description.empty()) return;
  given_description_ = std::make_unique<const std::string>(description);
  description_.store(given_description_.get(), std::memory_order_release);
}

Status TcpChannel::wait_ready(core::Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.when(), [&] { return connected_ || !reason_.is_ok(); });
  if (!reason_.is_ok()) return reason_;
  if (connected_) return Status::ok();
  return Status(StatusCode::Timeout, core::str("not connected to ", peer(), " yet"))
      .with_peer(std::string(peer()));
}

Status TcpChannel::status() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

Status TcpChannel::send(OutgoingChunk chunk, std::function<void(const Status&)> on_sent) {
  const bool write_here = chunk.write_here;
  Status status = mux_.send(std::move(chunk), std::move(on_sent));
  if (!status.is_ok()) return std::move(status).with_peer(std::string(peer()));
  if (!write_here || !context_->loop->try_run([this] { flush(); })) schedule_flush();
  return status;
}

Status TcpChannel::post_receive(OpKey key, std::uint64_t descriptor, std::uint32_t chunk_count,
                                std::shared_ptr<ReceiveSink> sink) {
  if (refuse_posts_ && sink) {
    const Status why = status();
    sink->on_error(why);
    return why;
  }
  Status posted = mux_.post(key, descriptor, chunk_count, sink);
  return posted.is_ok() ? posted : std::move(posted).with_peer(std::string(peer()));
}

void TcpChannel::cancel(OpKey key) {
  run_callbacks(mux_.cancel(key), {StatusCode::Aborted, "the operation was cancelled"});
}

void TcpChannel::close_group(std::uint64_t group, const Status& why, QueuedChunks queued) {
  run_callbacks(mux_.close_group(group, why, queued), why);
}

ChannelStats TcpChannel::stats() const {
  ChannelStats stats;
  static_cast<MuxStats&>(stats) = mux_.stats();
  stats.bytes_sent = bytes_sent_;
  stats.bytes_received = bytes_received_;
  stats.rtt_us = rtt_us_;
  stats.least_rtt_us = least_rtt_us_;
  {
    std::lock_guard lock(clock_mutex_);
    stats.clock = peer_clock_.at(context_->loop->now_ns());
  }
  if (const std::uint64_t last = last_byte_ns_; last != 0) {
    const std::uint64_t now = context_->loop->now_ns();
    stats.silent_us = now > last ? (now - last) / 1000 : 0;
  }
  streams_.add_stats(stats);
  return stats;
}

void TcpChannel::run_callbacks(std::vector<SentCallback> callbacks, const Status& status) {
  if (callbacks.empty()) return;
  context_->loop->post([callbacks = std::move(callbacks), status, self = shared_from_this()] {
    for (const auto& callback : callbacks) callback(status);
    self->schedule_flush();  // nothing may be left to wait for
  });
}

void TcpChannel::schedule_flush() {
  if (flush_scheduled_.exchange(true)) return;
  context_->loop->post([self = shared_from_this()] { self->flush(); });
}

Status TcpChannel::lost(const std::string& what) const {
  return Status(StatusCode::PeerLost, core::str(peer(), ": ", what)).with_peer(std::string(peer()));
}

// ---- IO thread: running (connecting: tcp_channel_connect.cc) ----

void TcpChannel::tick() {
  const auto now = context_->loop->now();
  const auto deadline = context_->options.link_deadline;
  // Not by the clock alone: a process that was stopped itself reads first what came meanwhile.
  if (++silent_ticks_ > kSilentTicks) {
    if (now - last_contact_ >= deadline && (closing_ || !verdict_from_above_)) {
      if (nothing_left()) return close(status(), !local_closing_);
      const std::string last_failure = redialer_.last_failure().message();
      return fail(lost(
          core::str("silent for ", in_seconds(deadline), " (link_deadline): the peer or the network is down",
                    last_loss_.empty() ? "" : core::str(". Last: ", last_loss_),
                    last_failure.empty() ? "" : core::str(". Connecting again: ", last_failure))));
    }
    const Status why(StatusCode::PeerLost, core::str("nothing was heard for ", kSilentTicks, " heartbeats"));
    for (std::size_t i = 0; i < streams_.size() && phase_ == Phase::Ready; ++i) {
      if (Stream* const stream = streams_.open(i)) on_stream_lost(*stream, why);
    }
  }
  if (phase_ != Phase::Ready) return;
  plan_streams();
  send_heartbeat();
  if (phase_ != Phase::Ready) return;
  schedule_flush();  // for acknowledgements that did not fit
  timer_ = context_->loop->add_timer(now + heartbeat_interval(deadline), [this] { tick(); });
}

void TcpChannel::send_heartbeat() {
  Stream* const control = streams_.control();
  if (control == nullptr) return;
  WireHeader header = make_header(PacketType::Heartbeat);
  header.op = context_->loop->now_ns();
  header.chunk = static_cast<std::uint32_t>(wanted_streams_);
  control->send_packet(header);
}

Result<SegmentCopy> TcpChannel::begin_segment(const WireHeader& header) {
  return mux_.begin(header);
}

void TcpChannel::finish_segment(SegmentCopy copy) {
  mux_.finish(std::move(copy), context_->loop->now());
  look_again();
}

Status TcpChannel::on_packet(const WireHeader& header) {
  switch (static_cast<PacketType>(header.type)) {
    case PacketType::Heartbeat: {
      const std::uint64_t came = context_->loop->now_ns();
      if (header.chunk > kMaxDataStreams) {
        return core::corrupt("asked for ", header.chunk, " streams");
      }
      peer_wanted_streams_ = std::max(peer_wanted_streams_, static_cast<int>(header.chunk));
      open_more_streams();
      if (phase_ == Phase::Closed) return Status::ok();
      if (streams_.control()->pending_bytes() > kMaxPendingControlBytes) return Status::ok();
      WireHeader reply = make_header(PacketType::HeartbeatReply);
      reply.op = header.op;
      reply.group = came;
      reply.descriptor = context_->loop->now_ns();
      streams_.control()->send_packet(reply);
      return Status::ok();
    }
    case PacketType::HeartbeatReply:
      on_reply(header);
      return Status::ok();
    case PacketType::Reset:
      fail(lost(core::str("it has given up the connection (",
                          core::to_string(static_cast<StatusCode>(header.code)), ")")));
      return Status::ok();
    case PacketType::Ack: {
      GEOCOMM_ASSIGN_OR_RETURN(const Mux::Told told, mux_.on_control(header, context_->loop->now()));
      on_acked(told.acked_bytes);
      return Status::ok();
    }
    default: {
      GEOCOMM_ASSIGN_OR_RETURN(const Mux::Told told, mux_.on_control(header, context_->loop->now()));
      if (told.leaves) peer_left();
      look_again();
      return Status::ok();
    }
  }
}

void TcpChannel::on_acked(std::uint64_t bytes) {
  if (phase_ == Phase::Ready && may_add_streams()) {
    const int streams = std::min(static_cast<int>(streams_.open_data_count()), used_streams());
    const int before = used_streams();
    const int tried =
        trial_.acknowledged(bytes, mux_.has_ready(), limited_, streams, path_rtt_, context_->loop->now());
    if (tried > wanted_streams_) want_streams(tried);
    if (used_streams() != before) share_pacing();
  }
  if (closing_ || mux_.has_ready()) schedule_flush();
}

void TcpChannel::on_reply(const WireHeader& header) {
  const std::uint64_t now = context_->loop->now_ns();
  const std::uint64_t sent = header.op;
  if (sent == 0 || sent >= now) return;
  const std::uint64_t rtt = std::max<std::uint64_t>((now - sent) / 1000, 1);
  least_rtt_us_ = least_rtt_us_ == 0 ? rtt : std::min<std::uint64_t>(least_rtt_us_, rtt);
  rtt_us_ = rtt;
  {
    std::lock_guard lock(clock_mutex_);
    peer_clock_.add({.sent = sent, .came = header.group, .replied = header.descriptor, .answered = now});
  }
  const std::chrono::milliseconds timeout = tuning().user_timeout;
  if (std::exchange(user_timeout_, timeout) == timeout) return;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (Stream* const stream = streams_.open(i)) set_user_timeout(stream->fd(), timeout);
  }
}

void TcpChannel::pull(const Carrier& carrier, bool time_left, std::vector<OutSegment>& out) {
  if (phase_ != Phase::Ready || is_spare(carrier.stream)) return;
  mux_.pull(carrier, context_->loop->now(), time_left, out);
}

bool TcpChannel::has_ready(const Carrier& carrier) const {
  return phase_ == Phase::Ready && !is_spare(carrier.stream) && mux_.has_ready();
}

void TcpChannel::on_segment_sent(const OutSegment& segment) {
  mux_.written(segment);
}

void TcpChannel::count_bytes(std::uint64_t received, std::uint64_t sent) {
  if (received > 0) {
    last_contact_ = context_->loop->now();
    silent_ticks_ = 0;
    redialer_.on_contact();
    last_byte_ns_.store(context_->loop->now_ns(), std::memory_order_relaxed);
  }
  bytes_received_.fetch_add(received, std::memory_order_relaxed);
  bytes_sent_.fetch_add(sent, std::memory_order_relaxed);
}

void TcpChannel::flush() {
  flush_scheduled_ = false;
  if (phase_ == Phase::Closed) return;
  send_control();
  const std::size_t data_streams = std::max<std::size_t>(streams_.size(), 1) - 1;
  for (std::size_t i = 0; i < data_streams && phase_ == Phase::Ready && mux_.has_ready(); ++i) {
    next_stream_ = next_stream_ % data_streams + 1;
    if (Stream* const stream = streams_.open(next_stream_)) stream->wake();
  }
  hedge_slow_segments();
  advance_closing();
}

// With nothing new to send, streams that have sent everything take over what others are slow with.
void TcpChannel::hedge_slow_segments() {
  const std::size_t data_streams = std::max<std::size_t>(streams_.size(), 1) - 1;
  for (std::size_t i = 0; i < data_streams && phase_ == Phase::Ready; ++i) {
    if (!mux_.has_slow(context_->loop->now())) break;
    next_stream_ = next_stream_ % data_streams + 1;
    Stream* const stream = streams_.open(next_stream_);
    if (stream != nullptr && stream->is_idle()) stream->help();
  }
  look_again();
}

// As soon as the mux may have something due.
void TcpChannel::look_again() {
  if (phase_ == Phase::Closed) return;
  const auto due = mux_.due(context_->loop->now());
  if (!due || (mux_timer_ && mux_timer_->first <= *due)) return;
  if (mux_timer_) context_->loop->cancel_timer(*mux_timer_);
  mux_timer_ = context_->loop->add_timer(*due, [this] {
    mux_timer_.reset();
    schedule_flush();
  });
}

void TcpChannel::send_control() {
  Stream* const control = streams_.control();
  if (control == nullptr) return;
  std::vector<WireHeader> packets;
  mux_.take_control(context_->loop->now(), control->pending_bytes() < kMaxPendingControlBytes, packets);
  control->send_packets(packets);
  if (mux_.control_overflows()) fail(core::corrupt("the peer acknowledges no control packets"));
}

// ---- IO thread: ending ----

void TcpChannel::begin_close() {
  if (phase_ == Phase::Closed || local_closing_) return;
  local_closing_ = true;
  closing_ = true;
  const Status why = Status(StatusCode::Aborted, "this process has shut its endpoint down");
  refuse_posts_ = true;
  mux_.refuse(why);
  set_reason(why);
  if (phase_ == Phase::Connecting && mux_.drained()) return fail(why);
  if (phase_ == Phase::Ready && mux_.drained()) reconnect_all();
  schedule_flush();
}

// Its Close came: everything it sent is here.
void TcpChannel::peer_left() {
  closing_ = true;
  const Status why = lost("has left: it shut its endpoint down");
  set_reason(why);
  mux_.peer_left(why, !local_closing_);
}

void TcpChannel::advance_closing() {
  if (phase_ != Phase::Ready || !closing_ || !mux_.drained()) return;
  if (mux_.say_close()) send_control();
  if (phase_ != Phase::Ready || !mux_.has_peer_left() || !mux_.control_acknowledged()) return;
  // The peer waits for the acknowledgement of its own.
  if (mux_.hurry_acks()) send_control();
  if (phase_ == Phase::Ready) close(status(), !local_closing_);
}

void TcpChannel::on_violation(Stream&, const Status& why) {
  Status named(why.code(), core::str("lost ", peer(), ": ", why.message()));
  fail(std::move(named).with_errno(why.sys_errno()));
}

void TcpChannel::fail(Status why) {
  if (phase_ == Phase::Closed) return;
  close(std::move(why).with_peer(std::string(peer())), false, true);
}

void TcpChannel::set_reason(const Status& reason) {
  {
    std::lock_guard lock(mutex_);
    if (reason_.is_ok()) reason_ = reason;
  }
  changed_.notify_all();
}

void TcpChannel::close(const Status& reason, bool keep_complete, bool reset) {
  const bool was_ready = phase_ == Phase::Ready;
  phase_ = Phase::Closed;
  context_->loop->cancel_timer(timer_);
  if (lingering_) context_->loop->cancel_timer(linger_timer_);
  context_->loop->cancel_timer(turn_timer_);
  if (mux_timer_) context_->loop->cancel_timer(*mux_timer_);
  set_reason(reason);
  if (reason.code() != StatusCode::Aborted && !mux_.has_peer_left()) {
    // No warning: operations fail with this reason, and their callers tell it.
    core::log(core::LogLevel::Info,
              was_ready ? "channel failed: " : "channel not made: ", reason.to_string());
  }
  if (Stream* const control = streams_.control(); reset && control != nullptr) {
    // Spares the peer the search for us.
    WireHeader header = make_header(PacketType::Reset);
    header.code = static_cast<std::uint16_t>(reason.code());
    control->send_packet(header);
  }
  redialer_.stop();
  streams_.close_all(last_contact_);
  mux_.fail(reason, keep_complete);
  context_->on_closed();
}

}  // namespace geocomm::transport
