// Mux: between the chunks of operations and the segments of one peer. Cuts chunks into segments that the
// connections of a link pull, puts together what comes, and keeps what went out until the peer has it. It
// knows no socket, no thread and no clock: whoever carries its segments and control packets, in whatever
// order, and repeats those that were lost, gets every chunk to the other Mux once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/buffer.h"
#include "core/status.h"
#include "transport/mux/carrier.h"
#include "transport/mux/chunks.h"
#include "transport/mux/closed_groups.h"
#include "transport/mux/control_log.h"
#include "transport/mux/mux_stats.h"
#include "transport/mux/receive_table.h"
#include "transport/mux/segment_receiver.h"
#include "transport/mux/send_queue.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

class Mux {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Callbacks = std::vector<SentCallback>;

  // `max_unexpected_bytes`: as this process tells the peer. `wake`: there is something new to pull or to say;
  // any thread, with no lock held, but also from a sink.
  Mux(std::uint64_t max_unexpected_bytes, core::BufferPool& pool, const ClosedGroups& closed_groups,
      std::function<void()> wake)
      : queue_(closed_groups), table_(max_unexpected_bytes, pool, closed_groups), wake_(std::move(wake)) {}

  // ---- any thread. The callbacks that are due are returned: the caller runs them on the IO thread.

  // Does not wake: the caller may write at once.
  core::Status send(OutgoingChunk chunk, SentCallback on_sent) {
    return queue_.push(std::move(chunk), std::move(on_sent));
  }
  core::Status post(const OpKey& key, std::uint64_t descriptor, std::uint32_t chunk_count,
                    const std::shared_ptr<ReceiveSink>& sink);
  [[nodiscard]] Callbacks cancel(const OpKey& key);
  [[nodiscard]] Callbacks close_group(std::uint64_t group, const core::Status& why, QueuedChunks queued);
  // From now on send() returns `why` (the first one counts).
  void refuse(const core::Status& why) { queue_.refuse(why); }
  // The peer has all that was sent.
  bool drained() const { return queue_.empty(); }
  MuxStats stats() const;

  // ---- the IO thread's. The callbacks that are due are run.

  // The peer is there. Until then nothing is ready.
  void set_peer_limit(std::uint64_t max_unexpected_bytes) { queue_.set_peer_limit(max_unexpected_bytes); }
  bool has_ready() const { return queue_.has_ready(); }
  // Some segments for `carrier`: lost ones before new ones. Where there are none, and it has `time_left`, one
  // that another carrier is slow with.
  void pull(const Carrier& carrier, Time now, bool time_left, std::vector<OutSegment>& out);
  bool has_slow(Time now) { return queue_.has_slow(now); }
  void written(const OutSegment& segment);
  // It carries nothing any more: what it carried, and the peer has not, goes out again.
  void lost(const Carrier& carrier) { queue_.lose(carrier); }

  // A Segment came. Where its payload goes; CorruptData if the peer broke the protocol.
  core::Result<SegmentCopy> begin(const WireHeader& header);
  // The payload is there.
  void finish(SegmentCopy copy, Time now);

  struct Told {
    bool leaves = false;            // Close: call peer_left()
    std::uint64_t acked_bytes = 0;  // of segments, for the first time
  };
  // A Grant, Close or Ack came. CorruptData if the peer broke the protocol.
  core::Result<Told> on_control(const WireHeader& header, Time now);
  // Adds what the peer is to be told, with acknowledgements only if they are due, or go along with something
  // else. `room` for them: a peer that does not read is told no more of them.
  void take_control(Time now, bool room, std::vector<WireHeader>& out);
  // A new control stream, over which the peer has said how many control packets it has: all else is told
  // again.
  core::Status restart_control(std::uint64_t peer_has) { return control_.restart(peer_has); }
  void repeat_acks();
  std::uint64_t control_received() const { return control_.received(); }
  // The peer must acknowledge control packets, or they would take all memory.
  bool control_overflows() const { return control_.overflows(); }
  // When to look again whether there is something to say, or something slow. `now`: as the call before was
  // told, since what is due at it waits for room, and for no time.
  std::optional<Time> due(Time now) const;

  // Nothing is sent any more. False if that was said before. Precondition: drained().
  bool say_close();
  // The peer has all control packets.
  bool control_acknowledged() const { return control_.all_acknowledged(); }
  // The peer has sent Close: it sends and posts nothing any more, and everything that it sent is here.
  // Receives that still wait get `why`, as ReceiveTable::fail().
  void peer_left(const core::Status& why, bool keep_complete);
  bool has_peer_left() const { return receiver_.expects_no_more(); }
  // Whether the peer waits to hear what arrived. Then it is due.
  bool hurry_acks();
  // The end: all that waits gets `why`.
  void fail(const core::Status& why, bool keep_complete);

 private:
  void announce(const OpKey& key);
  void arrived(Time now);
  core::Result<Told> on_ack(const WireHeader& header, Time now);

  SendQueue queue_;
  ReceiveTable table_;
  SegmentReceiver receiver_{table_};
  ControlLog control_;
  const std::function<void()> wake_;
  int arrived_ = 0;              // segments and reliable control packets of which the peer was not told
  std::optional<Time> acks_at_;  // when it is to be told, at the latest; nothing: there is nothing to tell
  std::atomic<std::uint64_t> payload_sent_{0};
  std::atomic<std::uint64_t> payload_received_{0};
  std::atomic<std::uint64_t> resent_segments_{0};
  std::atomic<std::uint64_t> acks_{0};
};

}  // namespace geocomm::transport
