// One connection of a channel: reads packets, and writes control packets and segments that it pulls from
// the channel's queue when the kernel has room.
//
// What it does at a time is a turn: a write, a read, or both. Where TLS has much to encrypt or decrypt,
// another thread makes the calls of the turn ("aside"), and the IO thread does all else, before and after
// them.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "transport/io/connection.h"
#include "transport/io/io_loop.h"
#include "transport/io/offload.h"
#include "transport/mux/segment_receiver.h"
#include "transport/mux/send_queue.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

class Stream;

// The channel, as its streams see it. Called on the IO thread.
class StreamDelegate {
 public:
  virtual ~StreamDelegate() = default;
  // Where the payload of a Segment goes. An error fails the channel.
  virtual core::Result<SegmentCopy> begin_segment(const WireHeader& header) = 0;
  virtual void finish_segment(SegmentCopy copy) = 0;
  // A packet of the control stream, without payload. An error fails the channel.
  virtual core::Status on_packet(const WireHeader& header) = 0;
  // `time_left`: the stream is idle, and takes over what others are slow with.
  virtual void pull(const Carrier& carrier, bool time_left, std::vector<OutSegment>& out) = 0;
  // pull() would give it some. Where it would not, room in the stream's socket is nothing to wait for.
  virtual bool has_ready(const Carrier& carrier) const = 0;
  virtual void on_segment_sent(const OutSegment& segment) = 0;
  virtual void count_bytes(std::uint64_t received, std::uint64_t sent) = 0;
  // The connection is gone. Closes the stream.
  virtual void on_stream_lost(Stream& stream, const core::Status& why) = 0;
  // The peer broke the protocol. Closes the stream.
  virtual void on_violation(Stream& stream, const core::Status& why) = 0;
};

// All on the IO thread. What is virtual, RdmaStream does in its own way.
class Stream : public IoHandler {
 public:
  // Stream number 0 is the control stream, which pulls no segments. `helpers` make the calls of large turns;
  // null: the IO thread makes all.
  Stream(IoLoop& loop, std::unique_ptr<Connection> connection, const Carrier& carrier,
         StreamDelegate& delegate, core::ThreadPool* helpers = nullptr);
  ~Stream() override;
  virtual core::Status start();

  void send_packet(const WireHeader& header) { send_packets({&header, 1}); }
  void send_packets(std::span<const WireHeader> headers);
  // Of control packets and segments that the connection has not taken.
  std::size_t pending_bytes() const { return out_bytes_ - out_written_; }
  // The kernel has sent all that it was given.
  virtual bool is_idle() const;
  // The queue has segments again.
  virtual void wake();
  // Others are slow. Precondition: is_idle().
  virtual void help() {
    write(true);
    end_turn();
  }
  // Closes the connection at once.
  virtual void close();

  const Carrier& carrier() const { return carrier_; }
  std::uint16_t index() const { return carrier_.stream; }
  // Precondition: is_open().
  int fd() const { return connection_->fd(); }
  std::string_view cipher() const { return connection_->cipher(); }
  bool is_open() const { return connection_ != nullptr; }
  // Any thread. What carries the segments.
  virtual std::string transport() const { return "tcp"; }
  // It never came so far as to move a segment that it was given.
  virtual bool is_fruitless() const { return false; }

  void on_ready(std::uint32_t events) override;

 protected:
  IoLoop& loop() { return loop_; }
  Connection& connection() { return *connection_; }
  StreamDelegate& delegate() { return delegate_; }
  void lose(const core::Status& why);
  void violation(const core::Status& why);

 private:
  struct OutPacket {
    HeaderBytes header;
    OutSegment segment;  // no chunk: a control packet
    std::size_t size() const { return kHeaderBytes + (segment.chunk ? segment.length : 0); }
  };

  // Where the next bytes go: the rest of the payload and, behind it, what follows.
  struct Reading {
    std::array<iovec, 2> parts;
    std::size_t count = 0;
    std::size_t payload_room = 0;
    std::size_t room = 0;
    std::span<const iovec> span() const { return std::span(parts).first(count); }
  };
  static constexpr std::size_t kMaxPacketsPerWrite = 16;
  struct Writing {
    std::array<iovec, 2 * kMaxPacketsPerWrite> parts;
    std::size_t count = 0;
    std::size_t bytes = 0;
    std::span<const iovec> span() const { return std::span(parts).first(count); }
  };
  // A turn whose calls another thread makes.
  struct Aside {
    Aside(core::ThreadPool& helpers, IoLoop& loop) : offload(helpers, loop) {}
    Offload offload;
    Writing writing;
    Reading reading;
    core::Result<std::size_t> written = std::size_t{0};
    core::Result<Connection::Received> received = Connection::Received{};
  };

  void take_turn(std::uint32_t events);
  void end_turn();
  void read();
  Reading next_reading();
  // What came of it. False: the stream is closed, or the kernel has no more.
  bool account_for(const Reading& reading, const core::Result<Connection::Received>& received);
  // False when the stream is closed.
  bool take_payload(std::size_t bytes);
  bool parse_staged();
  bool on_header(const WireHeader& header);
  void write(bool time_left = false);
  void pull_packets(bool time_left);
  Writing next_writing() const;
  void account_for(const Writing& writing, const core::Result<std::size_t>& written);
  void advance(std::size_t written);
  void watch();

  bool is_aside() const { return aside_ && aside_->offload.is_under_way(); }
  void begin_aside(const Writing& writing);
  void make_calls_aside();
  void end_aside();

  IoLoop& loop_;
  std::unique_ptr<Connection> connection_;  // null: closed
  const Carrier carrier_;
  StreamDelegate& delegate_;
  IoLoop::HandlerId handler_ = 0;
  std::uint32_t watched_ = 0;    // the events that the loop watches for
  bool watches_output_ = false;  // there is more to write
  bool comes_again_ = false;     // the loop was asked for another turn

  // Reading: headers and the start of payloads go through `staged_`; the rest of a payload goes straight to
  // its destination.
  std::array<std::byte, 4096> staged_;
  std::size_t staged_bytes_ = 0;
  bool reads_much_ = false;  // the last turn did, and more comes: the next one goes aside
  bool receiving_ = false;   // inside a payload
  SegmentCopy copy_;
  std::size_t payload_left_ = 0;

  std::deque<OutPacket> out_;
  std::size_t out_bytes_ = 0;    // in out_
  std::size_t out_written_ = 0;  // of the first packet
  std::vector<OutSegment> pulled_;

  const std::unique_ptr<Aside> aside_;  // null: the IO thread makes all calls
};

}  // namespace geocomm::transport
