// What a channel has to send: chunks, handed out to the streams segment by segment in the order of
// ready_chunks.h, and kept until the peer has acknowledged them.
//
// A chunk is ready (may go out), waiting (its operation is not granted by the peer and there is no credit for
// it), or in flight (all its segments are handed out, not all acknowledged). Credit: the chunks of operations
// that the peer has not granted yet may together take as many bytes as the peer said in its Hello
// (max_unexpected_bytes); a chunk is charged when it becomes ready and the charge of an operation returns
// when the peer grants it, or says (also with Grant) that it has thrown its data away.
//
// What an operation or a group costs to grant, cancel or close follows its own chunks, however many of others
// are under way.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "core/status.h"
#include "transport/mux/chunks.h"
#include "transport/mux/closed_groups.h"
#include "transport/mux/ready_chunks.h"
#include "transport/mux/unacked_segments.h"
#include "transport/wire/ids.h"

namespace geocomm::transport {

// The header under which a segment travels.
WireHeader segment_header(const OutSegment& segment);

// Thread-safe; calls no callback: it returns those that are due, and the caller runs them on the IO thread.
class SendQueue {
 public:
  using Clock = UnackedSegments::Clock;

  explicit SendQueue(const ClosedGroups& closed_groups) : closed_groups_(closed_groups) {}

  // InvalidArgument (sizes, or not the descriptor and chunk_count of the operation's other chunks), Aborted
  // (closed group), or what refuse() said.
  core::Status push(OutgoingChunk chunk, SentCallback on_sent);

  // The peer's limit; until it is known, chunks wait.
  void set_peer_limit(std::uint64_t max_unexpected_bytes);
  // The peer has granted `key`. CorruptData if it grants absurdly many operations that nobody sends.
  core::Status granted(const OpKey& key);

  // Adds the next segments to `out`, those that were lost first: at least one if any is ready, then more up
  // to `max_bytes` and `max_segments`. Returns how many of them had gone out before.
  std::size_t pull(const Carrier& carrier, std::size_t max_bytes, std::size_t max_segments,
                   Clock::time_point now, std::vector<OutSegment>& out);
  // With nothing else to send, adds a segment that another stream has had for much longer than segments take,
  // so that a slow or silent stream holds up nobody: at most 2 % of all bytes go out twice for this, but for
  // segments that have been under way for a second and more.
  bool pull_slow(const Carrier& carrier, Clock::time_point now, std::vector<OutSegment>& out);
  bool has_slow(Clock::time_point now);
  // When to look again; nothing if there is nothing to look for.
  std::optional<Clock::duration> slow_after() const;
  // A segment is written: the callback of its chunk if that was the last one (null otherwise).
  SentCallback segment_sent(const OutSegment& segment);
  // The peer has segments: adds the callbacks of chunks that were not known to be written, and their bytes to
  // `acked_bytes`. CorruptData for segments that were never sent.
  core::Status acknowledge(const AckPacket& ack, Clock::time_point now, std::vector<SentCallback>& callbacks,
                           std::uint64_t& acked_bytes);
  // The connection is gone: what it carried and the peer has not acknowledged goes out again.
  void lose(const Carrier& carrier);
  bool has_ready() const;
  // Everything was acknowledged.
  bool empty() const;
  // Of the peer's limit, what chunks take that it has not granted.
  std::uint64_t charged_bytes() const;

  // Each takes chunks out and returns their callbacks.
  std::vector<SentCallback> cancel(const OpKey& key);
  // Endpoint::close_group(); the group is among the closed ones already.
  std::vector<SentCallback> close_group(std::uint64_t group, QueuedChunks queued);
  std::vector<SentCallback> drop_waiting();
  std::vector<SentCallback> drop_all();
  // From now on push() returns `why` (the first one counts).
  void refuse(const core::Status& why);

 private:
  struct OutOp {
    bool granted = false;
    bool cancelled = false;       // kept only for its charge
    bool outlives_group = false;  // as OutgoingChunk::outlives_group
    std::uint32_t chunks_sent = 0;
    std::uint32_t chunk_count = 0;  // 0: no chunk pushed yet
    std::uint64_t descriptor = 0;
    std::uint64_t charged_bytes = 0;
  };

  struct ChunkId {
    OpKey op;
    std::uint64_t order = 0;  // OutChunk::order
    friend auto operator<=>(const ChunkId&, const ChunkId&) = default;
  };
  using Chunks = std::map<ChunkId, OutChunkPtr>;
  // Declared before the lock, so that the last owner of a chunk's bytes lets go of them after it.
  struct Dropped {
    std::vector<OutChunkPtr> chunks;
    std::vector<SentCallback> callbacks;
  };

  // All with mutex_ held.
  void admit_waiting();
  void make_ready(const OutChunkPtr& chunk);
  // Takes it out of where its place says that it is.
  void leave_place(const OutChunk& chunk);
  // Returns the one behind it.
  Chunks::iterator drop(Chunks::iterator which, Dropped& dropped);
  void forget(const OpKey& key);
  SentCallback count_written(OutChunk& chunk);
  const OutSegment* find_slow(Clock::time_point now, const Carrier* carrier);
  Clock::duration patience() const;

  const ClosedGroups& closed_groups_;

  mutable std::mutex mutex_;  // guards all below
  ReadyChunks ready_;
  ReadyChunks waiting_;
  Chunks chunks_;  // all that are not acknowledged or dropped
  UnackedSegments unacked_;
  Clock::duration usual_time_{};    // from a stream to its acknowledgement; 0: not known yet
  std::uint64_t handed_bytes_ = 0;  // in all
  std::uint64_t hedged_bytes_ = 0;  // of slow segments
  std::map<OpKey, OutOp> ops_;
  std::size_t granted_only_ = 0;  // operations that the peer granted and nobody sends (yet)
  std::uint64_t next_order_ = 0;
  std::uint64_t charged_bytes_ = 0;
  std::uint64_t limit_bytes_ = 0;
  core::Status refusal_;
};

}  // namespace geocomm::transport
