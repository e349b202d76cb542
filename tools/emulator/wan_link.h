// The model of one directed link: a byte-limited queue in front of a line of fixed rate, then a fixed delay,
// with random loss, reordering, copies and resets per segment. Pure computation on times that the caller
// gives; not thread safe (the router locks).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/status.h"
#include "emulator/wan_packet.h"

namespace geocomm::emulator {

using Clock = std::chrono::steady_clock;

struct LinkParams {
  double rate_bps = 1e9;                // of IP packets, headers included
  std::chrono::nanoseconds delay{0};    // one way
  double loss = 0;                      // probability per segment, in [0, 1]
  std::uint64_t queue_limit_bytes = 0;  // 0: chosen by queue_bytes()
  bool up = true;
  // Probabilities per segment, in [0, 1]: to come late, so that those behind it overtake it (by up to half of
  // the delay, or 2 ms if that is more); to come twice; to be turned into a reset of its TCP connection.
  double reorder = 0;
  double duplicate = 0;
  double reset = 0;

  // The queue's size: queue_limit_bytes, or max(256 KiB, rate * 2 * delay) where that is 0.
  std::uint64_t queue_bytes() const;
  core::Status validate() const;
};

struct LinkCounters {
  std::uint64_t bytes = 0;          // IP bytes let onto the link
  std::uint64_t segments = 0;       // packets on a real wire; a super-packet counts as its segments
  std::uint64_t packets = 0;        // reads from the sender's device
  std::uint64_t dropped_loss = 0;   // segments
  std::uint64_t dropped_queue = 0;  // segments
  std::uint64_t dropped_down = 0;   // segments
  std::uint64_t max_queue_bytes = 0;
  std::uint64_t reordered = 0;   // segments
  std::uint64_t duplicated = 0;  // segments
  std::uint64_t resets = 0;      // segments
};

// Segments [first, first + count) of an admitted frame, all to be delivered at `due`.
struct SegmentRun {
  std::size_t first = 0;
  std::size_t count = 0;
  Clock::time_point due;
  bool reset = false;  // to be delivered as make_reset(), not as it is; count is 1
};

class Link {
 public:
  Link(const LinkParams& params, std::uint64_t seed) : params_(params), random_(seed) {}

  // Decides the fate of every segment of `frame`, read at `now`, and appends what survives to `runs`:
  // segments side by side share a run of at most 2 ms of line time, so that a slow link does not hand over 64
  // KiB at once. Packets never overtake each other on a link, but for those that `reorder` picks.
  void admit(const Frame& frame, Clock::time_point now, std::vector<SegmentRun>& runs);

  // From `now` on. The bytes that wait in the queue stay there and drain at the new rate; a frame that was
  // admitted before keeps its time of delivery, even when the link goes down. Precondition:
  // params.validate().is_ok().
  void change(const LinkParams& params, Clock::time_point now);

  const LinkParams& params() const { return params_; }
  const LinkCounters& counters() const { return counters_; }

 private:
  LinkParams params_;
  std::mt19937_64 random_;
  LinkCounters counters_;
  Clock::time_point line_free_at_{};  // when the last admitted byte has left the queue
  Clock::time_point last_due_{};
};

}  // namespace geocomm::emulator
