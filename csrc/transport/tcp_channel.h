// A Channel over TCP: one control stream, which carries Grant, heartbeats, acknowledgements and Close, and
// data streams, which carry segments, or one that has them carried by RDMA.
//
// Life: connecting → ready → closed. A connection that is lost while ready is made again, and what it carried
// goes out again over any other. Orderly end (shutdown here or Close from the peer): flush, Close, wait
// for the peer's and for the acknowledgement of ours.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/deadline.h"
#include "core/status.h"
#include "transport/channel.h"
#include "transport/endpoint.h"
#include "transport/io/connection.h"
#include "transport/io/io_loop.h"
#include "transport/io/tls_keys.h"
#include "transport/link/clock_offset.h"
#include "transport/link/redialer.h"
#include "transport/link/stream.h"
#include "transport/link/stream_binding.h"
#include "transport/link/stream_plan.h"
#include "transport/link/stream_set.h"
#include "transport/mux/closed_groups.h"
#include "transport/mux/mux.h"
#include "transport/rdma/rdma_fabric.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// What the channels of an endpoint share; outlives them all.
struct ChannelContext {
  std::shared_ptr<IoLoop> loop;
  EndpointOptions options;
  std::uint16_t first_streams = 0;  // of a channel when it connects, if it has its path to itself
  BufferLimits buffers;
  ProcessId self{};
  core::BufferPool pool{std::size_t{64} << 20};  // of unexpected chunks
  ClosedGroups closed_groups;
  std::unique_ptr<TlsKeys> keys;     // null: plaintext
  std::unique_ptr<RdmaFabric> rdma;  // null: none; the IO thread's once it runs
  std::function<void()> on_closed;   // a channel has closed or failed; on the IO thread

  bool loopback_only() const { return options.security == Security::Required && !keys; }
};

// "1.5 s"
std::string in_seconds(std::chrono::milliseconds time);

class TcpChannel final : public Channel,
                         public StreamOwner,
                         public RedialerOwner,
                         public std::enable_shared_from_this<TcpChannel> {
 public:
  TcpChannel(std::shared_ptr<ChannelContext> context, const ProcessId& peer_id, std::string description);

  core::Status wait_ready(core::Deadline deadline) override;
  core::Status send(OutgoingChunk chunk, std::function<void(const core::Status&)> on_sent) override;
  core::Status post_receive(OpKey key, std::uint64_t descriptor, std::uint32_t chunk_count,
                            std::shared_ptr<ReceiveSink> sink) override;
  void cancel(OpKey key) override;
  void expect_rate(double bytes_per_sec) override;
  core::Status status() const override;
  ChannelStats stats() const override;
  const std::string& peer() const override { return *description_.load(std::memory_order_acquire); }

  // Any thread. Gives a channel that the peer opened its name; the first one counts.
  void describe(const std::string& description);
  void close_group(std::uint64_t group, const core::Status& why, QueuedChunks queued);

  // The IO thread's.
  // `peer` is where to dial, or, as the other side, where to look for a peer that went silent.
  void connect(const PeerAddress& peer, const JobToken& token, bool dials);
  // A stream that the peer has opened: an error if it does not fit, otherwise the older connection of its
  // number is closed, and adopt() takes the new one after Welcome is sent.
  core::Status admit(const HelloPayload& hello);
  // Whether the process at the other end of `connection` is the one that has this channel's control stream.
  bool is_bound(const Connection& connection, const HelloPayload& hello) const {
    return binding_.holds(connection, hello);
  }
  // Whether it comes from the other end of this link, as far as that can be seen before the handshake. Once.
  bool recognizes(const LinkMark& mark) { return binding_.recognizes(mark); }
  HelloPayload welcome(const HelloPayload& hello) const;
  void adopt(std::unique_ptr<Connection> connection, const HelloPayload& hello);
  // A Hello of the peer's process came from there (SocketAddress::host()): its address may have changed.
  void heard_from(const std::string& host);
  // Welcome could not be sent.
  void not_adopted(std::uint16_t stream) { reconnect(stream); }
  // Flush, Close, drain. With nothing to flush and no connection yet, it closes at once.
  void begin_close();
  void fail(core::Status why);
  bool closed() const { return phase_ == Phase::Closed; }
  bool was_ready() const { return phase_ != Phase::Connecting; }
  // Of the two ends, this one makes the connections.
  bool dials() const { return redialer_.has_plan() ? redialer_.dials() : context_->self > peer_id_; }
  // The peer dials, where this end does, while there is no connection yet: whether this end leaves that to
  // the peer from now on. Of two that dial at once, the smaller id gives way, so that one connection is left.
  bool yields();
  StreamTuning tuning() const;

 private:
  enum class Phase : std::uint8_t { Connecting, Ready, Closed };

  core::Result<SegmentCopy> begin_segment(const WireHeader& header) override;
  void finish_segment(SegmentCopy copy) override;
  core::Status on_packet(const WireHeader& header) override;
  void pull(const Carrier& carrier, bool time_left, std::vector<OutSegment>& out) override;
  bool has_ready(const Carrier& carrier) const override;
  void on_segment_sent(const OutSegment& segment) override;
  void count_bytes(std::uint64_t received, std::uint64_t sent) override;
  void on_stream_lost(Stream& stream, const core::Status& why) override;
  void on_violation(Stream& stream, const core::Status& why) override;

  HelloPayload next_hello(std::uint16_t stream) override;
  std::string next_server_name() override { return binding_.next_mark(); }
  void on_dialed(std::uint16_t stream, DialedStream dialed) override;
  void on_no_link(const core::Status& why) override;
  bool nothing_left() const override { return closing_ && mux_.drained(); }
  bool has_heard() const override { return mux_.control_received() > 0; }
  bool verdict_from_above() const override { return verdict_from_above_; }

  HelloPayload hello(std::uint16_t stream, std::uint16_t stream_count, std::uint32_t generation) const;
  void start_deadline();
  void wait_for_turn();
  void take_turn();
  void dial_elsewhere();
  core::Status forgotten_by_one();
  bool gives_up(const Stream& lost);
  // How long it tries to connect again, for the log.
  std::string how_long() const;
  void add_stream(const Carrier& carrier, std::unique_ptr<Connection> connection,
                  const HelloPayload& peer_says);
  std::uint16_t data_streams() const;
  bool may_add_streams() const { return context_->options.streams == 0 && data_path_ != DataPath::Rdma; }
  void plan_streams();
  void want_streams(int count);
  void open_more_streams();
  // Of the data streams, the first so many carry segments; the others stand in for those that are down.
  int used_streams() const;
  bool is_spare(std::size_t stream) const;
  // Those that carry segments now.
  int carrying_streams() const;
  std::uint64_t share_of_pacing() const;
  void share_pacing();
  void send_heartbeat();
  void become_ready();
  void tick();
  void drop(Stream& stream);
  void reconnect(std::uint16_t stream);
  void reconnect_all();
  void linger();
  void on_acked(std::uint64_t bytes);
  void on_reply(const WireHeader& header);
  void peer_left();
  void schedule_flush();
  void flush();
  void hedge_slow_segments();
  void look_again();
  void send_control();
  void advance_closing();
  void close(const core::Status& reason, bool keep_complete, bool reset = false);
  void set_reason(const core::Status& reason);
  void run_callbacks(std::vector<SentCallback> callbacks, const core::Status& status);
  core::Status lost(const std::string& what) const;

  const std::shared_ptr<ChannelContext> context_;
  const ProcessId peer_id_;
  const std::string first_description_;
  std::unique_ptr<const std::string> given_description_;  // set once, under mutex_
  std::atomic<const std::string*> description_;

  Mux mux_;

  mutable std::mutex mutex_;  // guards connected_, reason_, given_description_
  std::condition_variable changed_;
  bool connected_ = false;
  core::Status reason_;  // Ok while alive

  std::atomic<bool> flush_scheduled_{false};
  std::atomic<bool> refuse_posts_{false};

  StreamSet streams_;
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> bytes_received_{0};
  std::atomic<std::uint64_t> rtt_us_{0};
  std::atomic<std::uint64_t> least_rtt_us_{0};
  mutable std::mutex clock_mutex_;  // guards peer_clock_
  ClockOffset peer_clock_;
  std::atomic<std::uint64_t> last_byte_ns_{0};  // by Timers::now_ns(); 0: none yet

  // The IO thread's.
  Phase phase_ = Phase::Connecting;
  bool closing_ = false;        // no new sends; Close once the queue is empty
  bool local_closing_ = false;  // because this endpoint shuts down
  std::uint64_t peer_limit_ = 0;
  std::uint64_t peer_receive_buffer_ = 0;
  std::size_t next_stream_ = 0;            // with which flush() begins
  std::chrono::microseconds path_rtt_{0};  // TCP's, without the time that processes take
  double expected_rate_ = 0;               // bytes per second; 0: not known
  StreamTrial trial_;
  std::uint64_t stalled_us_ = 0;  // by the kernel's buffers, all open streams
  bool limited_ = false;          // between the last two ticks
  int planned_streams_ = 0;       // by the formula
  int first_streams_ = 0;
  int wanted_streams_ = 0;                    // by this side, unless EndpointOptions::streams says
  int peer_wanted_streams_ = 0;               // by the other side
  std::chrono::milliseconds user_timeout_{};  // of the open streams
  StreamBinding binding_;
  std::optional<DataPath> data_path_;  // nothing: neither this process nor the peer has said it
  Timers::Time fruitless_since_{};     // streams were lost that moved nothing; zero: the last one did
  Redialer redialer_;
  std::string usual_host_;  // where the peer dialed from while the link was made; empty: it did not
  Timers::Time last_contact_;
  int silent_ticks_ = 0;   // in a row, with nothing heard
  std::string last_loss_;  // why a connection was lost
  bool down_ = false;      // no connection was left, and that was said; until all are there again
  Timers::TimerId timer_{};
  bool deadline_started_ = false;
  bool verdict_from_above_ = false;           // as PeerAddress says
  std::optional<Timers::TimerId> mux_timer_;  // runs
  Timers::TimerId linger_timer_{};
  bool lingering_ = false;
  Timers::TimerId turn_timer_{};
};

}  // namespace geocomm::transport
