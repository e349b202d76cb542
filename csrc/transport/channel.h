// Channel: everything between this process and one peer process. It moves opaque chunks of bytes, each named
// by (group, op, chunk), over P TCP streams: chunks are cut into segments that the streams pull from one
// queue. It outlives its connections: what they lose is sent again over others.
//
// All methods are thread-safe and, unless their name begins with wait_, never block.
//
// Threads. "The IO thread" is whoever has the loop's turn: the IO thread itself, or, while that one sleeps, a
// thread inside send() with OutgoingChunk::write_here. What a user gives runs
//
//   on_sent of send()    on the IO thread, with no lock
//   a ReceiveSink        on the IO thread as data comes; inside post_receive() for what had come before;
//                        inside Endpoint::close_group(), forget() and abort() for the end. Always under the
//                        lock of its operation, so that its calls exclude each other: it must not call what
//                        takes such a lock (post_receive(), cancel(), the endpoint), but may call send()
//
// Where TLS has much to encrypt or decrypt, a thread of EndpointOptions::tls_threads calls OpenSSL and the
// kernel for a stream (Stream's turns). It takes no lock, calls nothing of the above, and touches only that
// connection and the memory of that turn, which the IO thread leaves alone until then.
//
// Locks, each taken only under those above it:
//
//   IoLoop::turn_         held while the IO thread works: guards all that is "the IO thread's"
//   ReceiveOp::mutex      an operation that is received
//   ReceiveTable::mutex_  which of them there are, and the credit of those that came early
//   SendQueue::mutex_     all that is sent
//   ClosedGroups::mutex_  looked at under the two above
//   StreamSet::mutex_     which connections there are, for the statistics
//   IoLoop::mutex_ (tasks), and those of ControlLog, LinkStatus, LinkHealth and PeerName: nothing under these
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/deadline.h"
#include "core/status.h"
#include "transport/link/channel_stats.h"
#include "transport/mux/chunks.h"
#include "transport/wire/ids.h"

namespace geocomm::transport {

class Channel {
 public:
  virtual ~Channel() = default;

  // Ok once connected, the reason once failed, Timeout at the deadline.
  virtual core::Status wait_ready(core::Deadline deadline) = 0;
  // Queues a chunk (also before the channel is connected). Segments of operations that the peer has posted go
  // out in the order of ready_chunks.h: small operations before bulk, groups by turns. Of operations that it
  // has not posted yet, at most EndpointOptions::max_unexpected_bytes go out, and those that wait for it
  // never hold up the others. `on_sent` (may be null) runs once, on the IO thread, when the kernel (or TLS)
  // has taken the whole chunk, or when it was cancelled or the channel failed (also after the caller has
  // forgotten it); it must not block. It does not run if send() itself fails: InvalidArgument, Aborted
  // (closed group, shut down), or why the channel failed. With OutgoingChunk::write_here, the calling thread
  // does the IO thread's work if that one sleeps, which spares small messages the time of waking it: it
  // writes what the sockets take, and runs the callbacks and the sinks' on_error() that are due. Not from
  // inside a sink, nor with a lock held that any of those takes.
  virtual core::Status send(OutgoingChunk chunk,
                            std::function<void(const core::Status&)> on_sent = nullptr) = 0;
  // From now on the `chunk_count` (at least 1) chunks that the peer sends for `key` go to `sink`. One sink
  // per key at a time, and none again after cancel() (InvalidArgument otherwise, without on_error()). If the
  // channel has failed or the group is closed, the sink gets on_error() and the call returns the reason. From
  // a peer that has left in good order, what it had sent before can still be received.
  virtual core::Status post_receive(OpKey key, std::uint64_t descriptor, std::uint32_t chunk_count,
                                    std::shared_ptr<ReceiveSink> sink) = 0;
  // Forgets a posted receive, unexpected data, and what is queued to be sent for `key`; its sink gets no
  // further calls once this returns, and memory from place() is no longer written to (it waits for a call
  // that does; an RDMA device cannot be called back, and may write until the channel lets go of the sink).
  // Later segments of it are discarded.
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
