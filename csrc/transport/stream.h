// One connection of a channel: reads frames, and writes control frames and segments that it pulls from
// the channel's queue when the kernel has room.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/status.h"
#include "transport/connection.h"
#include "transport/io_loop.h"
#include "transport/receive_table.h"
#include "transport/send_queue.h"
#include "transport/wire.h"

namespace geocomm::transport {

class Stream;

// The channel, as its streams see it. Called on the IO thread.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  // Where the payload of a Segment goes. An error fails the channel.
  virtual core::Result<Incoming> begin_segment(const WireHeader& header) = 0;
  virtual void finish_segment(Incoming incoming) = 0;
  // A frame without payload other than Goodbye. An error fails the channel.
  virtual core::Status on_frame(const WireHeader& header) = 0;
  virtual void pull(std::vector<OutSegment>& out) = 0;
  virtual bool has_ready() const = 0;
  virtual void on_segment_sent(const OutSegment& segment) = 0;
  virtual void count_bytes(std::uint64_t received, std::uint64_t sent) = 0;
  // A Goodbye came, its end of the stream came, or ours is sent.
  virtual void on_stream_progress(Stream& stream) = 0;
  // The connection is broken or the peer broke the protocol. May close the stream.
  virtual void on_stream_failed(Stream& stream, const core::Status& why) = 0;
};

// All on the IO thread.
class Stream : public IoHandler {
 public:
  // `index` 0 is the control stream, which pulls no segments.
  Stream(IoLoop& loop, std::unique_ptr<Connection> connection, std::uint16_t index, StreamOwner& owner);
  ~Stream() override;
  core::Status start();

  void send_frame(const WireHeader& header) { send_frames({&header, 1}); }
  void send_frames(std::span<const WireHeader> headers);
  // Of control frames and segments that the kernel has not taken.
  std::size_t pending_bytes() const { return out_bytes_ - out_written_; }
  // The queue has segments again.
  void wake();
  // Says Goodbye after what is under way, then closes the sending direction. Nothing is pulled any more.
  void finish();
  // Closes the connection at once.
  void close();

  std::uint16_t index() const { return index_; }
  // Precondition: is_open().
  int fd() const { return connection_->fd(); }
  bool is_open() const { return connection_ != nullptr; }
  // The peer has said Goodbye on this stream.
  bool peer_finished() const { return peer_finished_; }
  // The peer's Goodbye and the end of the stream have come: everything it sent is here.
  bool drained() const { return drained_; }
  // Our Goodbye is with the kernel.
  bool finished() const { return finished_; }

  void on_ready(std::uint32_t events) override;

 private:
  struct OutFrame {
    HeaderBytes header;
    OutSegment segment;  // no chunk: a control frame
    std::size_t size() const { return kHeaderBytes + (segment.chunk ? segment.length : 0); }
  };

  void read();
  void read_parts();
  // False when the stream is closed.
  bool take_payload(std::size_t bytes);
  bool parse_staged();
  bool on_header(const WireHeader& header);
  void on_end_of_stream();
  void write();
  void pull_frames();
  void advance(std::size_t written);
  void watch_output(bool on);
  void update_interest();
  void fail(const core::Status& why);

  IoLoop& loop_;
  std::unique_ptr<Connection> connection_;  // null: closed
  const std::uint16_t index_;
  StreamOwner& owner_;
  IoLoop::HandlerId handler_ = 0;
  bool watches_output_ = false;
  bool peer_finished_ = false;
  bool drained_ = false;
  bool finishing_ = false;
  bool finished_ = false;

  // Reading: headers and the start of payloads go through `staged_`; the rest of a payload goes straight to
  // its destination.
  std::array<std::byte, 4096> staged_;
  std::size_t staged_bytes_ = 0;
  bool receiving_ = false;  // inside a payload
  Incoming incoming_;
  std::size_t payload_left_ = 0;

  std::deque<OutFrame> out_;
  std::size_t out_bytes_ = 0;    // in out_
  std::size_t out_written_ = 0;  // of the first frame
  std::vector<OutSegment> pulled_;
};

}  // namespace geocomm::transport
