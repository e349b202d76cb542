#include "transport/mux/send_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/str.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

using core::Status;
using core::StatusCode;

namespace {
// Granted operations for which nothing was sent yet; a peer is not that far ahead.
constexpr std::size_t kMaxGrantedOnly = 1U << 18;
constexpr std::chrono::milliseconds kLeastPatience{20};
constexpr std::chrono::milliseconds kStalled{1000};
}  // namespace

WireHeader segment_header(const OutSegment& segment) {
  const OutgoingChunk& chunk = segment.chunk->chunk;
  WireHeader header = make_header(PacketType::Segment);
  header.sequence = segment.number;
  header.group = chunk.key.group;
  header.op = chunk.key.op;
  header.descriptor = chunk.descriptor;
  header.chunk = chunk.chunk;
  header.chunk_count = chunk.chunk_count;
  header.chunk_bytes = static_cast<std::uint32_t>(chunk.payload.size());
  header.offset = segment.offset;
  header.length = segment.length;
  return header;
}

Status SendQueue::push(OutgoingChunk chunk, SentCallback on_sent) {
  if (chunk.payload.size() > kMaxChunkBytes) {
    return {StatusCode::InvalidArgument,
            core::str("chunk of ", chunk.payload.size(), " bytes, at most ", kMaxChunkBytes)};
  }
  if (chunk.chunk_count == 0 || chunk.chunk_count > kMaxChunkCount || chunk.chunk >= chunk.chunk_count) {
    return {StatusCode::InvalidArgument, core::str("chunk ", chunk.chunk, " of ", chunk.chunk_count,
                                                   " (at most ", kMaxChunkCount, " chunks)")};
  }
  std::lock_guard lock(mutex_);
  if (!refusal_.is_ok()) return refusal_;
  if (closed_groups_.contains(chunk.key.group)) return {StatusCode::Aborted, "the group was closed"};
  OutOp& op = ops_[chunk.key];
  op.outlives_group |= chunk.outlives_group;
  if (op.chunk_count == 0) {
    if (op.granted) --granted_only_;
    op.chunk_count = chunk.chunk_count;
    op.descriptor = chunk.descriptor;
  } else if (op.chunk_count != chunk.chunk_count || op.descriptor != chunk.descriptor) {
    return {
        StatusCode::InvalidArgument,
        core::str("chunk of operation ", chunk.key.op, " with ", chunk.chunk_count, " chunks, descriptor ",
                  chunk.descriptor, "; its first chunk had ", op.chunk_count, ", ", op.descriptor)};
  }
  auto queued = std::make_shared<OutChunk>();
  queued->chunk = std::move(chunk);
  queued->on_sent = std::move(on_sent);
  queued->order = next_order_++;
  queued->unsent_segments = queued->unacked_segments = segment_count(queued->bytes());
  // Where memory runs out, no place has the chunk that another one lacks.
  Chunks node;
  node.emplace(ChunkId{queued->chunk.key, queued->order}, queued);
  if (op.granted) {
    make_ready(queued);
  } else {
    waiting_.add(queued);
  }
  const auto at = chunks_.insert(node.extract(node.begin())).position;
  try {
    admit_waiting();
  } catch (...) {
    leave_place(*queued);
    chunks_.erase(at);
    throw;
  }
  return Status::ok();
}

void SendQueue::set_peer_limit(std::uint64_t max_unexpected_bytes) {
  std::lock_guard lock(mutex_);
  limit_bytes_ = max_unexpected_bytes;
  admit_waiting();
}

Status SendQueue::granted(const OpKey& key) {
  std::lock_guard lock(mutex_);
  const auto found = ops_.find(key);
  if (found == ops_.end()) {
    if (closed_groups_.contains(key.group)) return Status::ok();
    if (granted_only_ >= kMaxGrantedOnly) {
      return core::corrupt("more than ", kMaxGrantedOnly, " operations granted in advance");
    }
    ops_[key].granted = true;
    ++granted_only_;
    return Status::ok();
  }
  OutOp& op = found->second;
  charged_bytes_ -= std::exchange(op.charged_bytes, 0);
  op.granted = true;
  for (auto at = chunks_.lower_bound({key}); at != chunks_.end() && at->first.op == key; ++at) {
    if (at->second->place != ChunkPlace::Waiting) continue;
    make_ready(at->second);
    waiting_.remove(*at->second);
  }
  if (op.chunks_sent == op.chunk_count || op.cancelled) forget(key);
  admit_waiting();
  return Status::ok();
}

void SendQueue::admit_waiting() {
  while (!waiting_.empty()) {
    const OutChunkPtr chunk = waiting_.next();
    const std::uint64_t charge = unexpected_charge(chunk->bytes());
    // spec channel 7.1: "Charges outstanding MUST NOT exceed the receiver's max_unexpected_bytes."
    if (charge > limit_bytes_ || charged_bytes_ > limit_bytes_ - charge) return;
    make_ready(chunk);
    waiting_.took(chunk->bytes(), true);
    charged_bytes_ += charge;
    ops_[chunk->chunk.key].charged_bytes += charge;
    chunk->charged = true;
  }
}

void SendQueue::make_ready(const OutChunkPtr& chunk) {
  ready_.add(chunk);
  chunk->place = ChunkPlace::Ready;
}

void SendQueue::leave_place(const OutChunk& chunk) {
  if (chunk.place == ChunkPlace::Waiting) waiting_.remove(chunk);
  if (chunk.place == ChunkPlace::Ready) ready_.remove(chunk);
}

std::size_t SendQueue::pull(const Carrier& carrier, std::size_t max_bytes, std::size_t max_segments,
                            Clock::time_point now, std::vector<OutSegment>& out) {
  std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  std::size_t count = 0;
  for (; count < max_segments && unacked_.has_lost(); ++count) {
    if (count > 0 && bytes + kMaxSegmentBytes > max_bytes) return count;
    out.push_back(unacked_.resend(carrier, now));
    bytes += out.back().length;
  }
  const std::size_t resent = count;
  for (; count < max_segments && !ready_.empty() && unacked_.has_room(); ++count) {
    const OutChunkPtr chunk = ready_.next();
    const std::uint32_t length = segment_length(chunk->bytes(), chunk->next_offset);
    if (count > 0 && bytes + length > max_bytes) break;
    out.push_back({0, chunk, chunk->next_offset, length});
    unacked_.add(out.back(), carrier, now);
    handed_bytes_ += length;
    bytes += length;
    chunk->started = true;
    chunk->next_offset += length;
    const bool all = chunk->next_offset == chunk->bytes();
    ready_.took(length, all);
    if (all) chunk->place = ChunkPlace::InFlight;
  }
  return resent;
}

// A segment that takes longer than this is slow.
SendQueue::Clock::duration SendQueue::patience() const {
  return 2 * usual_time_ + kLeastPatience;
}

const OutSegment* SendQueue::find_slow(Clock::time_point now, const Carrier* carrier) {
  if (!ready_.empty() || unacked_.has_lost() || unacked_.empty()) return nullptr;
  const OutSegment* slow = unacked_.find_slow(now - patience(), carrier);
  if (slow == nullptr || 50 * (hedged_bytes_ + slow->length) <= handed_bytes_) return slow;
  return unacked_.find_slow(now - std::max<Clock::duration>(kStalled, 4 * patience()), carrier);
}

bool SendQueue::pull_slow(const Carrier& carrier, Clock::time_point now, std::vector<OutSegment>& out) {
  std::lock_guard lock(mutex_);
  const OutSegment* const slow = find_slow(now, &carrier);
  if (slow == nullptr) return false;
  hedged_bytes_ += slow->length;
  out.push_back(unacked_.hedge(slow->number, carrier));
  return true;
}

bool SendQueue::has_slow(Clock::time_point now) {
  std::lock_guard lock(mutex_);
  return find_slow(now, nullptr) != nullptr;
}

std::optional<SendQueue::Clock::duration> SendQueue::slow_after() const {
  std::lock_guard lock(mutex_);
  if (!ready_.empty() || unacked_.empty()) return std::nullopt;
  return patience() / 2;
}

SentCallback SendQueue::segment_sent(const OutSegment& segment) {
  std::lock_guard lock(mutex_);
  return unacked_.mark_written(segment.number) ? count_written(*segment.chunk) : nullptr;
}

SentCallback SendQueue::count_written(OutChunk& chunk) {
  if (chunk.place == ChunkPlace::Dropped || --chunk.unsent_segments > 0) return nullptr;
  if (const auto op = ops_.find(chunk.chunk.key); op != ops_.end()) {
    if (++op->second.chunks_sent == op->second.chunk_count && op->second.granted) forget(chunk.chunk.key);
  }
  return std::move(chunk.on_sent);
}

Status SendQueue::acknowledge(const AckPacket& ack, Clock::time_point now,
                              std::vector<SentCallback>& callbacks, std::uint64_t& acked_bytes) {
  std::vector<UnackedSegments::Acked> freed;  // destroyed after the lock: the last owners of their bytes
  std::lock_guard lock(mutex_);
  GEOCOMM_RETURN_IF_ERROR(unacked_.acknowledge(ack, freed));
  for (const UnackedSegments::Acked& acked : freed) {
    OutChunk& chunk = *acked.segment.chunk;
    if (acked.first_copy) {
      const auto time = now - acked.handed;
      usual_time_ += (time - usual_time_) / (usual_time_ == Clock::duration{} ? 1 : 8);
    }
    acked_bytes += acked.segment.length;
    if (!acked.was_written) {
      if (SentCallback callback = count_written(chunk)) callbacks.push_back(std::move(callback));
    }
    if (--chunk.unacked_segments == 0) chunks_.erase({chunk.chunk.key, chunk.order});
  }
  return Status::ok();
}

void SendQueue::lose(const Carrier& carrier) {
  std::lock_guard lock(mutex_);
  unacked_.lose(carrier);
}

bool SendQueue::has_ready() const {
  std::lock_guard lock(mutex_);
  return unacked_.has_lost() || (!ready_.empty() && unacked_.has_room());
}

std::uint64_t SendQueue::charged_bytes() const {
  std::lock_guard lock(mutex_);
  return charged_bytes_;
}

bool SendQueue::empty() const {
  std::lock_guard lock(mutex_);
  return ready_.empty() && waiting_.empty() && unacked_.empty();
}

SendQueue::Chunks::iterator SendQueue::drop(Chunks::iterator which, Dropped& dropped) {
  dropped.callbacks.emplace_back();  // memory first: what throws later would leave half of a chunk
  OutChunk& chunk = *dropped.chunks.emplace_back(std::move(which->second));
  leave_place(chunk);
  chunk.place = ChunkPlace::Dropped;
  // The peer has seen nothing of it, so that it holds no memory for it.
  if (chunk.charged && !chunk.started) {
    if (const auto op = ops_.find(chunk.chunk.key); op != ops_.end() && op->second.charged_bytes > 0) {
      const std::uint64_t charge = unexpected_charge(chunk.bytes());
      op->second.charged_bytes -= charge;
      charged_bytes_ -= charge;
    }
  }
  if (chunk.on_sent) {
    dropped.callbacks.back() = std::move(chunk.on_sent);
  } else {
    dropped.callbacks.pop_back();
  }
  return chunks_.erase(which);
}

void SendQueue::forget(const OpKey& key) {
  const auto op = ops_.find(key);
  if (op == ops_.end()) return;
  if (op->second.granted && op->second.chunk_count == 0) --granted_only_;
  ops_.erase(op);
}

std::vector<SentCallback> SendQueue::cancel(const OpKey& key) {
  Dropped dropped;
  std::lock_guard lock(mutex_);
  auto at = chunks_.lower_bound({key});
  while (at != chunks_.end() && at->first.op == key) at = drop(at, dropped);
  // What the peer holds unexpected stays charged until it says that it let go of it (Grant).
  if (const auto op = ops_.find(key); op != ops_.end()) {
    op->second.cancelled = true;
    if (op->second.charged_bytes == 0) forget(key);
  }
  admit_waiting();
  return std::move(dropped.callbacks);
}

std::vector<SentCallback> SendQueue::close_group(std::uint64_t group, QueuedChunks queued) {
  Dropped dropped;
  std::lock_guard lock(mutex_);
  const bool drops = queued == QueuedChunks::Drop;
  auto at = drops ? chunks_.lower_bound({{group}}) : chunks_.end();
  while (at != chunks_.end() && at->first.op.group == group) {
    at = at->second->chunk.outlives_group ? std::next(at) : drop(at, dropped);
  }
  for (auto op = ops_.lower_bound({group}); op != ops_.end() && op->first.group == group;) {
    const auto here = op++;
    if (here->second.outlives_group) continue;
    // What was granted and never sent is not sent any more.
    const bool unused = here->second.chunk_count == 0;
    here->second.cancelled |= drops;
    if (unused || (drops && here->second.charged_bytes == 0)) forget(OpKey(here->first));
  }
  admit_waiting();
  return std::move(dropped.callbacks);
}

std::vector<SentCallback> SendQueue::drop_waiting() {
  Dropped dropped;
  std::lock_guard lock(mutex_);
  for (auto at = chunks_.begin(); at != chunks_.end();) {
    at = at->second->place == ChunkPlace::Waiting ? drop(at, dropped) : std::next(at);
  }
  return std::move(dropped.callbacks);
}

std::vector<SentCallback> SendQueue::drop_all() {
  Dropped dropped;
  std::lock_guard lock(mutex_);
  for (auto at = chunks_.begin(); at != chunks_.end();) at = drop(at, dropped);
  unacked_.clear();
  ops_.clear();
  granted_only_ = 0;
  charged_bytes_ = 0;
  return std::move(dropped.callbacks);
}

void SendQueue::refuse(const Status& why) {
  std::lock_guard lock(mutex_);
  if (refusal_.is_ok()) refusal_ = why;
}

}  // namespace geocomm::transport
