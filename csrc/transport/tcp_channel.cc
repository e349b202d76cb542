#include "transport/tcp_channel.h"

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/str.h"
#include "transport/handshake.h"
#include "transport/link_stats.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

constexpr std::chrono::milliseconds kHeartbeatInterval{3000};
constexpr std::size_t kMaxPullSegments = 15;
// A peer that asks for more replies than it reads gets none.
constexpr std::size_t kMaxPendingControlBytes = 1024 * 1024;

std::uint64_t clock_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(IoLoop::Clock::now().time_since_epoch()).count());
}

std::string seconds(std::chrono::milliseconds time) {
  return core::str(static_cast<double>(time.count()) / 1000, " s");
}

}  // namespace

TcpChannel::TcpChannel(std::shared_ptr<ChannelContext> context, const ProcessId& peer_id,
                       std::string description)
    : context_(std::move(context)),
      peer_id_(peer_id),
      first_description_(std::move(description)),
      description_(&first_description_),
      queue_(context_->options.send_window_bytes, context_->closed_groups),
      table_(context_->options.max_unexpected_bytes, context_->pool, context_->closed_groups) {}

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
  Status status = queue_.push(std::move(chunk), std::move(on_sent));
  if (!status.is_ok()) return std::move(status).with_peer(std::string(peer()));
  schedule_flush();
  return status;
}

Status TcpChannel::wait_room(core::Deadline deadline) {
  return queue_.wait_room(deadline).with_peer(std::string(peer()));
}

Status TcpChannel::post_receive(OpKey key, std::uint64_t descriptor, std::uint32_t chunk_count,
                                std::shared_ptr<ReceiveSink> sink) {
  if (refuse_posts_ && sink) {
    const Status why = status();
    sink->on_error(why);
    return why;
  }
  Status posted = table_.post(key, descriptor, chunk_count, sink);
  if (!posted.is_ok()) return std::move(posted).with_peer(std::string(peer()));
  announce(key);
  return posted;
}

void TcpChannel::cancel(OpKey key) {
  if (table_.cancel(key)) announce(key);
  run_callbacks(queue_.cancel(key), {StatusCode::Aborted, "the operation was cancelled"});
}

void TcpChannel::close_group(std::uint64_t group, const Status& why) {
  for (const OpKey& key : table_.close_group(group, why)) announce(key);
  run_callbacks(queue_.close_group(group), why);
}

ChannelStats TcpChannel::stats() const {
  ChannelStats stats;
  stats.bytes_sent = bytes_sent_;
  stats.bytes_received = bytes_received_;
  stats.payload_sent = payload_sent_;
  stats.payload_received = payload_received_;
  stats.rtt_us = rtt_us_;
  std::lock_guard lock(streams_mutex_);
  stats.retransmitted_segments = closed_retransmits_;
  stats.congestion_control = congestion_control_;
  for (const auto& stream : streams_) {
    if (!stream || !stream->is_open()) continue;
    const LinkStats link = read_link_stats(stream->fd());
    stats.retransmitted_segments += link.retransmitted_segments;
    stats.congestion_control = link.congestion_control;
    if (stats.rtt_us == 0) stats.rtt_us = link.rtt_us;
    if (stream->index() != 0) ++stats.streams;
  }
  return stats;
}

void TcpChannel::announce(const OpKey& key) {
  WireHeader header = make_header(FrameType::Posted);
  header.group = key.group;
  header.op = key.op;
  {
    std::lock_guard lock(control_mutex_);
    control_.push_back(header);
  }
  schedule_flush();
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

Status TcpChannel::lost(StatusCode code, const std::string& what) const {
  return Status(code, core::str(peer(), ": ", what)).with_peer(std::string(peer()));
}

// ---- IO thread: connecting ----

HelloPayload TcpChannel::hello(std::uint16_t stream, std::uint16_t stream_count) const {
  HelloPayload hello{};
  hello.sender = context_->self;
  hello.receiver = peer_id_;
  hello.max_unexpected_bytes = context_->options.max_unexpected_bytes;
  hello.stream = stream;
  hello.stream_count = stream_count;
  return hello;
}

StreamTuning TcpChannel::tuning(std::uint16_t stream_count) const {
  const std::uint64_t cap_bps = context_->options.max_pacing_bps;
  StreamTuning tuning;
  tuning.user_timeout = context_->options.link_deadline;
  if (cap_bps > 0) tuning.max_pacing_bytes_per_sec = std::max<std::uint64_t>(cap_bps / 8 / stream_count, 1);
  return tuning;
}

void TcpChannel::start_deadline() {
  if (std::exchange(deadline_started_, true) || phase_ != Phase::Connecting) return;
  timer_ = context_->loop->add_timer(IoLoop::Clock::now() + context_->options.link_deadline, [this] {
    fail(Status(
        StatusCode::Network,
        core::str(peer(), " did not connect within ", seconds(context_->options.link_deadline),
                  ". Of two processes the one with the larger id dials, here the peer: check that it "
                  "runs, and that it can reach this process (firewall, GEOCOMM_ADDRESS, GEOCOMM_PORT)")));
  });
}

void TcpChannel::expect_peer() {
  start_deadline();
}

void TcpChannel::dial(const PeerAddress& address, const JobToken& token) {
  if (phase_ != Phase::Connecting || !dialers_.empty()) return;
  const auto count = static_cast<std::uint16_t>(context_->options.streams);
  plan_.peer = peer();
  plan_.host = address.host;
  plan_.port = address.port;
  plan_.tuning = tuning(count);
  plan_.loopback_only = context_->options.security == Security::Required;
  plan_.deadline = core::Deadline::after(context_->options.link_deadline);
  plan_.hello.token = token;
  dialers_.resize(count + 1U);
  dial_stream(0, count);
}

void TcpChannel::dial_stream(std::uint16_t stream, std::uint16_t stream_count) {
  DialPlan plan = plan_;
  plan.hello = hello(stream, stream_count);
  plan.hello.token = plan_.hello.token;
  dialers_[stream] = std::make_unique<Dialer>(context_->loop, std::move(plan),
                                              [this, stream, stream_count](Result<DialedStream> dialed) {
                                                on_dialed(stream, stream_count, std::move(dialed));
                                              });
  // It may fail at once, which destroys all dialers: not to be touched afterwards.
  dialers_[stream]->start();
}

void TcpChannel::on_dialed(std::uint16_t stream, std::uint16_t stream_count, Result<DialedStream> dialed) {
  if (phase_ != Phase::Connecting) return;
  if (!dialed.is_ok()) return fail(dialed.status());
  add_stream(stream, stream_count, std::move(dialed->connection), dialed->welcome.max_unexpected_bytes);
  if (stream != 0) return;
  // The peer lets us in: now the others, all at once.
  for (std::uint16_t other = 1; other <= stream_count && phase_ == Phase::Connecting; ++other) {
    dial_stream(other, stream_count);
  }
}

Status TcpChannel::check_hello(const HelloPayload& hello) const {
  if (phase_ == Phase::Closed) {
    return {StatusCode::PeerLost, core::str("the channel with this process has ended: ", status().message())};
  }
  const bool numbers_fit =
      hello.stream_count >= 1 && hello.stream_count <= kMaxDataStreams && hello.stream <= hello.stream_count;
  const bool order_fits = streams_.empty()
                              ? hello.stream == 0
                              : streams_.size() == hello.stream_count + 1U && !streams_[hello.stream];
  if (phase_ != Phase::Connecting || !numbers_fit || !order_fits) {
    return {StatusCode::InvalidArgument,
            core::str("stream ", hello.stream, " of ", hello.stream_count, " does not fit this channel")};
  }
  return Status::ok();
}

void TcpChannel::adopt(std::unique_ptr<Connection> connection, const HelloPayload& hello) {
  start_deadline();
  add_stream(hello.stream, hello.stream_count, std::move(connection), hello.max_unexpected_bytes);
}

void TcpChannel::add_stream(std::uint16_t stream, std::uint16_t stream_count,
                            std::unique_ptr<Connection> connection, std::uint64_t peer_limit) {
  auto added = std::make_unique<Stream>(*context_->loop, std::move(connection), stream, *this);
  Stream& raw = *added;
  std::size_t present = 0;
  {
    std::lock_guard lock(streams_mutex_);
    if (streams_.empty()) streams_.resize(stream_count + 1U);
    streams_[stream] = std::move(added);
    present = static_cast<std::size_t>(
        std::count_if(streams_.begin(), streams_.end(), [](const auto& one) { return one != nullptr; }));
  }
  last_receive_ = IoLoop::Clock::now();
  if (stream == 0) peer_limit_ = peer_limit;
  if (Status status = raw.start(); !status.is_ok()) return fail(std::move(status));
  if (present == streams_.size()) become_ready();
  schedule_flush();
}

void TcpChannel::become_ready() {
  phase_ = Phase::Ready;
  context_->loop->cancel_timer(timer_);
  queue_.set_peer_limit(peer_limit_);
  {
    std::lock_guard lock(mutex_);
    connected_ = true;
  }
  changed_.notify_all();
  const ChannelStats now = stats();
  core::log(core::LogLevel::Info, "connected to ", peer(), " over ", now.streams, " data streams, ",
            now.congestion_control);
  tick();
}

// ---- IO thread: running ----

void TcpChannel::tick() {
  const auto now = IoLoop::Clock::now();
  const auto deadline = context_->options.link_deadline;
  if (now - last_receive_ >= deadline) {
    return fail(lost(StatusCode::PeerLost, core::str("silent for ", seconds(deadline),
                                                     " (link_deadline): the peer or the network is down")));
  }
  WireHeader header = make_header(FrameType::Heartbeat);
  header.op = clock_ns();
  if (streams_[0]) streams_[0]->send_frame(header);
  if (phase_ != Phase::Ready) return;  // sending has failed
  const auto interval = std::min<IoLoop::Clock::duration>(kHeartbeatInterval, deadline / 3);
  timer_ = context_->loop->add_timer(std::min(now + interval, last_receive_ + deadline), [this] { tick(); });
}

Result<Incoming> TcpChannel::begin_segment(const WireHeader& header) {
  Result<ReceiveTable::Begun> begun = table_.begin(header);
  if (!begun.is_ok()) return begun.status();
  if (begun->announce) announce({header.group, header.op});
  payload_received_.fetch_add(header.length, std::memory_order_relaxed);
  return std::move(begun->incoming);
}

void TcpChannel::finish_segment(Incoming incoming) {
  table_.finish(std::move(incoming));
}

Status TcpChannel::on_frame(const WireHeader& header) {
  switch (static_cast<FrameType>(header.type)) {
    case FrameType::Posted:
      GEOCOMM_RETURN_IF_ERROR(queue_.posted({header.group, header.op}));
      schedule_flush();
      return Status::ok();
    case FrameType::Heartbeat: {
      if (streams_[0]->pending_bytes() > kMaxPendingControlBytes) return Status::ok();
      WireHeader reply = make_header(FrameType::HeartbeatReply);
      reply.op = header.op;
      streams_[0]->send_frame(reply);
      return Status::ok();
    }
    case FrameType::HeartbeatReply:
      if (const std::uint64_t now = clock_ns(); header.op != 0 && header.op < now) {
        rtt_us_ = std::max<std::uint64_t>((now - header.op) / 1000, 1);
      }
      return Status::ok();
    default:
      return {StatusCode::CorruptData, core::str("frame of unexpected type ", int{header.type})};
  }
}

void TcpChannel::pull(std::vector<OutSegment>& out) {
  if (phase_ == Phase::Ready) queue_.pull(kMaxSegmentBytes, kMaxPullSegments, out);
}

void TcpChannel::on_segment_sent(const OutSegment& segment) {
  payload_sent_.fetch_add(segment.length, std::memory_order_relaxed);
  if (const SentCallback callback = queue_.segment_sent(segment)) callback(Status::ok());
  if (closing_) schedule_flush();
}

void TcpChannel::count_bytes(std::uint64_t received, std::uint64_t sent) {
  if (received > 0) last_receive_ = IoLoop::Clock::now();
  bytes_received_.fetch_add(received, std::memory_order_relaxed);
  bytes_sent_.fetch_add(sent, std::memory_order_relaxed);
}

void TcpChannel::flush() {
  flush_scheduled_ = false;
  if (phase_ == Phase::Closed || streams_.empty()) return;
  std::vector<WireHeader> control;
  {
    std::lock_guard lock(control_mutex_);
    control.swap(control_);
  }
  streams_[0]->send_frames(control);
  if (phase_ != Phase::Ready) return;
  const std::size_t data_streams = streams_.size() - 1;
  for (std::size_t i = 0; i < data_streams && phase_ == Phase::Ready && queue_.has_ready(); ++i) {
    next_stream_ = next_stream_ % data_streams + 1;
    streams_[next_stream_]->wake();
  }
  if (phase_ != Phase::Ready || !closing_ || goodbye_sent_ || !queue_.empty()) return;
  goodbye_sent_ = true;
  for (std::size_t i = 0; i < streams_.size() && phase_ == Phase::Ready; ++i) streams_[i]->finish();
}

// ---- IO thread: ending ----

void TcpChannel::begin_close() {
  if (phase_ == Phase::Closed || local_closing_) return;
  local_closing_ = true;
  closing_ = true;
  const Status why = Status(StatusCode::Aborted, "this process has shut its endpoint down");
  refuse_posts_ = true;
  queue_.refuse(why);
  set_reason(why);
  if (phase_ == Phase::Connecting && queue_.empty()) return fail(why);
  schedule_flush();
}

void TcpChannel::peer_left() {
  peer_left_ = true;
  closing_ = true;
  const Status why = lost(StatusCode::PeerLost, "has left: it shut its endpoint down");
  queue_.refuse(why);
  set_reason(why);
  // It will post nothing any more.
  for (const auto& callback : queue_.drop_waiting()) callback(why);
  schedule_flush();
}

void TcpChannel::on_stream_progress(Stream& stream) {
  if (stream.index() == 0 && stream.peer_finished() && !peer_left_) peer_left();
  if (stream.drained() && stream.finished()) close_stream(stream);
  if (phase_ != Phase::Ready) return;
  const auto all = [&](auto predicate) {
    return std::all_of(streams_.begin(), streams_.end(), [&](const auto& one) { return predicate(*one); });
  };
  if (!receives_ended_ && all([](const Stream& one) { return one.drained(); })) {
    receives_ended_ = true;
    table_.fail(lost(StatusCode::PeerLost, "has left: it shut its endpoint down"), !local_closing_);
  }
  if (all([](const Stream& one) { return !one.is_open(); })) close(status(), !local_closing_);
}

void TcpChannel::on_stream_failed(Stream&, const Status& why) {
  Status named(why.code(), core::str("lost ", peer(), ": ", why.message()));
  fail(std::move(named).with_errno(why.sys_errno()));
}

void TcpChannel::fail(Status why) {
  if (phase_ == Phase::Closed) return;
  close(std::move(why).with_peer(std::string(peer())), false);
}

void TcpChannel::close_stream(Stream& stream) {
  if (!stream.is_open()) return;
  std::lock_guard lock(streams_mutex_);
  const LinkStats link = read_link_stats(stream.fd());
  closed_retransmits_ += link.retransmitted_segments;
  congestion_control_ = link.congestion_control;
  stream.close();
}

void TcpChannel::set_reason(const Status& reason) {
  {
    std::lock_guard lock(mutex_);
    if (reason_.is_ok()) reason_ = reason;
  }
  changed_.notify_all();
}

void TcpChannel::close(const Status& reason, bool keep_complete) {
  const bool was_ready = phase_ == Phase::Ready;
  phase_ = Phase::Closed;
  context_->loop->cancel_timer(timer_);
  set_reason(reason);
  if (reason.code() != StatusCode::Aborted && !peer_left_) {
    core::log(core::LogLevel::Warning,
              was_ready ? "channel failed: " : "channel not made: ", reason.to_string());
  }
  for (const auto& stream : streams_) {
    if (stream) close_stream(*stream);
  }
  queue_.refuse(reason);
  for (const auto& callback : queue_.drop_all()) callback(reason);
  table_.fail(reason, keep_complete);
  // One of their callbacks may be running.
  context_->loop->post([self = shared_from_this()] {
    self->dialers_.clear();
    std::lock_guard lock(self->streams_mutex_);
    self->streams_.clear();
  });
  context_->on_closed();
}

}  // namespace geocomm::transport
