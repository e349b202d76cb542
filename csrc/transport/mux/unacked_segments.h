// The segments that were given a number and are not acknowledged yet, and which of them must go out again.
//
// A number once given out stays here until the peer has it, also when its operation was cancelled meanwhile:
// the peer's window would wait for it forever.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "core/status.h"
#include "transport/mux/carrier.h"
#include "transport/mux/chunks.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

struct OutChunk;

struct OutSegment {
  std::uint64_t number = 0;
  std::shared_ptr<OutChunk> chunk;  // keeps the bytes while a stream is in the middle of them
  std::uint32_t offset = 0;
  std::uint32_t length = 0;
};

// Not thread-safe: guarded by its SendQueue.
class UnackedSegments {
 public:
  using Clock = std::chrono::steady_clock;

  // False while the oldest number that is not acknowledged is too far behind.
  bool has_room() const { return entries_.size() < kMaxNumberSpan; }
  // Gives `segment` the next number. Precondition: has_room().
  void add(OutSegment& segment, const Carrier& carrier, Clock::time_point now);
  bool empty() const { return acked_ == entries_.size(); }

  // True once for each number, when it is known to have been written: the first time that it was, or with its
  // acknowledgement.
  bool mark_written(std::uint64_t number);

  struct Acked {
    OutSegment segment;
    bool was_written = false;
    bool first_copy = false;   // it went out once
    Clock::time_point handed;  // to its stream, the last time
  };
  // Moves what `ack` says into `out`. CorruptData for numbers that were never given out.
  core::Status acknowledge(const AckPacket& ack, std::vector<Acked>& out);

  // The connection is gone: what it carried last must go out again.
  void lose(const Carrier& carrier);
  bool has_lost() const { return !lost_.empty(); }
  // The oldest such segment, now carried by `carrier`. Precondition: has_lost().
  OutSegment resend(const Carrier& carrier, Clock::time_point now);
  // The oldest segment that has been under way since before `since`, over another connection than `carrier`
  // (if given), and went out only once; null if there is none. Looks at so many of the oldest only that it is
  // cheap.
  const OutSegment* find_slow(Clock::time_point since, const Carrier* carrier) const;
  // It goes out once more, over `carrier`, which carries it from now on.
  OutSegment hedge(std::uint64_t number, const Carrier& carrier);

  void clear();

 private:
  struct Entry {
    OutSegment segment;  // no chunk: acknowledged
    Carrier carrier;
    Clock::time_point handed;
    bool written = false;
    bool again = false;  // more than one copy went out
  };

  Entry* find(std::uint64_t number);
  void take(std::uint64_t number, std::vector<Acked>& out);

  std::uint64_t first_ = 1;  // number of entries_[0]
  std::deque<Entry> entries_;
  std::size_t acked_ = 0;         // of entries_
  std::set<std::uint64_t> lost_;  // numbers
};

}  // namespace geocomm::transport
