#include "transport/mux/receive_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

// Operations of which data came and that nobody posted. Credit bounds them, but not those that were
// cancelled.
constexpr std::size_t kMaxUnpostedOps = 1U << 16;

std::uint64_t all_segments(std::uint32_t chunk_bytes) {
  const std::uint32_t count = segment_count(chunk_bytes);
  return count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

bool is_done(const ReceiveOp& op, std::uint32_t chunk) {
  const std::size_t word = chunk / 64;
  return word < op.done.size() && (op.done[word] >> (chunk % 64) & 1) != 0;
}

Status corrupt_operation(const OpKey& key, const std::string& what) {
  return core::corrupt(what, " (group ", std::hex, key.group, std::dec, ", operation ", key.op, ")");
}

}  // namespace

std::shared_ptr<ReceiveOp> ReceiveTable::find_or_create(const WireHeader& header, Status& status,
                                                        bool& announce) {
  const OpKey key{header.group, header.op};
  std::lock_guard lock(mutex_);
  if (const auto found = ops_.find(key); found != ops_.end()) return found->second;
  if (unposted_ops_ >= kMaxUnpostedOps) {
    status =
        corrupt_operation(key, core::str("more than ", kMaxUnpostedOps, " operations that nobody posted"));
    return nullptr;
  }
  auto op = std::make_shared<ReceiveOp>(key);
  op->tombstone = closed_groups_.contains(key.group) || !failure_.is_ok();
  if (op->tombstone) {
    // Known to this segment alone: what a peer sends for groups that have ended must not add up here.
    announce = header.offset == 0;
    return op;
  }
  ops_.emplace(key, op);
  ++unposted_ops_;
  return op;
}

Result<ReceiveTable::Begun> ReceiveTable::begin(const WireHeader& header) {
  GEOCOMM_RETURN_IF_ERROR(check_segment(header));
  Begun begun;
  Status status;
  const std::shared_ptr<ReceiveOp> op = find_or_create(header, status, begun.announce);
  if (!op) return status;

  std::shared_ptr<ReceiveSink> released;  // destroyed after the lock
  std::lock_guard lock(op->mutex);
  if (!op->seen) {
    op->seen = true;
    op->peer_descriptor = header.descriptor;
    op->peer_chunk_count = header.chunk_count;
    check_match(*op, released);
  } else if (op->peer_descriptor != header.descriptor || op->peer_chunk_count != header.chunk_count) {
    return corrupt_operation(
        op->key, core::str("a segment with descriptor ", header.descriptor, " and ", header.chunk_count,
                           " chunks after one with ", op->peer_descriptor, " and ", op->peer_chunk_count));
  }
  if (is_done(*op, header.chunk)) {
    return corrupt_operation(op->key, core::str("chunk ", header.chunk, " came twice"));
  }
  const auto [found, is_new] = op->chunks.try_emplace(header.chunk);
  InChunk& chunk = found->second;
  if (is_new) {
    chunk.bytes = header.chunk_bytes;
    if (!op->tombstone && op->posted) {
      chunk.dest = place(*op, header.chunk, header.chunk_bytes, released);
      chunk.placed = !op->tombstone;
    } else if (!op->tombstone) {
      if (const auto violation = charge(*op, header.chunk_bytes)) return *violation;
      if (header.chunk_bytes > 0) {
        chunk.buffer = pool_.sized(header.chunk_bytes);
        chunk.dest = chunk.buffer.data();
      }
    }
  } else if (chunk.bytes != header.chunk_bytes) {
    return corrupt_operation(op->key, core::str("chunk ", header.chunk, " of ", header.chunk_bytes,
                                                " bytes was announced with ", chunk.bytes));
  }
  const std::uint32_t segment = header.offset / kMaxSegmentBytes;
  const std::uint64_t bit = std::uint64_t{1} << segment;
  if ((chunk.claimed & bit) != 0) {
    return corrupt_operation(
        op->key, core::str("segment at offset ", header.offset, " of chunk ", header.chunk, " came twice"));
  }
  chunk.claimed |= bit;
  begun.incoming = incoming_of(op, header.chunk, segment);
  return begun;
}

// With op->mutex held.
Incoming ReceiveTable::incoming_of(const std::shared_ptr<ReceiveOp>& op, std::uint32_t chunk,
                                   std::uint32_t segment) {
  Incoming incoming;
  incoming.op = op;
  incoming.chunk = chunk;
  incoming.segment = segment;
  const auto found = op->chunks.find(chunk);
  if (found != op->chunks.end() && found->second.dest != nullptr) {
    incoming.dest = found->second.dest + std::size_t{segment} * kMaxSegmentBytes;
    incoming.buffer = found->second.buffer;
    if (found->second.placed) incoming.sink = op->sink;
  }
  return incoming;
}

Result<Incoming> ReceiveTable::begin_again(const std::shared_ptr<ReceiveOp>& op, std::uint32_t chunk,
                                           std::uint32_t segment, const WireHeader& header) {
  GEOCOMM_RETURN_IF_ERROR(check_segment(header));
  std::lock_guard lock(op->mutex);
  const auto found = op->chunks.find(chunk);
  const bool same = op->key == OpKey{header.group, header.op} && header.chunk == chunk &&
                    header.offset == segment * kMaxSegmentBytes && header.descriptor == op->peer_descriptor &&
                    header.chunk_count == op->peer_chunk_count && found != op->chunks.end() &&
                    found->second.bytes == header.chunk_bytes;
  if (!same) {
    return corrupt_operation(
        op->key, core::str("segment ", header.sequence, " came again as another segment (group ", std::hex,
                           header.group, std::dec, ", operation ", header.op, ", chunk ", header.chunk,
                           ", offset ", header.offset, ")"));
  }
  return incoming_of(op, chunk, segment);
}

void ReceiveTable::finish(Incoming incoming) {
  const std::shared_ptr<ReceiveOp> op = std::move(incoming.op);
  std::shared_ptr<ReceiveSink> released = std::move(incoming.sink);
  std::shared_ptr<ReceiveSink> finished;
  bool done = false;
  {
    Lock lock(op->mutex);
    const auto found = op->chunks.find(incoming.chunk);
    if (found == op->chunks.end()) return;
    InChunk& chunk = found->second;
    chunk.arrived |= std::uint64_t{1} << incoming.segment;
    if (chunk.arrived != all_segments(chunk.bytes)) return;
    if (op->tombstone) {
      mark_done(*op, incoming.chunk);
    } else if (op->posted) {
      if (chunk.placed) {
        op->sink->on_chunk(incoming.chunk);
        mark_done(*op, incoming.chunk);
      } else {
        op->buffered.push_back(incoming.chunk);
        deliver_buffered(op, lock, finished);
      }
    } else {
      op->buffered.push_back(incoming.chunk);
    }
    done = complete(*op);
    if (done && !op->tombstone) finished = std::move(op->sink);
  }
  if (done) erase(op);
}

void ReceiveTable::mark_done(ReceiveOp& op, std::uint32_t chunk) {
  const std::size_t word = chunk / 64;
  if (op.done.size() <= word) op.done.resize(word + 1);
  op.done[word] |= std::uint64_t{1} << (chunk % 64);
  ++op.done_count;
  op.chunks.erase(chunk);
}

// Copies complete chunks out of their buffers. The lock is released while copying, since the IO thread may
// wait for it with other chunks of the operation.
void ReceiveTable::deliver_buffered(const std::shared_ptr<ReceiveOp>& op, Lock& lock,
                                    std::shared_ptr<ReceiveSink>& released) {
  while (!op->tombstone && !op->buffered.empty()) {
    const std::uint32_t index = op->buffered.front();
    op->buffered.pop_front();
    const InChunk& chunk = op->chunks.find(index)->second;
    const core::Buffer buffer = chunk.buffer;
    std::shared_ptr<ReceiveSink> sink = op->sink;
    std::byte* const dest = place(*op, index, chunk.bytes, released);
    if (op->tombstone) return;
    if (!buffer.empty() && op->enter()) {
      lock.unlock();
      std::memcpy(dest, buffer.data(), buffer.size());
      op->leave();
      lock.lock();
    }
    if (op->tombstone) {
      released = std::move(sink);
      return;
    }
    sink->on_chunk(index);
    mark_done(*op, index);
  }
}

std::optional<Status> ReceiveTable::charge(ReceiveOp& op, std::uint32_t chunk_bytes) {
  const std::uint64_t charge = unexpected_charge(chunk_bytes);
  std::lock_guard lock(mutex_);
  if (charge > max_unexpected_bytes_ || unexpected_bytes_ > max_unexpected_bytes_ - charge) {
    return corrupt_operation(op.key, core::str("more than ", max_unexpected_bytes_,
                                               " bytes of operations that are not posted here"));
  }
  unexpected_bytes_ += charge;
  op.charged_bytes += charge;
  return std::nullopt;
}

// spec operations 3.1: "A receiver whose own descriptor or chunk_count differs MUST fail the operation"
void ReceiveTable::check_match(ReceiveOp& op, std::shared_ptr<ReceiveSink>& released) {
  if (!op.posted || op.tombstone || !op.seen) return;
  if (op.descriptor == op.peer_descriptor && op.chunk_count == op.peer_chunk_count) return;
  fail_op(op, op.sink->on_mismatch(op.peer_descriptor, op.peer_chunk_count), released);
}

std::byte* ReceiveTable::place(ReceiveOp& op, std::uint32_t chunk, std::uint32_t bytes,
                               std::shared_ptr<ReceiveSink>& released) {
  const Result<std::span<std::byte>> memory = op.sink->place(chunk, bytes);
  if (!memory.is_ok()) {
    fail_op(op, memory.status(), released);
    return nullptr;
  }
  if (memory->size() != bytes) {
    fail_op(op,
            {StatusCode::Internal, core::str("the receiver of chunk ", chunk, " gave ", memory->size(),
                                             " bytes of memory for ", bytes)},
            released);
    return nullptr;
  }
  return memory->data();
}

void ReceiveTable::fail_op(ReceiveOp& op, const Status& why, std::shared_ptr<ReceiveSink>& released) {
  const bool tells = op.sink && !op.tombstone;
  op.end_writing();  // before the sink's owner hears that it is over
  if (tells) op.sink->on_error(why);
  kill(op, released);
}

void ReceiveTable::kill(ReceiveOp& op, std::shared_ptr<ReceiveSink>& released) {
  op.end_writing();
  if (op.sink) released = std::move(op.sink);
  {
    std::lock_guard lock(mutex_);
    unexpected_bytes_ -= std::exchange(op.charged_bytes, 0);
  }
  op.buffered.clear();
  for (auto it = op.chunks.begin(); it != op.chunks.end();) {
    const auto here = it++;
    here->second.dest = nullptr;
    here->second.buffer = core::Buffer();
    if (here->second.arrived == all_segments(here->second.bytes)) mark_done(op, here->first);
  }
}

void ReceiveTable::erase(const std::shared_ptr<ReceiveOp>& op) {
  std::lock_guard lock(mutex_);
  const auto found = ops_.find(op->key);
  if (found == ops_.end() || found->second != op) return;
  if (!op->posted) --unposted_ops_;
  ops_.erase(found);
}

// Why nothing can be received for a key any more, apart from its own cancel(); Ok if that was it.
Status ReceiveTable::why_tombstone(const OpKey& key) {
  std::lock_guard lock(mutex_);
  if (closed_groups_.contains(key.group)) return {StatusCode::Aborted, "the group was closed"};
  return failure_;
}

Status ReceiveTable::post(const OpKey& key, std::uint64_t descriptor, std::uint32_t chunk_count,
                          const std::shared_ptr<ReceiveSink>& sink) {
  if (!sink) return {StatusCode::InvalidArgument, "a posted receive needs a sink"};
  if (chunk_count == 0 || chunk_count > kMaxChunkCount) {
    return {StatusCode::InvalidArgument,
            core::str("a receive of ", chunk_count, " chunks (1 to ", kMaxChunkCount, ")")};
  }
  std::shared_ptr<ReceiveOp> op;
  Status refusal;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = ops_.find(key); found != ops_.end()) op = found->second;
    if (closed_groups_.contains(key.group)) {
      refusal = Status(StatusCode::Aborted, "the group was closed");
    } else if (!failure_.is_ok() && !op) {
      refusal = failure_;  // with data here, it may still be complete (fail() keeps only such)
    } else if (!op) {
      op = std::make_shared<ReceiveOp>(key);
      op->posted = true;
      op->sink = sink;
      op->descriptor = descriptor;
      op->chunk_count = chunk_count;
      ops_.emplace(key, op);
      return Status::ok();
    }
  }
  if (!refusal.is_ok()) {
    sink->on_error(refusal);
    return refusal;
  }

  std::shared_ptr<ReceiveSink> released;
  bool done = false;
  {
    Lock lock(op->mutex);
    if (op->posted || op->tombstone) {
      Status why = op->posted ? Status::ok() : why_tombstone(key);
      lock.unlock();
      if (why.is_ok()) {
        return {StatusCode::InvalidArgument,
                core::str("operation ", key.op, " is already posted, or was cancelled")};
      }
      sink->on_error(why);
      return why;
    }
    op->posted = true;
    op->sink = sink;
    op->descriptor = descriptor;
    op->chunk_count = chunk_count;
    {
      std::lock_guard table_lock(mutex_);
      unexpected_bytes_ -= std::exchange(op->charged_bytes, 0);
      --unposted_ops_;
    }
    check_match(*op, released);
    deliver_buffered(op, lock, released);
    done = complete(*op);
    if (done && !op->tombstone) released = std::move(op->sink);
  }
  if (done) erase(op);
  return Status::ok();
}

bool ReceiveTable::cancel(const OpKey& key) {
  std::shared_ptr<ReceiveOp> op;
  {
    std::lock_guard lock(mutex_);
    const auto found = ops_.find(key);
    if (found == ops_.end()) return false;
    op = found->second;
  }
  std::shared_ptr<ReceiveSink> released;
  bool announce = false;
  bool done = false;
  {
    std::lock_guard lock(op->mutex);
    if (op->tombstone) return false;
    announce = !op->posted;
    kill(*op, released);
    done = complete(*op);
  }
  if (done) erase(op);
  return announce;
}

std::vector<OpKey> ReceiveTable::close_group(std::uint64_t group, const Status& why) {
  std::vector<std::shared_ptr<ReceiveOp>> members;
  {
    std::lock_guard lock(mutex_);
    for (auto at = ops_.lower_bound({group}); at != ops_.end() && at->first.group == group; ++at) {
      members.push_back(at->second);
    }
  }
  std::vector<OpKey> announce;
  for (const auto& op : members) {
    std::shared_ptr<ReceiveSink> released;
    {
      std::lock_guard lock(op->mutex);
      if (!op->tombstone) {
        if (!op->posted) announce.push_back(op->key);
        fail_op(*op, why, released);
      }
    }
    erase(op);
  }
  return announce;
}

std::uint64_t ReceiveTable::unexpected_bytes() const {
  std::lock_guard lock(mutex_);
  return unexpected_bytes_;
}

void ReceiveTable::fail(const Status& why, bool keep_complete) {
  std::vector<std::shared_ptr<ReceiveOp>> all;
  {
    std::lock_guard lock(mutex_);
    if (failure_.is_ok()) failure_ = why;
    for (const auto& [key, op] : ops_) all.push_back(op);
  }
  for (const auto& op : all) {
    std::shared_ptr<ReceiveSink> released;
    {
      std::lock_guard lock(op->mutex);
      const bool whole = op->seen && op->done_count + op->chunks.size() == op->peer_chunk_count &&
                         std::all_of(op->chunks.begin(), op->chunks.end(), [](const auto& entry) {
                           return entry.second.arrived == all_segments(entry.second.bytes);
                         });
      // What was posted and is whole is being delivered by post().
      if (keep_complete && whole && !op->tombstone) continue;
      fail_op(*op, why, released);
    }
    erase(op);
  }
}

}  // namespace geocomm::transport
