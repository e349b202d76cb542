#include "transport/mux/ready_chunks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "transport/wire/wire.h"

namespace geocomm::transport {

namespace {

// What a group may send before the next one: a whole segment, so that each time something moves.
constexpr std::uint64_t kQuantumBytes = kHeaderBytes + kMaxSegmentBytes;

// Headers count, so that empty chunks are not free.
std::uint64_t cost_of(std::uint32_t bytes) {
  return kHeaderBytes + bytes;
}

// The chunks of an operation are about as large as each other. A smaller last one may pass for small, which
// does no harm.
bool is_small(const OutChunk& chunk) {
  return chunk.chunk.chunk_count * cost_of(chunk.bytes()) <= kMostSmallBytes;
}

}  // namespace

void ReadyChunks::RoundRobin::add(OutChunkPtr chunk) {
  const std::uint64_t group = chunk->chunk.key.group;
  const auto [flow, is_new] = flows_.try_emplace(group);
  try {
    flow->second.chunks.emplace(chunk->order, std::move(chunk));
    if (is_new) groups_.push_back(group);
  } catch (...) {
    if (is_new) flows_.erase(flow);
    throw;
  }
}

const OutChunkPtr& ReadyChunks::RoundRobin::next() {
  for (;;) {
    Flow& flow = flows_.at(groups_.front());
    const OutChunkPtr& chunk = flow.chunks.begin()->second;
    if (flow.allowance >= cost_of(segment_length(chunk->bytes(), chunk->next_offset))) return chunk;
    flow.allowance += kQuantumBytes;
    groups_.push_back(groups_.front());
    groups_.pop_front();
  }
}

void ReadyChunks::RoundRobin::took(std::uint64_t cost, bool all) {
  const auto flow = flows_.find(groups_.front());
  flow->second.allowance -= std::min(flow->second.allowance, cost);
  if (!all) return;
  auto& chunks = flow->second.chunks;
  chunks.erase(chunks.begin());
  if (!chunks.empty()) return;
  flows_.erase(flow);
  groups_.pop_front();
}

void ReadyChunks::RoundRobin::remove(const OutChunk& chunk) {
  const std::uint64_t group = chunk.chunk.key.group;
  const auto flow = flows_.find(group);
  auto& chunks = flow->second.chunks;
  chunks.erase(chunk.order);
  if (!chunks.empty()) return;
  flows_.erase(flow);
  std::erase(groups_, group);
}

ReadyChunks::RoundRobin& ReadyChunks::class_of(const OutChunk& chunk) {
  return is_small(chunk) ? small_ : bulk_;
}

ReadyChunks::RoundRobin& ReadyChunks::class_to_send() {
  const bool small = !small_.empty() && (bulk_.empty() || small_run_ < kSmallRunBytes);
  return small ? small_ : bulk_;
}

void ReadyChunks::add(OutChunkPtr chunk) {
  RoundRobin& waiting = class_of(*chunk);
  waiting.add(std::move(chunk));
}

const OutChunkPtr& ReadyChunks::next() {
  return class_to_send().next();
}

void ReadyChunks::took(std::uint32_t bytes, bool all) {
  RoundRobin& waiting = class_to_send();
  small_run_ = &waiting == &small_ && !bulk_.empty() ? small_run_ + cost_of(bytes) : 0;
  waiting.took(cost_of(bytes), all);
}

void ReadyChunks::remove(const OutChunk& chunk) {
  class_of(chunk).remove(chunk);
}

}  // namespace geocomm::transport
