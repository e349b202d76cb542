// Two Muxes side by side, what travels between them carried at once, and a clock that stands still until it
// is moved on.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "manual_timers.h"
#include "transport/mux/mux.h"
#include "transport_fixture.h"

namespace geocomm::transport::testing {

inline constexpr Carrier kData{1, 1};

class MuxEnd {
 public:
  MuxEnd(ManualTimers& timers, std::uint64_t credit_bytes)
      : timers_(timers), mux_(credit_bytes, pool_, closed_, [] {}) {}

  Status send(OutgoingChunk chunk, SentLatch* sent = nullptr) {
    return mux_.send(std::move(chunk), sent ? sent->callback() : nullptr);
  }
  Status post(OpKey key, std::uint32_t chunks, std::shared_ptr<ReceiveSink> sink,
              std::uint64_t descriptor = 7) {
    return mux_.post(key, descriptor, chunks, sink);
  }
  void cancel(OpKey key) { run(mux_.cancel(key)); }
  void close_group(std::uint64_t group, QueuedChunks queued) {
    closed_.add(group);
    run(mux_.close_group(group, {StatusCode::Aborted, "the group has ended"}, queued));
  }
  Mux& mux() { return mux_; }

  // What goes to `other` now. False: nothing does.
  bool carry_to(MuxEnd& other) {
    std::vector<WireHeader> control;
    mux_.take_control(timers_.now(), true, control);
    for (const WireHeader& header : control)
      EXPECT_TRUE(other.mux_.on_control(header, timers_.now()).is_ok());
    std::vector<OutSegment> segments;
    mux_.pull(kData, timers_.now(), false, segments);
    for (const OutSegment& segment : segments) {
      mux_.written(segment);
      other.receive(segment);
    }
    return !control.empty() || !segments.empty();
  }
  void receive(const OutSegment& segment) {
    auto copy = mux_.begin(segment_header(segment));
    ASSERT_TRUE(copy.is_ok()) << copy.status().to_string();
    if (copy->incoming.dest != nullptr && segment.length > 0) {
      std::memcpy(copy->incoming.dest, segment.chunk->chunk.payload.data() + segment.offset, segment.length);
    }
    mux_.finish(std::move(copy).value(), timers_.now());
  }

 private:
  static void run(const Mux::Callbacks& callbacks) {
    for (const SentCallback& callback : callbacks) callback({StatusCode::Aborted, "taken back"});
  }

  ManualTimers& timers_;
  core::BufferPool pool_;
  ClosedGroups closed_;
  Mux mux_;
};

struct MuxPair {
  explicit MuxPair(std::uint64_t credit_bytes = 64 * kMiB) : MuxPair(credit_bytes, credit_bytes) {}
  MuxPair(std::uint64_t first_credit, std::uint64_t second_credit)
      : low(timers, first_credit), high(timers, second_credit) {
    low.mux().set_peer_limit(second_credit);
    high.mux().set_peer_limit(first_credit);
  }
  // Until both wait for their users only. Acknowledgements take their time.
  void settle() {
    for (;;) {
      bool any = low.carry_to(high);
      any |= high.carry_to(low);
      if (any) continue;
      const auto now = timers.now();
      if (!low.mux().due(now) && !high.mux().due(now)) return;
      timers.advance(1ms);
    }
  }

  ManualTimers timers;
  MuxEnd low;
  MuxEnd high;
};

}  // namespace geocomm::transport::testing
