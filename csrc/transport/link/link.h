// Link: the connections to one peer. Dials or accepts them, makes them again when they are lost, says that it
// is there, and ends in good order. What they carry is the Mux's; it knows no operation.
//
// Phases, what ends each, and the next one:
//
//   Connecting   every stream has had its connection, and the control stream is there    Ready (*)
//   Ready        begin_close(): this process leaves; what is queued still goes out       Draining
//                Close came: the peer has left, and takes only what it had posted        PeerLeft
//   Draining     Close came                                                              PeerLeft
//   PeerLeft     all is acknowledged, both Closes too                                    Closed
//                a connection was lost, and only Closes or their acknowledgements miss   Lingering
//   Lingering    they came, or two seconds are over                                      Closed
//   any          fail(): silence for the link deadline, refusals, a broken protocol,
//                forget()                                                                Closed
//
// (*) or at once where it leads: to Draining or PeerLeft, if that was said meanwhile. There are connections
// in all phases but the last: one that is lost is made again, and the Mux gives what it carried to the
// others. Heartbeats go out from Ready on.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/executor.h"
#include "core/status.h"
#include "transport/io/connection.h"
#include "transport/io/io_loop.h"
#include "transport/io/tls_keys.h"
#include "transport/link/link_health.h"
#include "transport/link/link_options.h"
#include "transport/link/link_status.h"
#include "transport/link/peer_name.h"
#include "transport/link/redialer.h"
#include "transport/link/stream.h"
#include "transport/link/stream_binding.h"
#include "transport/link/stream_plan.h"
#include "transport/link/stream_set.h"
#include "transport/mux/mux.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// What the links of an endpoint share; outlives them all.
struct LinkContext {
  std::shared_ptr<IoLoop> loop;
  LinkOptions options;
  std::uint16_t first_streams = 0;  // of a link when it connects, if it has its path to itself
  BufferLimits buffers;
  ProcessId self{};
  std::unique_ptr<TlsKeys> keys;  // null: plaintext
  // They encrypt and decrypt where that is much, with the IO thread; null: it alone does.
  std::unique_ptr<core::ThreadPool> tls_threads;
  bool loopback_only = false;
  // Makes a data stream whose segments RDMA carries; null: there is no fabric.
  std::function<std::unique_ptr<Stream>(std::unique_ptr<Connection>, const Carrier&, StreamDelegate&)>
      rdma_stream;
  std::function<void()> on_closed;  // a link has closed or failed; on the IO thread
};

// The IO thread's, but for status() and add_stats().
class Link final : public StreamDelegate, public RedialerDelegate {
 public:
  // `wake`: flush() is to be called soon; any thread.
  Link(const LinkContext& context, const ProcessId& peer_id, const PeerName& name, Mux& mux,
       std::function<void()> wake);

  LinkStatus& status() { return status_; }
  const LinkStatus& status() const { return status_; }
  void add_stats(ChannelStats& stats) const;

  // `peer` is where to dial, or, as the other side, where to look for a peer that went silent.
  void connect(const PeerAddress& peer, const JobToken& token, bool dials);
  void expect_rate(double bytes_per_sec);
  // A stream that the peer has opened: an error if it does not fit, otherwise the older connection of its
  // number is closed, and adopt() takes the new one after Welcome is sent.
  core::Status admit(const HelloPayload& hello);
  // Whether the process at the other end of `connection` is the one that has this link's control stream.
  bool is_bound(const Connection& connection, const HelloPayload& hello) const {
    return binding_.holds(connection, hello);
  }
  // Whether it comes from the other end of this link, as far as that can be seen before the handshake. Once.
  bool recognizes(const LinkMark& mark) { return binding_.recognizes(mark); }
  HelloPayload welcome(const HelloPayload& hello) const;
  void adopt(std::unique_ptr<Connection> connection, const HelloPayload& hello);
  // Welcome could not be sent.
  void not_adopted(std::uint16_t stream) { reconnect(stream); }
  // A Hello of the peer's process came from there (SocketAddress::host()): its address may have changed.
  void heard_from(const std::string& host);
  // Of the two ends, this one makes the connections.
  bool dials() const { return redialer_.has_options() ? redialer_.dials() : context_.self > peer_id_; }
  // The peer dials, where this end does, while there is no connection yet: whether this end leaves that to
  // the peer from now on. Of two that dial at once, the smaller id gives way, so that one connection is left.
  bool yields();
  StreamTuning tuning() const;

  // Gives the connections what the Mux has for them.
  void flush();
  // Flush, Close, drain. With nothing to flush and no connection yet, it closes at once.
  void begin_close();
  void fail(core::Status why);
  bool closed() const { return phase_ == Phase::Closed; }
  bool was_ready() const { return phase_ != Phase::Connecting; }

 private:
  enum class Phase : std::uint8_t { Connecting, Ready, Draining, PeerLeft, Lingering, Closed };

  // The only way from one phase to another.
  void enter(Phase next);
  bool is_up() const { return phase_ != Phase::Connecting && phase_ != Phase::Closed; }
  // No new sends; Close once the Mux is drained.
  bool is_ending() const { return status_.is_leaving() || mux_.has_peer_left(); }

  core::Result<SegmentCopy> begin_segment(const WireHeader& header) override { return mux_.begin(header); }
  void finish_segment(SegmentCopy copy) override;
  core::Status on_packet(const WireHeader& header) override;
  void pull(const Carrier& carrier, bool time_left, std::vector<OutSegment>& out) override;
  bool has_ready(const Carrier& carrier) const override;
  void on_segment_sent(const OutSegment& segment) override { mux_.written(segment); }
  void count_bytes(std::uint64_t received, std::uint64_t sent) override;
  void on_stream_lost(Stream& stream, const core::Status& why) override;
  void on_violation(Stream& stream, const core::Status& why) override;

  HelloPayload next_hello(std::uint16_t stream) override;
  std::string next_server_name() override { return binding_.next_mark(); }
  void on_dialed(std::uint16_t stream, DialedStream dialed) override;
  void on_no_link(const core::Status& why) override;
  bool nothing_left() const override { return is_ending() && mux_.drained(); }
  bool has_heard() const override { return mux_.control_received() > 0; }
  bool verdict_from_above() const override { return verdict_from_above_; }

  HelloPayload hello(std::uint16_t stream, std::uint16_t stream_count, std::uint32_t generation) const;
  void start_word();
  void cancel_waits();
  void start_deadline();
  void wait_for_peer_to_dial();
  void dial_first();
  void dial_elsewhere();
  core::Status forgotten_by_one();
  bool gives_up(const Stream& lost);
  // How long it tries to connect again, for the log.
  std::string how_long() const;
  void add_stream(const Carrier& carrier, std::unique_ptr<Connection> connection,
                  const HelloPayload& peer_says);
  void become_ready();
  void drop(Stream& stream);
  void reconnect(std::uint16_t stream);
  void reconnect_all();
  void linger();

  std::uint16_t data_streams() const;
  bool may_add_streams() const { return context_.options.streams == 0 && data_path_ != DataPath::Rdma; }
  void plan_streams();
  // The plan has changed, by which this side wanted `before` streams.
  void follow_plan(int before);
  void open_more_streams();
  int used_streams() const { return may_add_streams() ? planner_.used() : data_streams(); }
  bool is_spare(std::size_t stream) const;
  // Those that carry segments now.
  int carrying_streams() const;
  std::uint64_t share_of_pacing() const;
  void share_pacing();

  void tick();
  void send_heartbeat();
  core::Status on_heartbeat(const WireHeader& header);
  void on_reply(const WireHeader& header);
  void on_acked(std::uint64_t bytes);
  void hedge_slow_segments();
  // `now`: of what the Mux was told last. Read once more, the clock may have passed what is due.
  void look_again(Timers::Time now);
  void send_control(Timers::Time now);
  void peer_left();
  void advance_closing();
  void close(const core::Status& reason, bool keep_complete, bool reset = false);
  core::Status lost(const std::string& what) const;
  Timers& timers() const { return *context_.loop; }

  const LinkContext& context_;
  const ProcessId peer_id_;
  const PeerName& name_;
  Mux& mux_;
  const std::function<void()> wake_;
  LinkStatus status_;
  StreamSet streams_;
  LinkHealth health_;
  StreamPlanner planner_;
  StreamBinding binding_;
  Redialer redialer_;

  Phase phase_ = Phase::Connecting;
  bool verdict_from_above_ = false;    // as PeerAddress says
  std::optional<DataPath> data_path_;  // nothing: neither this process nor the peer has said it
  std::uint64_t peer_receive_buffer_ = 0;
  std::size_t next_stream_ = 0;               // with which flush() begins
  std::chrono::milliseconds user_timeout_{};  // of the open streams
  std::string usual_host_;          // where the peer dialed from while the link was made; empty: it did not
  std::string last_loss_;           // why a connection was lost
  bool down_ = false;               // no connection was left, and that was said; until all are there again
  Timers::Time fruitless_since_{};  // streams were lost that moved nothing; zero: the last one did
  std::optional<Timers::TimerId> beat_timer_;  // Connecting: the deadline; later the next heartbeat
  std::optional<Timers::TimerId> word_timer_;  // Connecting: says that it is not connected yet
  Timers::TimerId phase_timer_{};              // Connecting: this side dials; Lingering: the end
  std::optional<Timers::TimerId> mux_timer_;   // runs
};

}  // namespace geocomm::transport
