// Channel: everything between this process and one peer process. It moves opaque chunks of bytes, each named
// by (group, op, chunk), over P TCP streams: chunks are cut into segments that the streams pull from one
// queue. It outlives its connections: what they lose is sent again over others.
//
// All methods are thread-safe and, unless their name begins with wait_, never block.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/buffer.h"
#include "core/deadline.h"
#include "core/status.h"

namespace geocomm::transport {

// Random, made anew by every process: it names the incarnation, so that a restarted peer is never taken for
// the old one.
using ProcessId = std::array<std::uint8_t, 16>;
// Random, shared by the ranks of a process group through the store: who does not know it is refused.
using JobToken = std::array<std::uint8_t, 16>;

// An operation of a group. `op` is the same number on all its ranks.
struct OpKey {
  std::uint64_t group = 0;
  std::uint64_t op = 0;
  friend auto operator<=>(const OpKey&, const OpKey&) = default;
};

struct OutgoingChunk {
  OpKey key;
  std::uint64_t descriptor = 0;   // compared by the receiver with its own (ReceiveSink::on_mismatch)
  std::uint32_t chunk = 0;        // < chunk_count
  std::uint32_t chunk_count = 1;  // chunks that this process sends to this peer in this operation
  core::Buffer payload;           // at most kMaxChunkBytes; may be empty; shared, must not change any more
  bool write_here = false;        // see Channel::send()
  bool outlives_group = false;    // goes out also if its group is closed meanwhile: it tells the peer why
};

// What becomes of a group's queued chunks when it ends.
enum class QueuedChunks : std::uint8_t {
  Send,  // they go out as ever: the peer may need them
  Drop   // but for those with OutgoingChunk::outlives_group
};

// Takes what a peer sends for one operation. Called from the IO thread (or the one that has its turn: see
// send()), from inside post_receive() for what had come before, or from inside Endpoint::close_group() and
// abort(); never concurrently for one sink. Must
// not block, nor call the channel or the endpoint except Channel::send(). The channel shares ownership until
// the last chunk or an error, so a sink owns (keeps alive) the memory that place() returns. Several chunks
// are filled at the same time, by different threads: their memory must not overlap.
class ReceiveSink {
 public:
  virtual ~ReceiveSink() = default;
  // Where chunk `chunk` of `chunk_bytes` bytes goes: exactly that many bytes, valid until on_chunk() or as
  // long as the sink lives. An error (say, a size that cannot be) fails the operation with that status.
  virtual core::Result<std::span<std::byte>> place(std::uint32_t chunk, std::size_t chunk_bytes) = 0;
  // The chunk is complete in the memory that place() gave.
  virtual void on_chunk(std::uint32_t chunk) = 0;
  // The peer's operation of this key is another one. Makes the status that on_error() then gets.
  virtual core::Status on_mismatch(std::uint64_t descriptor, std::uint32_t chunk_count) = 0;
  // At most once, and nothing after it.
  virtual void on_error(const core::Status& status) = 0;
};

struct ChannelStats {
  std::uint64_t bytes_sent = 0;  // wire: headers and payload, not TCP/IP
  std::uint64_t bytes_received = 0;
  std::uint64_t payload_sent = 0;
  std::uint64_t payload_received = 0;
  std::uint64_t retransmitted_segments = 0;  // TCP's count, all streams
  std::uint64_t resumes = 0;                 // connections that took the place of others
  std::uint64_t outages = 0;                 // times that connections were lost and all are there again
  std::uint64_t outage_us = 0;         // from the last contact to the last connection, summed over these
  std::uint64_t resent_segments = 0;   // ours (up to 256 KiB), since a connection was lost or slow
  std::uint64_t acks = 0;              // frames received
  std::uint64_t early_bytes_held = 0;  // received now, of operations that nobody has posted here
  std::uint64_t early_bytes_sent = 0;  // of the peer's credit for such, what is taken now
  std::uint64_t rtt_us = 0;            // last heartbeat; TCP's estimate until then
  std::uint32_t streams = 0;           // data streams that are connected now
  std::string congestion_control;      // "bbr", "cubic", ...
  // Time in which TCP had data and held it back, all streams together: for the receiver's window, and for
  // room in its own send buffer.
  std::uint64_t stalled_by_receiver_us = 0;
  std::uint64_t stalled_by_send_buffer_us = 0;
  std::string cipher;     // of TLS 1.3; empty: plaintext
  std::string transport;  // of the data: "tcp", "rdma (rc_mlx5)", which cipher does not cover
};

class Channel {
 public:
  virtual ~Channel() = default;

  // Ok once connected, the reason once failed, Timeout at the deadline.
  virtual core::Status wait_ready(core::Deadline deadline) = 0;
  // Queues a chunk (also before the channel is connected). Segments of operations that the peer has posted go
  // out in the order of ready_chunks.h: small operations before bulk, groups by turns. Of operations that it
  // has not posted yet, at most EndpointOptions::max_unexpected_bytes go out, and those that wait for it
  // never hold up the others. `on_sent` (may be null) runs once, on the IO thread, when the kernel has taken
  // the whole chunk, or when it was cancelled or the channel failed (also after the caller has forgotten it);
  // it must not block. It does not run if send() itself fails: InvalidArgument, Aborted (closed group, shut
  // down), or why the channel failed. With OutgoingChunk::write_here, the calling thread does the IO thread's
  // work if that one sleeps, which spares small messages the time of waking it: it writes what the sockets
  // take, and runs the callbacks and the sinks' on_error() that are due. Not from inside a sink, nor with a
  // lock held that any of those takes.
  virtual core::Status send(OutgoingChunk chunk,
                            std::function<void(const core::Status&)> on_sent = nullptr) = 0;
  // From now on the `chunk_count` (at least 1) chunks that the peer sends for `key` go to `sink`. One sink
  // per key at a time, and none again after cancel() (InvalidArgument otherwise, without on_error()). If the
  // channel has failed or the group is closed, the sink gets on_error() and the call returns the reason. From
  // a peer that has left in good order, what it had sent before can still be received.
  virtual core::Status post_receive(OpKey key, std::uint64_t descriptor, std::uint32_t chunk_count,
                                    std::shared_ptr<ReceiveSink> sink) = 0;
  // Forgets a posted receive, unexpected data, and what is queued to be sent for `key`; its sink gets no
  // further calls once this returns (memory from place() may still be written to until the channel lets go of
  // the sink). Later segments of it are discarded.
  virtual void cancel(OpKey key) = 0;
  // What the link is known to carry for this channel, in either direction. More
  // streams are opened where it needs more, and none where EndpointOptions::streams says how many. Best told
  // to both ends.
  virtual void expect_rate(double bytes_per_sec) = 0;
  // Ok while connecting or connected; the reason once failed or closed.
  virtual core::Status status() const = 0;
  virtual ChannelStats stats() const = 0;
  virtual const std::string& peer() const = 0;  // description, for messages
};

}  // namespace geocomm::transport
