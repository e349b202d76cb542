// Chunks of a channel that wait to be sent, and which of them is next.
//
// Small operations (a barrier, a failure notice) pass bulk. Groups alternate by bytes (deficit round robin),
// so that none waits for all that another one has queued. Within a group and class it is the order of send().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>

#include "core/status.h"
#include "transport/mux/chunks.h"

namespace geocomm::transport {

using SentCallback = std::function<void(const core::Status&)>;

// Where the SendQueue has a chunk (send_queue.h).
enum class ChunkPlace : std::uint8_t { Waiting, Ready, InFlight, Dropped };  // Dropped: its end was reported

struct OutChunk {
  OutgoingChunk chunk;
  SentCallback on_sent;
  std::uint64_t order = 0;  // of send()
  std::uint32_t next_offset = 0;
  std::uint32_t unsent_segments = 0;   // of all, those not yet written
  std::uint32_t unacked_segments = 0;  // of all, those not yet acknowledged
  bool charged = false;
  bool started = false;  // a segment was handed out
  ChunkPlace place = ChunkPlace::Waiting;

  std::uint32_t bytes() const { return static_cast<std::uint32_t>(chunk.payload.size()); }
};
using OutChunkPtr = std::shared_ptr<OutChunk>;

// An operation is small up to this size, with the headers of its chunks: 64 KiB of data and what frames add.
inline constexpr std::uint64_t kMostSmallBytes = 68 * 1024;
// After so many bytes of small operations in a row, bulk that waits goes once.
inline constexpr std::uint64_t kSmallRunBytes = 1024 * 1024;

// Not thread-safe: guarded by its SendQueue.
class ReadyChunks {
 public:
  bool empty() const { return small_.empty() && bulk_.empty(); }
  // It takes its place by OutChunk::order, also before chunks of its group that were added earlier. What
  // throws (std::bad_alloc) changes nothing.
  void add(OutChunkPtr chunk);
  // The next one: the same until took(), add() or a removal. Precondition: !empty().
  const OutChunkPtr& next();
  // `bytes` of next() went. With `all`, nothing of it is left: it is removed.
  void took(std::uint32_t bytes, bool all);

  // Precondition: it is in here. Costs the same however many others are.
  void remove(const OutChunk& chunk);

 private:
  // The chunks of one class.
  class RoundRobin {
   public:
    bool empty() const { return groups_.empty(); }
    void add(OutChunkPtr chunk);
    const OutChunkPtr& next();
    void took(std::uint64_t cost, bool all);
    void remove(const OutChunk& chunk);

   private:
    struct Flow {
      std::map<std::uint64_t, OutChunkPtr> chunks;  // by OutChunk::order; never empty
      std::uint64_t allowance = 0;                  // bytes that it may still send before the next group
    };
    std::unordered_map<std::uint64_t, Flow> flows_;  // by group
    std::deque<std::uint64_t> groups_;               // groups of flows_
  };
  RoundRobin& class_of(const OutChunk& chunk);
  RoundRobin& class_to_send();

  RoundRobin small_;
  RoundRobin bulk_;
  std::uint64_t small_run_ = 0;  // bytes of small operations since bulk began to wait, or last went
};

}  // namespace geocomm::transport
