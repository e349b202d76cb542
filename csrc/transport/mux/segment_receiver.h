// Receives the segments of a link, each perhaps more than once: over a connection that died half way and then
// over another, or over two at a time.
//
// A number that has arrived whole is read and thrown away. One that has begun is accepted again into the same
// memory, as both copies have the same bytes; the first copy that is whole counts, and from then on the
// memory belongs to the consumer: whoever receives another copy must throw the rest of it away
// (superseded()).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "core/status.h"
#include "transport/mux/receive_table.h"
#include "transport/mux/receive_window.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// A segment that has begun, shared by the connections that receive a copy.
struct Reception {
  Reception(std::uint64_t its_number, const Incoming& incoming)
      : number(its_number), op(incoming.op), chunk(incoming.chunk), segment(incoming.segment) {}

  // Any thread. Whether it may write to the memory, alone, until release(): nobody may once the segment is
  // done or its operation has ended, and whoever does meanwhile is waited for, or not.
  bool try_claim() {
    if (claimed.exchange(true)) return false;
    if (!done && op->enter()) return true;
    give_back();
    return false;
  }
  bool claim() {
    while (!try_claim()) {
      if (done || op->tombstone) return false;
      claimed.wait(true);
    }
    return true;
  }
  void release() {
    op->leave();
    give_back();
  }
  // False if it was done before. Once this returns, nobody writes to the memory any more.
  bool finish() {
    if (done.exchange(true)) return false;
    claimed.wait(true);
    return true;
  }

  void give_back() {
    claimed = false;
    claimed.notify_all();
  }

  const std::uint64_t number;
  const std::shared_ptr<ReceiveOp> op;
  const std::uint32_t chunk;
  const std::uint32_t segment;
  std::atomic<bool> done{false};
  std::atomic<bool> claimed{false};
};

// One copy of a segment, as its connection sees it.
struct SegmentCopy {
  Incoming incoming;
  std::shared_ptr<Reception> reception;  // null: it had arrived before
  // Not one byte more may be written to `incoming.dest`: discard().
  bool superseded() const { return incoming.dest != nullptr && (reception->done || incoming.op->tombstone); }
  // Lets go of the memory.
  void discard() {
    incoming.dest = nullptr;
    incoming.sink.reset();
    incoming.buffer = core::Buffer();
  }
};

// The IO thread's.
class SegmentReceiver {
 public:
  explicit SegmentReceiver(ReceiveTable& table) : table_(table) {}

  struct Begun {
    SegmentCopy copy;
    bool is_new = false;    // the first copy
    bool announce = false;  // as ReceiveTable::Begun
  };
  // A header of type Segment came. CorruptData if the peer broke the protocol.
  core::Result<Begun> begin(const WireHeader& header);
  // All bytes of the copy are here.
  void finish(SegmentCopy copy);
  // The peer has sent Close: new segments are a violation from now on.
  void expect_no_more() { complete_ = true; }
  bool expects_no_more() const { return complete_; }
  void clear() { begun_.clear(); }

  ReceiveWindow& window() { return window_; }

 private:
  ReceiveTable& table_;
  ReceiveWindow window_;
  bool complete_ = false;
  std::unordered_map<std::uint64_t, std::shared_ptr<Reception>> begun_;  // by number; not arrived
};

}  // namespace geocomm::transport
