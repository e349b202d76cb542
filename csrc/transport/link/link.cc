#include "transport/link/link.h"

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/str.h"
#include "transport/link/heartbeat.h"
#include "transport/link/seconds.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

// A peer that does not read what it is told is told no more: neither replies nor acknowledgements.
constexpr std::size_t kMaxPendingControlBytes = 1024 * 1024;

}  // namespace

Link::Link(const LinkContext& context, const ProcessId& peer_id, const PeerName& name, Mux& mux,
           std::function<void()> wake)
    : context_(context),
      peer_id_(peer_id),
      name_(name),
      mux_(mux),
      wake_(std::move(wake)),
      streams_(context.loop),
      health_(*context.loop),
      redialer_(context.loop, *this) {}

void Link::enter(Phase next) {
  static constexpr const char* kNames[] = {"connecting", "ready",     "draining",
                                           "peer left",  "lingering", "closed"};
  core::log(core::LogLevel::Debug, name_.get(), ": ", kNames[static_cast<int>(phase_)], " → ",
            kNames[static_cast<int>(next)]);
  phase_ = next;
}

void Link::add_stats(ChannelStats& stats) const {
  health_.add_stats(stats);
  streams_.add_stats(stats);
}

Status Link::lost(const std::string& what) const {
  return Status(StatusCode::PeerLost, core::str(name_.get(), ": ", what)).with_peer(std::string(name_.get()));
}

// ---- running (connecting: link_connect.cc) ----

void Link::tick() {
  const auto now = timers().now();
  const auto deadline = context_.options.link_deadline;
  if (health_.is_silent_at_tick()) {
    if (now - health_.last_contact() >= deadline && (is_ending() || !verdict_from_above_)) {
      if (nothing_left()) return close(status_.reason(), !status_.is_leaving());
      const std::string last_failure = redialer_.last_failure().message();
      return fail(lost(
          core::str("silent for ", in_seconds(deadline), " (link_deadline): the peer or the network is down",
                    last_loss_.empty() ? "" : core::str(". Last: ", last_loss_),
                    last_failure.empty() ? "" : core::str(". Connecting again: ", last_failure))));
    }
    const Status why(StatusCode::PeerLost, core::str("nothing was heard for ", kSilentTicks, " heartbeats"));
    for (std::size_t i = 0; i < streams_.size() && is_up(); ++i) {
      if (Stream* const stream = streams_.open(i)) on_stream_lost(*stream, why);
    }
  }
  if (!is_up()) return;
  plan_streams();
  send_heartbeat();
  if (!is_up()) return;
  wake_();  // for acknowledgements that did not fit
  beat_timer_ = timers().add_timer(now + heartbeat_interval(deadline), [this] { tick(); });
}

void Link::send_heartbeat() {
  Stream* const control = streams_.control();
  if (control == nullptr) return;
  WireHeader header = make_header(PacketType::Heartbeat);
  header.op = timers().now_ns();
  header.chunk = static_cast<std::uint32_t>(planner_.wanted_here());
  control->send_packet(header);
}

void Link::finish_segment(SegmentCopy copy) {
  const auto now = timers().now();
  mux_.finish(std::move(copy), now);
  look_again(now);
}

Status Link::on_packet(const WireHeader& header) {
  switch (static_cast<PacketType>(header.type)) {
    case PacketType::Heartbeat:
      return on_heartbeat(header);
    case PacketType::HeartbeatReply:
      on_reply(header);
      return Status::ok();
    case PacketType::Reset:
      fail(lost(core::str("it has given up the connection (",
                          core::to_string(static_cast<StatusCode>(header.code)), ")")));
      return Status::ok();
    case PacketType::Ack: {
      GEOCOMM_ASSIGN_OR_RETURN(const Mux::Told told, mux_.on_control(header, timers().now()));
      on_acked(told.acked_bytes);
      return Status::ok();
    }
    default: {
      const auto now = timers().now();
      GEOCOMM_ASSIGN_OR_RETURN(const Mux::Told told, mux_.on_control(header, now));
      if (told.leaves) peer_left();
      look_again(now);
      return Status::ok();
    }
  }
}

Status Link::on_heartbeat(const WireHeader& header) {
  const std::uint64_t came = timers().now_ns();
  if (header.chunk > kMaxDataStreams) return core::corrupt("asked for ", header.chunk, " streams");
  planner_.peer_wants(static_cast<int>(header.chunk));
  open_more_streams();
  if (phase_ == Phase::Closed) return Status::ok();
  if (streams_.control()->pending_bytes() > kMaxPendingControlBytes) return Status::ok();
  WireHeader reply = make_header(PacketType::HeartbeatReply);
  reply.op = header.op;
  reply.group = came;
  reply.descriptor = timers().now_ns();
  streams_.control()->send_packet(reply);
  return Status::ok();
}

void Link::on_reply(const WireHeader& header) {
  if (!health_.on_reply(header.op, header.group, header.descriptor)) return;
  const std::chrono::milliseconds timeout = tuning().user_timeout;
  if (std::exchange(user_timeout_, timeout) == timeout) return;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (Stream* const stream = streams_.open(i)) set_user_timeout(stream->fd(), timeout);
  }
}

void Link::on_acked(std::uint64_t bytes) {
  if (is_up() && may_add_streams()) {
    const int wanted = planner_.wanted_here();
    const int used = used_streams();
    planner_.acknowledged(bytes, mux_.has_ready(), static_cast<int>(streams_.open_data_count()),
                          timers().now());
    follow_plan(wanted);
    if (used_streams() != used) share_pacing();
  }
  if (is_ending() || mux_.has_ready()) wake_();
}

void Link::pull(const Carrier& carrier, bool time_left, std::vector<OutSegment>& out) {
  if (!is_up() || is_spare(carrier.stream)) return;
  mux_.pull(carrier, timers().now(), time_left, out);
}

bool Link::has_ready(const Carrier& carrier) const {
  return is_up() && !is_spare(carrier.stream) && mux_.has_ready();
}

void Link::count_bytes(std::uint64_t received, std::uint64_t sent) {
  if (received > 0) redialer_.on_contact();
  health_.count(received, sent);
}

void Link::flush() {
  if (phase_ == Phase::Closed) return;
  const auto now = timers().now();
  send_control(now);
  const std::size_t data_streams = std::max<std::size_t>(streams_.size(), 1) - 1;
  for (std::size_t i = 0; i < data_streams && is_up() && mux_.has_ready(); ++i) {
    next_stream_ = next_stream_ % data_streams + 1;
    if (Stream* const stream = streams_.open(next_stream_)) stream->wake();
  }
  hedge_slow_segments();
  look_again(now);
  advance_closing();
}

// With nothing new to send, streams that have sent everything take over what others are slow with.
void Link::hedge_slow_segments() {
  const std::size_t data_streams = std::max<std::size_t>(streams_.size(), 1) - 1;
  for (std::size_t i = 0; i < data_streams && is_up(); ++i) {
    if (!mux_.has_slow(timers().now())) break;
    next_stream_ = next_stream_ % data_streams + 1;
    Stream* const stream = streams_.open(next_stream_);
    if (stream != nullptr && stream->is_idle()) stream->help();
  }
}

// As soon as the mux may have something due.
void Link::look_again(Timers::Time now) {
  if (phase_ == Phase::Closed) return;
  const auto due = mux_.due(now);
  if (!due || (mux_timer_ && mux_timer_->first <= *due)) return;
  if (mux_timer_) timers().cancel_timer(*mux_timer_);
  mux_timer_ = timers().add_timer(*due, [this] {
    mux_timer_.reset();
    wake_();
  });
}

void Link::send_control(Timers::Time now) {
  Stream* const control = streams_.control();
  if (control == nullptr) return;
  std::vector<WireHeader> packets;
  mux_.take_control(now, control->pending_bytes() < kMaxPendingControlBytes, packets);
  control->send_packets(packets);
  if (mux_.control_overflows()) fail(core::corrupt("the peer acknowledges no control packets"));
}

// ---- ending ----

void Link::begin_close() {
  if (phase_ == Phase::Closed || status_.is_leaving()) return;
  const Status why = Status(StatusCode::Aborted, "this process has shut its endpoint down");
  mux_.refuse(why);
  status_.set_reason(why);
  status_.leave();
  if (phase_ == Phase::Ready) enter(Phase::Draining);
  if (phase_ == Phase::Connecting && mux_.drained()) return fail(why);
  if (is_up() && mux_.drained()) reconnect_all();
  wake_();
}

// Its Close came: everything it sent is here.
void Link::peer_left() {
  if (is_up()) enter(Phase::PeerLeft);
  const Status why = lost("has left: it shut its endpoint down");
  status_.set_reason(why);
  mux_.peer_left(why, !status_.is_leaving());
}

void Link::advance_closing() {
  if (!is_up() || !is_ending() || !mux_.drained()) return;
  if (mux_.say_close()) send_control(timers().now());
  if (!is_up() || !mux_.has_peer_left() || !mux_.control_acknowledged()) return;
  // The peer waits for the acknowledgement of its own.
  if (mux_.hurry_acks()) send_control(timers().now());
  if (is_up()) close(status_.reason(), !status_.is_leaving());
}

void Link::on_violation(Stream&, const Status& why) {
  Status named(why.code(), core::str("lost ", name_.get(), ": ", why.message()));
  fail(std::move(named).with_errno(why.sys_errno()));
}

void Link::fail(Status why) {
  if (phase_ == Phase::Closed) return;
  close(std::move(why).with_peer(std::string(name_.get())), false, true);
}

void Link::close(const Status& reason, bool keep_complete, bool reset) {
  const bool was_ready = is_up();
  enter(Phase::Closed);
  cancel_waits();
  timers().cancel_timer(phase_timer_);
  if (mux_timer_) timers().cancel_timer(*mux_timer_);
  status_.set_reason(reason);
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
  streams_.close_all(health_.last_contact());
  mux_.fail(reason, keep_complete);
  context_.on_closed();
}

}  // namespace geocomm::transport
