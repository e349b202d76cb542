// The segments that were given a number and are not acknowledged yet, and which of them must go out again.
//
// A number once given out stays here until the peer has it, also when its operation was cancelled meanwhile:
// the peer's window would wait for it forever.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
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

  // The connection is gone: what it carried last must go out again. Costs as much as that is, however much
  // the others carry.
  void lose(const Carrier& carrier);
  bool has_lost() const { return !lost_.empty(); }
  // The oldest such segment, now carried by `carrier`. Precondition: has_lost().
  OutSegment resend(const Carrier& carrier, Clock::time_point now);
  // The oldest segment that has been under way since before `since`, over another connection than `carrier`
  // (if given), and went out only once; null if there is none. Looks at so many of the oldest only that it is
  // cheap.
  const OutSegment* find_slow(Clock::time_point since, const Carrier* carrier);
  // It goes out once more, over `carrier`, which carries it from now on.
  OutSegment hedge(std::uint64_t number, const Carrier& carrier);

  void clear();
  // How often a segment was looked at, of which all of the above is made: what they cost, whatever the
  // machine.
  std::uint64_t looks() const { return looks_; }

 private:
  // A segment is in one list of numbers: that of its carrier, until it is lost or acknowledged. 0: none.
  struct Entry {
    OutSegment segment;  // no chunk: acknowledged
    Carrier carrier;
    Clock::time_point handed;
    std::uint64_t before = 0;
    std::uint64_t after = 0;
    bool written = false;
    bool again = false;  // more than one copy went out
    bool lost = false;
  };
  struct Carried {
    std::uint64_t oldest = 0;
    std::uint64_t newest = 0;
  };

  Entry& at(std::uint64_t number) {
    ++looks_;
    return entries_[number - first_];
  }
  Entry* find(std::uint64_t number);
  void take(std::uint64_t number, std::vector<Acked>& out);
  void carry(std::uint64_t number, const Carrier& carrier);
  void put_down(std::uint64_t number);

  std::uint64_t first_ = 1;  // number of entries_[0]
  std::deque<Entry> entries_;
  std::size_t acked_ = 0;               // of entries_
  std::map<Carrier, Carried> carried_;  // of those that carry some
  std::set<std::uint64_t> lost_;        // numbers
  std::uint64_t looks_ = 0;
};

}  // namespace geocomm::transport
