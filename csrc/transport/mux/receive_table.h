// What a channel receives: for each operation, which of its chunks and segments are there, and where they go.
//
// A chunk of a posted operation is received into the memory of its sink, any other one into a buffer of the
// pool, whence it is copied when the operation is posted. An operation that was cancelled or failed stays
// known until its last chunk or the end of its group, so that what still comes of it can be thrown away. Of a
// group that has ended nothing is known but that, and all that comes for it is thrown away.
//
// Thread-safe: begin(), begin_again() and finish() are the IO thread's; everything else may be called by any
// thread. Lock order: ReceiveOp::mutex (held during calls to the sink, so that they exclude each other),
// then the table's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/buffer.h"
#include "core/status.h"
#include "transport/mux/chunks.h"
#include "transport/mux/closed_groups.h"
#include "transport/wire/ids.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

struct InChunk {
  std::uint32_t bytes = 0;
  std::uint64_t claimed = 0;  // bit per segment: its header came
  std::uint64_t arrived = 0;  // its payload came too
  std::byte* dest = nullptr;  // null: thrown away
  core::Buffer buffer;        // behind dest, unless that is the sink's
  bool placed = false;        // the sink gave dest
};

struct ReceiveOp {
  explicit ReceiveOp(OpKey op_key) : key(op_key) {}

  // Any thread. Whether it may write to the memory of the operation's chunks, until it leaves: not once the
  // operation was cancelled or has failed, and who ends it waits for those that are inside. Neither waits nor
  // takes op.mutex in between.
  bool enter() {
    writers.fetch_add(1);
    if (!tombstone) return true;
    leave();
    return false;
  }
  void leave() {
    if (writers.fetch_sub(1) == 1) writers.notify_all();
  }
  // Once this returns, nobody writes to the memory any more.
  void end_writing() {
    tombstone = true;
    for (std::uint32_t inside = writers; inside > 0; inside = writers) writers.wait(inside);
  }

  const OpKey key;
  std::atomic<bool> tombstone{false};  // cancelled or failed: what comes is thrown away
  std::atomic<std::uint32_t> writers{0};
  std::mutex mutex;  // guards all below
  std::shared_ptr<ReceiveSink> sink;
  bool posted = false;
  std::uint64_t descriptor = 0;  // ours, if posted
  std::uint32_t chunk_count = 0;
  bool seen = false;  // a segment came
  std::uint64_t peer_descriptor = 0;
  std::uint32_t peer_chunk_count = 0;
  std::unordered_map<std::uint32_t, InChunk> chunks;  // begun and not delivered
  std::deque<std::uint32_t> buffered;                 // of those, the ones that are whole in their buffers
  std::vector<std::uint64_t> done;                    // bit per delivered (or thrown away) chunk
  std::uint32_t done_count = 0;
  std::uint64_t charged_bytes = 0;  // of the credit, while not posted
};

// A segment whose payload is being received.
struct Incoming {
  std::shared_ptr<ReceiveOp> op;  // null: a copy of a segment that is here already
  std::uint32_t chunk = 0;
  std::uint32_t segment = 0;
  std::byte* dest = nullptr;          // null: thrown away
  std::shared_ptr<ReceiveSink> sink;  // keep the memory behind dest
  core::Buffer buffer;
};

class ReceiveTable {
 public:
  // `max_unexpected_bytes`: as this process told the peer.
  ReceiveTable(std::uint64_t max_unexpected_bytes, core::BufferPool& pool, const ClosedGroups& closed_groups)
      : max_unexpected_bytes_(max_unexpected_bytes), pool_(pool), closed_groups_(closed_groups) {}

  struct Begun {
    Incoming incoming;
    // The operation's group is closed: tell the peer (Grant) that its data takes no memory here. Once for
    // each chunk, since nothing is kept of what was told before.
    bool announce = false;
  };
  // A header of type Segment came. CorruptData if the peer broke the protocol; trouble with a sink fails
  // only its operation.
  core::Result<Begun> begin(const WireHeader& header);
  // The header of another copy of a segment that has begun (see there) and is not finished came: into the
  // same memory. CorruptData if it is of another segment.
  core::Result<Incoming> begin_again(const std::shared_ptr<ReceiveOp>& op, std::uint32_t chunk,
                                     std::uint32_t segment, const WireHeader& header);
  // All bytes of the segment are in place. Once for each segment.
  void finish(Incoming incoming);

  // Channel::post_receive(). On Ok the peer is to be told (Grant).
  core::Status post(const OpKey& key, std::uint64_t descriptor, std::uint32_t chunk_count,
                    const std::shared_ptr<ReceiveSink>& sink);
  // Channel::cancel(). True if the peer is to be told (Grant): unexpected data was dropped.
  bool cancel(const OpKey& key);
  // The posted operations of the group, which is among the closed ones already, get `why`, and all are
  // forgotten. Returns what the peer is to be told of.
  std::vector<OpKey> close_group(std::uint64_t group, const core::Status& why);
  // All posted operations get `why`, and so do later ones. With `keep_complete`, an operation whose data was
  // all here before can still be posted.
  void fail(const core::Status& why, bool keep_complete);
  // Of operations that were not posted: what is here now, as the credit counts it.
  std::uint64_t unexpected_bytes() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  std::shared_ptr<ReceiveOp> find_or_create(const WireHeader& header, core::Status& status, bool& announce);
  std::optional<core::Status> charge(ReceiveOp& op, std::uint32_t chunk_bytes);
  Incoming incoming_of(const std::shared_ptr<ReceiveOp>& op, std::uint32_t chunk, std::uint32_t segment);
  // These hold op.mutex, and leave in `released` what must be destroyed after it is unlocked.
  void check_match(ReceiveOp& op, std::shared_ptr<ReceiveSink>& released);
  std::byte* place(ReceiveOp& op, std::uint32_t chunk, std::uint32_t bytes,
                   std::shared_ptr<ReceiveSink>& released);
  void fail_op(ReceiveOp& op, const core::Status& why, std::shared_ptr<ReceiveSink>& released);
  void kill(ReceiveOp& op, std::shared_ptr<ReceiveSink>& released);
  void mark_done(ReceiveOp& op, std::uint32_t chunk);
  void deliver_buffered(const std::shared_ptr<ReceiveOp>& op, Lock& lock,
                        std::shared_ptr<ReceiveSink>& released);
  bool complete(const ReceiveOp& op) const { return op.seen && op.done_count == op.peer_chunk_count; }
  void erase(const std::shared_ptr<ReceiveOp>& op);
  core::Status why_tombstone(const OpKey& key);

  const std::uint64_t max_unexpected_bytes_;
  core::BufferPool& pool_;
  const ClosedGroups& closed_groups_;

  mutable std::mutex mutex_;                         // guards all below
  std::map<OpKey, std::shared_ptr<ReceiveOp>> ops_;  // a group that closes looks at its own alone
  std::size_t unposted_ops_ = 0;                     // of ops_: those that were never posted
  std::uint64_t unexpected_bytes_ = 0;
  core::Status failure_;
};

}  // namespace geocomm::transport
