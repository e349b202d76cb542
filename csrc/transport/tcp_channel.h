// A Channel over TCP: one control stream, which carries Posted, heartbeats and Goodbye, and data streams,
// which carry segments.
//
// Life: connecting → ready → closing (shutdown here or Goodbye from the peer: flush, Goodbye on every stream,
// drain) → closed; or, from any of them, closed by a failure.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/deadline.h"
#include "core/status.h"
#include "transport/channel.h"
#include "transport/closed_groups.h"
#include "transport/connection.h"
#include "transport/dialer.h"
#include "transport/endpoint.h"
#include "transport/io_loop.h"
#include "transport/receive_table.h"
#include "transport/send_queue.h"
#include "transport/stream.h"
#include "transport/wire.h"

namespace geocomm::transport {

// What the channels of an endpoint share; outlives them all.
struct ChannelContext {
  std::shared_ptr<IoLoop> loop;
  EndpointOptions options;  // streams filled in
  ProcessId self{};
  core::BufferPool pool{std::size_t{64} << 20};  // of unexpected chunks
  ClosedGroups closed_groups;
  std::function<void()> on_closed;  // a channel has closed or failed; on the IO thread
};

class TcpChannel final : public Channel, public StreamOwner, public std::enable_shared_from_this<TcpChannel> {
 public:
  TcpChannel(std::shared_ptr<ChannelContext> context, const ProcessId& peer_id, std::string description);

  core::Status wait_ready(core::Deadline deadline) override;
  core::Status send(OutgoingChunk chunk, std::function<void(const core::Status&)> on_sent) override;
  core::Status wait_room(core::Deadline deadline) override;
  core::Status post_receive(OpKey key, std::uint64_t descriptor, std::uint32_t chunk_count,
                            std::shared_ptr<ReceiveSink> sink) override;
  void cancel(OpKey key) override;
  core::Status status() const override;
  ChannelStats stats() const override;
  const std::string& peer() const override { return *description_.load(std::memory_order_acquire); }

  // Any thread. Gives a channel that the peer opened its name; the first one counts.
  void describe(const std::string& description);
  void close_group(std::uint64_t group, const core::Status& why);

  // The IO thread's.
  void dial(const PeerAddress& address, const JobToken& token);
  void expect_peer();
  // Whether a stream that the peer has opened fits; if so, adopt() takes it after Welcome is sent.
  core::Status check_hello(const HelloPayload& hello) const;
  void adopt(std::unique_ptr<Connection> connection, const HelloPayload& hello);
  // Flush, Goodbye, drain. With nothing to flush and no connection yet, it closes at once.
  void begin_close();
  void fail(core::Status why);
  bool closed() const { return phase_ == Phase::Closed; }
  HelloPayload hello(std::uint16_t stream, std::uint16_t stream_count) const;
  StreamTuning tuning(std::uint16_t stream_count) const;

 private:
  enum class Phase : std::uint8_t { Connecting, Ready, Closed };

  core::Result<Incoming> begin_segment(const WireHeader& header) override;
  void finish_segment(Incoming incoming) override;
  core::Status on_frame(const WireHeader& header) override;
  void pull(std::vector<OutSegment>& out) override;
  bool has_ready() const override { return queue_.has_ready(); }
  void on_segment_sent(const OutSegment& segment) override;
  void count_bytes(std::uint64_t received, std::uint64_t sent) override;
  void on_stream_progress(Stream& stream) override;
  void on_stream_failed(Stream& stream, const core::Status& why) override;

  void start_deadline();
  void dial_stream(std::uint16_t stream, std::uint16_t stream_count);
  void on_dialed(std::uint16_t stream, std::uint16_t stream_count, core::Result<DialedStream> dialed);
  void add_stream(std::uint16_t stream, std::uint16_t stream_count, std::unique_ptr<Connection> connection,
                  std::uint64_t peer_limit);
  void become_ready();
  void tick();
  void peer_left();
  void schedule_flush();
  void flush();
  void close_stream(Stream& stream);
  void close(const core::Status& reason, bool keep_complete);
  void set_reason(const core::Status& reason);
  void announce(const OpKey& key);
  void run_callbacks(std::vector<SentCallback> callbacks, const core::Status& status);
  core::Status lost(core::StatusCode code, const std::string& what) const;

  const std::shared_ptr<ChannelContext> context_;
  const ProcessId peer_id_;
  const std::string first_description_;
  std::unique_ptr<const std::string> given_description_;  // set once, under mutex_
  std::atomic<const std::string*> description_;

  SendQueue queue_;
  ReceiveTable table_;

  mutable std::mutex mutex_;  // guards connected_, reason_, given_description_
  std::condition_variable changed_;
  bool connected_ = false;
  core::Status reason_;  // Ok while alive

  std::mutex control_mutex_;         // guards control_
  std::vector<WireHeader> control_;  // for the control stream
  std::atomic<bool> flush_scheduled_{false};
  std::atomic<bool> refuse_posts_{false};

  mutable std::mutex streams_mutex_;  // the IO thread holds it to change streams_, others to look at it
  std::vector<std::unique_ptr<Stream>> streams_;  // by index
  std::uint64_t closed_retransmits_ = 0;          // of streams that are gone; with streams_mutex_
  std::string congestion_control_;                // with streams_mutex_

  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> bytes_received_{0};
  std::atomic<std::uint64_t> payload_sent_{0};
  std::atomic<std::uint64_t> payload_received_{0};
  std::atomic<std::uint64_t> rtt_us_{0};

  // The IO thread's.
  Phase phase_ = Phase::Connecting;
  bool closing_ = false;        // no new sends; Goodbye once the queue is empty
  bool local_closing_ = false;  // because this endpoint shuts down
  bool goodbye_sent_ = false;
  bool peer_left_ = false;
  bool receives_ended_ = false;
  std::uint64_t peer_limit_ = 0;
  std::size_t next_stream_ = 0;  // with which flush() begins
  IoLoop::Clock::time_point last_receive_;
  IoLoop::TimerId timer_{};
  bool deadline_started_ = false;
  DialPlan plan_;
  std::vector<std::unique_ptr<Dialer>> dialers_;
};

}  // namespace geocomm::transport
