// How a link gets its connections, and gets them again.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/log.h"
#include "core/str.h"
#include "transport/link/handshake.h"
#include "transport/link/link.h"
#include "transport/link/seconds.h"

namespace geocomm::transport {

using core::Status;
using core::StatusCode;

namespace {

// A connection on which nothing is acknowledged for so long, or 20 round trips, is dead.
constexpr std::chrono::milliseconds kLeastUserTimeout{10000};
constexpr int kUserTimeoutRtts = 20;
// The side with the smaller id dials too where the other one has not come for so long.
constexpr std::chrono::milliseconds kPeerDialsWithin{2000};
// Who waits for the first connection says so after this time, or half the deadline.
constexpr std::chrono::milliseconds kWordAfter{10000};
// For a peer that has sent Close and lost its connections.
constexpr std::chrono::milliseconds kLinger{2000};

Status other_data_path(DataPath ours) {
  return {StatusCode::InvalidArgument,
          core::str("one end is to send over RDMA and the other over TCP (",
                    ours == DataPath::Rdma ? "RDMA" : "TCP",
                    " at the end that says this): GEOCOMM_TRANSPORT must be the same on all ranks")};
}

}  // namespace

HelloPayload Link::hello(std::uint16_t stream, std::uint16_t stream_count, std::uint32_t generation) const {
  HelloPayload hello{};
  hello.sender = context_.self;
  hello.receiver = peer_id_;
  hello.max_unexpected_bytes = context_.options.max_unexpected_bytes;
  hello.stream = stream;
  hello.stream_count = stream_count;
  hello.generation = generation;
  hello.control_received = mux_.control_received();
  hello.data_path = data_path_.value_or(DataPath::Tcp);
  if (stream != 0) hello.binding = binding_.proof(stream, generation);
  hello.receive_buffer_bytes = context_.buffers.receive_bytes;
  return hello;
}

StreamTuning Link::tuning() const {
  StreamTuning tuning;
  const auto rtts = std::chrono::duration_cast<std::chrono::milliseconds>(kUserTimeoutRtts * health_.rtt());
  tuning.user_timeout = std::max(kLeastUserTimeout, rtts);
  tuning.max_pacing_bytes_per_sec = share_of_pacing();
  return tuning;
}

void Link::cancel_waits() {
  if (beat_timer_) timers().cancel_timer(*beat_timer_);
  if (word_timer_) timers().cancel_timer(*word_timer_);
}

void Link::start_word() {
  if (verdict_from_above_ || word_timer_ || phase_ != Phase::Connecting) return;
  const auto after = std::min(kWordAfter, context_.options.link_deadline / 2);
  word_timer_ = timers().add_timer_in(after, [this, after] {
    const std::string why = redialer_.last_failure().message();
    core::log(core::LogLevel::Warning, "not connected to ", name_.get(), " for ", in_seconds(after),
              why.empty() ? "" : core::str(" (", why, ")"), "; trying for up to ",
              in_seconds(context_.options.link_deadline), " (link_deadline)");
  });
}

void Link::start_deadline() {
  if (verdict_from_above_ || beat_timer_ || phase_ != Phase::Connecting) return;
  beat_timer_ = timers().add_timer_in(context_.options.link_deadline, [this] {
    fail(Status(
        StatusCode::Network,
        core::str(
            name_.get(), " did not connect within ", in_seconds(context_.options.link_deadline),
            redialer_.last_failure().is_ok()
                ? std::string()
                : core::str(", and this process cannot connect to it: ", redialer_.last_failure().message()),
            ". Check that it runs, and that one of the two can reach the other (firewall, GEOCOMM_ADDRESS, "
            "GEOCOMM_PORT)")));
  });
}

void Link::connect(const PeerAddress& address, const JobToken& token, bool dials) {
  if (phase_ == Phase::Closed) return;
  if (address.verdict_from_above && !std::exchange(verdict_from_above_, true) &&
      phase_ == Phase::Connecting) {
    cancel_waits();  // of a peer that dialed before it was known here
  }
  const DataPath path = address.rdma ? DataPath::Rdma : DataPath::Tcp;
  if (data_path_.value_or(path) != path) return fail(other_data_path(path));
  data_path_ = path;
  // spec channel 10.1: "A channel with data_path 1 MUST have one data stream."
  planner_.begin(data_path_ == DataPath::Rdma ? 1
                 : may_add_streams() ? streams_of_channel(context_.first_streams, address.path_channels)
                                     : context_.first_streams);
  start_word();
  if (!dials) start_deadline();
  if (address.host.empty() || address.port == 0) return;
  // A later group may know a newer address.
  if (redialer_.has_options()) {
    if (redialer_.set_address(address.host, address.port)) dial_elsewhere();
    return;
  }
  RedialerOptions redialing;
  redialing.dial.peer = name_.get();
  redialing.dial.host = address.host;
  redialing.dial.port = address.port;
  redialing.dial.loopback_only = context_.loopback_only;
  redialing.dial.keys = context_.keys.get();
  redialing.dial.site = address.site;
  redialing.token = token;
  redialing.link_deadline = context_.options.link_deadline;
  redialing.believed_refusal = context_.options.believed_refusal;
  redialing.first_deadline = core::Deadline::after(context_.options.link_deadline);
  redialing.dials = dials;
  redialer_.set_options(std::move(redialing));
  if (!dials) return wait_for_peer_to_dial();
  dial_first();
}

void Link::wait_for_peer_to_dial() {
  timers().cancel_timer(phase_timer_);
  phase_timer_ = timers().add_timer_in(kPeerDialsWithin, [this] { dial_first(); });
}

void Link::dial_first() {
  if (phase_ != Phase::Connecting || streams_.open_count() > 0 || !redialer_.has_options()) return;
  redialer_.set_dials(true, context_.self < peer_id_);
  streams_.set_data_streams(static_cast<std::uint16_t>(planner_.first()));
  redialer_.dial(0, tuning());
}

bool Link::yields() {
  if (phase_ != Phase::Connecting || streams_.open_count() > 0 || !redialer_.has_options()) return false;
  // The peer may have welcomed the Hello that is under way, and the larger id's counts.
  if (context_.self > peer_id_ && redialer_.has_said_hello()) return false;
  redialer_.stop();
  redialer_.set_dials(false, false);
  streams_.begin_anew();
  wait_for_peer_to_dial();
  return true;
}

// What is under way leads to an address that is none any more.
void Link::dial_elsewhere() {
  if (is_up()) return reconnect_all();
  if (!redialer_.dials()) return;
  redialer_.stop();
  if (!streams_.open(0)) return redialer_.dial(0, tuning());
  for (std::size_t i = 1; i < streams_.size() && phase_ == Phase::Connecting; ++i) {
    if (!streams_.open(i)) redialer_.dial(static_cast<std::uint16_t>(i), tuning());
  }
}

HelloPayload Link::next_hello(std::uint16_t stream) {
  return hello(stream, data_streams(), redialer_.dials() ? streams_.next_generation(stream) : 0);
}

void Link::on_dialed(std::uint16_t stream, DialedStream dialed) {
  if (phase_ == Phase::Closed) return;
  const HelloPayload& welcome = dialed.welcome;
  if (stream == 0) {
    if (Status status = mux_.restart_control(welcome.control_received); !status.is_ok()) {
      return fail(std::move(status));
    }
  }
  redialer_.hurry();
  add_stream({stream, welcome.generation}, std::move(dialed.connection), welcome);
  // The peer lets us in: now the others, all at once.
  for (std::size_t other = 1; stream == 0 && other < streams_.size() && phase_ == Phase::Connecting;
       ++other) {
    if (!streams_.open(other)) redialer_.dial(static_cast<std::uint16_t>(other), tuning());
  }
}

Status Link::admit(const HelloPayload& hello) {
  if (phase_ == Phase::Closed) {
    return {StatusCode::PeerLost,
            core::str("the channel with this process has ended: ", status_.reason().message())};
  }
  if (hello.data_path != DataPath::Tcp && hello.data_path != DataPath::Rdma) {
    return {StatusCode::InvalidArgument, "neither TCP nor RDMA"};
  }
  if (data_path_.value_or(hello.data_path) != hello.data_path) return other_data_path(*data_path_);
  const bool rdma = hello.data_path == DataPath::Rdma;
  if (rdma && !context_.rdma_stream) return other_data_path(DataPath::Tcp);
  const std::uint32_t most_streams = rdma ? 1 : kMaxDataStreams;
  const bool numbers_fit =
      hello.stream_count >= 1 && hello.stream_count <= most_streams && hello.stream <= hello.stream_count;
  const bool order_fits = streams_.size() > 0 || hello.stream == 0;
  if (!numbers_fit || !order_fits) {
    return {StatusCode::InvalidArgument,
            core::str("stream ", hello.stream, " of ", hello.stream_count, " does not fit this channel")};
  }
  if (const std::uint32_t newest = streams_.generation(hello.stream); hello.generation <= newest) {
    return {StatusCode::InvalidArgument, core::str("connection ", hello.generation, " of stream ",
                                                   hello.stream, " is no newer than connection ", newest)};
  }
  if (hello.stream == 0) {
    Status fits = mux_.restart_control(hello.control_received);
    if (!fits.is_ok()) return verdict_from_above_ ? forgotten_by_one() : fits;
  }
  data_path_ = hello.data_path;
  if (streams_.size() <= hello.stream_count) streams_.set_data_streams(hello.stream_count);
  // What the older one still brings is not read any more, so that the counts in Welcome hold.
  if (Stream* const older = streams_.open(hello.stream)) drop(*older);
  return Status::ok();
}

// The peer speaks of another channel than this one: one of the two processes has let go of what was between
// them (Endpoint::forget()), which the other one has not heard.
Status Link::forgotten_by_one() {
  if (!is_up()) return {StatusCode::PeerLost, "this process has let go of that channel and begun anew"};
  Status gone = lost("it has let go of this channel and begun anew");
  fail(gone);
  return gone;
}

HelloPayload Link::welcome(const HelloPayload& received) const {
  return hello(received.stream, received.stream_count, received.generation);
}

void Link::adopt(std::unique_ptr<Connection> connection, const HelloPayload& hello) {
  start_deadline();
  add_stream({hello.stream, hello.generation}, std::move(connection), hello);
}

// The peer keeps its port when its machine gets another address, or a NAT before it does. An address from
// which it merely dials (a NAT that lets nobody in) is only a second one to try.
void Link::heard_from(const std::string& host) {
  if (phase_ == Phase::Connecting) usual_host_ = host;
  if (!is_up() || !redialer_.set_seen_host(host == usual_host_ ? std::string() : host)) return;
  core::log(core::LogLevel::Info, name_.get(), " is at ", host, " now");
  reconnect_all();
}

void Link::add_stream(const Carrier& carrier, std::unique_ptr<Connection> connection,
                      const HelloPayload& peer_says) {
  if (carrier.stream == 0) binding_.restart(*connection);
  const bool over_rdma = carrier.stream != 0 && data_path_ == DataPath::Rdma;
  Stream& stream = streams_.put(
      over_rdma ? context_.rdma_stream(std::move(connection), carrier, *this)
                : std::make_unique<Stream>(*context_.loop, std::move(connection), carrier, *this,
                                           carrier.stream == 0 ? nullptr : context_.tls_threads.get()));
  if (down_ && streams_.complete()) {
    down_ = false;
    core::log(core::LogLevel::Warning, "connected to ", name_.get(), " again after ",
              in_seconds(std::chrono::duration_cast<std::chrono::milliseconds>(streams_.last_outage())));
  }
  health_.on_contact();
  redialer_.on_contact();
  if (!redialer_.dials()) redialer_.stop();
  if (carrier.stream == 0) {
    if (phase_ == Phase::Connecting) mux_.set_peer_limit(peer_says.max_unexpected_bytes);
    peer_receive_buffer_ = peer_says.receive_buffer_bytes;
    // The peer may have missed what the older control stream carried.
    mux_.repeat_acks();
  }
  share_pacing();
  if (const Status status = stream.start(); !status.is_ok()) return on_stream_lost(stream, status);
  // Not all at the same time: over a network that breaks connections all the time that may never be.
  const bool complete = streams_.all_were_open() && streams_.control() != nullptr;
  if (phase_ == Phase::Connecting && complete) become_ready();
  wake_();
}

void Link::become_ready() {
  enter(mux_.has_peer_left() ? Phase::PeerLeft : status_.is_leaving() ? Phase::Draining : Phase::Ready);
  cancel_waits();
  timers().cancel_timer(phase_timer_);
  redialer_.set_resuming();
  status_.set_connected();
  ChannelStats now;
  streams_.add_stats(now);
  core::log(core::LogLevel::Info, "connected to ", name_.get(), " over ", now.streams, " data streams, ",
            now.congestion_control);
  tick();
}

void Link::drop(Stream& stream) {
  const Carrier carrier = stream.carrier();
  streams_.close(stream, health_.last_contact());
  mux_.lost(carrier);
  share_pacing();
  wake_();
}

void Link::reconnect(std::uint16_t stream) {
  // Both have everything: only the Close packets, or their acknowledgements, may be missing.
  const bool finished = mux_.has_peer_left() && mux_.drained();
  if (finished) linger();
  if (redialer_.dials()) {
    if (!finished || stream == 0) {
      redialer_.dial(stream, tuning(), streams_.pause_before_redial(stream));
    }
  } else if (phase_ == Phase::Connecting && streams_.open_count() == 0) {
    wait_for_peer_to_dial();
  } else if (is_up() && (streams_.open_count() == 0 || (finished && stream == 0))) {
    redialer_.ask(tuning());
  }
}

// The peer may still want our Close; if it has ended without, nothing is lost.
void Link::linger() {
  if (phase_ == Phase::Lingering) return;
  enter(Phase::Lingering);
  timers().cancel_timer(phase_timer_);
  phase_timer_ = timers().add_timer_in(kLinger, [this] { close(status_.reason(), !status_.is_leaving()); });
}

// At once, instead of after the pauses that have begun.
void Link::reconnect_all() {
  redialer_.stop();
  for (std::size_t i = 0; i < streams_.size() && is_up(); ++i) {
    if (!streams_.open(i)) reconnect(static_cast<std::uint16_t>(i));
  }
}

std::string Link::how_long() const {
  if (verdict_from_above_) return " until it is forgotten";
  return core::str(" for up to ", in_seconds(context_.options.link_deadline), " (link_deadline)");
}

// The control stream may be in best health where the fabric is not.
bool Link::gives_up(const Stream& lost) {
  if (lost.index() == 0 || verdict_from_above_) return false;
  const auto now = timers().now();
  const bool first = fruitless_since_ == Timers::Time{};
  if (!lost.is_fruitless()) {
    fruitless_since_ = {};
  } else if (first) {
    fruitless_since_ = now;
  }
  return lost.is_fruitless() && !first && now - fruitless_since_ > context_.options.link_deadline;
}

void Link::on_stream_lost(Stream& stream, const Status& why) {
  const std::uint16_t index = stream.index();
  const bool hopeless = gives_up(stream);
  drop(stream);
  if (phase_ == Phase::Closed) return;
  last_loss_ = why.message();
  core::log(core::LogLevel::Info, name_.get(), ": lost the connection of stream ", index, ": ",
            why.message());
  if (hopeless) {
    return fail(lost(core::str("its data stream was made again and again for ",
                               in_seconds(context_.options.link_deadline),
                               " (link_deadline) and moved nothing. Last: ", last_loss_)));
  }
  reconnect(index);
  if (!is_up() || is_ending() || streams_.open_count() > 0 || std::exchange(down_, true)) return;
  core::log(core::LogLevel::Warning, "lost all connections to ", name_.get(), " (", why.message(),
            "); trying again", how_long());
}

void Link::on_no_link(const Status& why) {
  if (phase_ == Phase::Closed) return;
  // Who has told others its address listens there.
  if (phase_ == Phase::Connecting && why.sys_errno() == ECONNREFUSED) {
    return fail(
        lost(core::str("its process has ended, or a firewall refuses connections to it: ", why.message()))
            .with_errno(why.sys_errno()));
  }
  if (phase_ == Phase::Connecting) return fail(why);
  if (nothing_left()) return close(status_.reason(), !status_.is_leaving());
  // What the dialer says of ports and firewalls would mislead: they let this link through before.
  if (why.sys_errno() == ECONNREFUSED) {
    return fail(lost(core::str("its process has ended: the connections broke (", last_loss_,
                               "), and new ones are refused. Its log says why"))
                    .with_errno(why.sys_errno()));
  }
  const bool other = why.code() == kTryAgain || why.code() == StatusCode::Network;
  const std::string verdict =
      other ? "its process has been restarted (another one answers at its address), and cannot go on with "
              "what the old one had begun"
            : "it takes no new connection";
  fail(lost(core::str("the connections broke (", last_loss_, "), and ", verdict, ": ", why.message()))
           .with_errno(why.sys_errno()));
}

}  // namespace geocomm::transport
