// Two Muxes whose segments and control packets travel over carriers that break, lose what they carry, deliver
// in any order between them and are made again, by schedules drawn at random: every chunk arrives once and
// right, every callback runs once, all credit comes back, and nothing is left in memory. No sockets, no
// threads; the clock is the schedule's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/str.h"
#include "mux_ends.h"

namespace geocomm::transport::testing::schedules {
namespace {

// What the world does wrong on purpose, to show that the checks see it.
enum class Fault : std::uint8_t {
  None,
  AcksAreLost,          // from the middle of the schedule on, without a connection that breaks
  GrantIsLost,          // one, likewise
  LossesAreHidden,      // a connection breaks, and its Mux is not told
  ControlIsNotAgain,    // a new control stream, and the Mux is not told what the peer has
  CopiesLookNew,        // a segment that comes again has another number
  BytesAreWrong,        // one of a segment
  WakesAreNotHeard,     // the Mux says that it has something to say
  CallbacksAreDropped,  // of operations that were cancelled
};

class World {
 public:
  World(std::uint64_t seed, Fault fault) : random_(seed), fault_(fault) {}

  // What is wrong; empty: nothing.
  std::string run() {
    for (End& end : ends_) end.mux.set_peer_limit(kCreditBytes);
    for (step_ = 0; step_ < kSteps && trouble_.empty(); ++step_) take_step();
    finish_operations();
    check_operations();
    if (trouble_.empty()) part();
    if (trouble_.empty()) check_memory();
    return trouble_;
  }

 private:
  static constexpr int kSteps = 250;
  static constexpr std::uint64_t kGroups = 3;

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  bool one_in(std::uint64_t many) { return draw(many) == 0; }
  int an_end() { return static_cast<int>(draw(2)); }
  void say(const std::string& what) {
    if (trouble_.empty()) trouble_ = core::str(what, " (step ", step_, ")");
  }

  void take_step() {
    const int end = an_end();
    Connection& data = connections_[1 + draw(kStreams - 1)];
    const std::uint64_t what = draw(100);
    now_ += std::chrono::milliseconds(draw(5));
    if (what < 18) {
      send(end);
    } else if (what < 30) {
      post(end);
    } else if (what < 42) {
      pull(end, data, one_in(3));
    } else if (what < 72) {
      deliver(end, data);
    } else if (what < 79) {
      speak(end);
    } else if (what < 90) {
      deliver(end, connections_[0]);
    } else if (what < 92) {
      break_one(connections_[draw(kStreams)]);
    } else if (what < 97) {
      mend(connections_[draw(kStreams)], end);
    } else if (what < 98) {
      cancel(end);
    } else if (what < 99) {
      now_ += std::chrono::milliseconds(draw(300));
    } else if (one_in(4)) {
      close_group(end, 1 + draw(kGroups - 1));
    }
  }

  // ---- what the users of the ends do ----

  void send(int end) {
    auto& operations = ends_[end].operations;
    if (operations.empty() || one_in(2)) {
      const OpKey key{draw(kGroups), next_op_++};
      if (ends_[end].closed.contains(key.group)) return;
      Operation operation;
      operation.pieces.resize(1 + draw(3));
      for (Piece& piece : operation.pieces) {
        piece.bytes = static_cast<std::uint32_t>(one_in(12) ? draw(kMostBytes) : one_in(5) ? 0 : draw(3000));
        piece.offset = static_cast<std::uint32_t>(draw(100'003));
      }
      operations.emplace(key, std::move(operation));
    }
    auto found =
        std::prev(operations.end(),
                  static_cast<std::ptrdiff_t>(1 + draw(std::min<std::uint64_t>(operations.size(), 4))));
    send_one(end, found->first, found->second);
  }

  // The next chunk of an operation; false: there is none.
  bool send_one(int end, const OpKey& key, Operation& operation) {
    if (operation.cancelled_here || ends_[end].closed.contains(key.group)) return false;
    const auto piece = std::find_if(operation.pieces.begin(), operation.pieces.end(),
                                    [](const Piece& one) { return !one.sent; });
    if (piece == operation.pieces.end()) return false;
    OutgoingChunk chunk;
    chunk.key = key;
    chunk.descriptor = 7;
    chunk.chunk = static_cast<std::uint32_t>(piece - operation.pieces.begin());
    chunk.chunk_count = static_cast<std::uint32_t>(operation.pieces.size());
    if (piece->bytes > 0) {
      chunk.payload = ends_[end].sent.acquire(piece->bytes);
      chunk.payload.resize(piece->bytes);
      std::memcpy(chunk.payload.data(), piece->data(), piece->bytes);
    }
    piece->sent = true;
    const Status sent =
        ends_[end].mux.send(std::move(chunk), [&count = piece->callbacks](const Status&) { ++count; });
    if (!sent.is_ok()) say(core::str("send: ", sent.to_string()));
    ends_[end].woken = true;
    return true;
  }

  // The receiver of some operation that the other end sends (or will, as far as it has begun) asks for it.
  void post(int end) {
    auto& operations = ends_[1 - end].operations;
    if (operations.empty()) return;
    auto found =
        std::prev(operations.end(),
                  static_cast<std::ptrdiff_t>(1 + draw(std::min<std::uint64_t>(operations.size(), 6))));
    post_one(end, found->first, found->second);
  }

  void post_one(int end, const OpKey& key, Operation& operation) {
    if (operation.posted || operation.cancelled_there || ends_[end].closed.contains(key.group)) return;
    operation.posted = true;
    auto sink = std::make_shared<PieceSink>(operation.pieces, trouble_);
    ends_[end].sinks.emplace(key, sink);
    const Status posted =
        ends_[end].mux.post(key, 7, static_cast<std::uint32_t>(operation.pieces.size()), sink);
    if (!posted.is_ok()) say(core::str("post: ", posted.to_string()));
  }

  void cancel(int end) {
    const bool sender = one_in(2);
    auto& operations = ends_[sender ? end : 1 - end].operations;
    if (operations.empty()) return;
    auto found =
        std::prev(operations.end(),
                  static_cast<std::ptrdiff_t>(1 + draw(std::min<std::uint64_t>(operations.size(), 6))));
    (sender ? found->second.cancelled_here : found->second.cancelled_there) = true;
    run_callbacks(end, ends_[end].mux.cancel(found->first));
  }

  void close_group(int end, std::uint64_t group) {
    if (ends_[end].closed.contains(group)) return;
    ends_[end].closed.add(group);
    const Status why(StatusCode::Aborted, "closed");
    run_callbacks(
        end, ends_[end].mux.close_group(group, why, one_in(2) ? QueuedChunks::Send : QueuedChunks::Drop));
  }

  void run_callbacks(int end, const Mux::Callbacks& callbacks) {
    if (fault_ == Fault::CallbacksAreDropped) return;
    for (const SentCallback& callback : callbacks) callback({StatusCode::Aborted, "cancelled"});
    ends_[end].woken = true;
  }

  // ---- what a link does ----

  // Whether anything was pulled.
  bool pull(int end, Connection& connection, bool time_left = false) {
    if (!connection.open[end]) return false;
    std::vector<OutSegment> segments;
    const auto stream = static_cast<std::uint16_t>(&connection - connections_.data());
    ends_[end].mux.pull({stream, connection.generation}, now_, time_left, segments);
    for (OutSegment& segment : segments) {
      Packet packet{segment_header(segment), std::move(segment), one_in(2)};
      if (packet.written) ends_[end].mux.written(packet.segment);
      if (!connection.cut) connection.to[1 - end].packets.push_back(std::move(packet));
    }
    return !segments.empty();
  }

  // What an end has to say goes to the control stream.
  bool speak(int end) {
    Connection& control = connections_[0];
    if (!control.open[end]) return false;
    std::vector<WireHeader> headers;
    ends_[end].mux.take_control(now_, step_ == kSteps || !one_in(10), headers);
    for (const WireHeader& header : headers) {
      const auto type = static_cast<PacketType>(header.type);
      if (fault_ == Fault::AcksAreLost && step_ > kSteps / 2 && type == PacketType::Ack) continue;
      if (fault_ == Fault::GrantIsLost && step_ > kSteps / 2 && type == PacketType::Grant &&
          !std::exchange(done_, true))
        continue;
      if (!control.cut) control.to[1 - end].packets.push_back({header, {}, true});
    }
    return !headers.empty();
  }

  // One packet, or half of one, reaches `end`. False: there is none.
  bool deliver(int end, Connection& connection) {
    Pipe& pipe = connection.to[end];
    if (!connection.open[end] || pipe.packets.empty()) return false;
    Mux& mux = ends_[end].mux;
    Packet& packet = pipe.packets.front();
    if (!packet.segment.chunk) {
      hear(end, packet.header);
      pipe.packets.pop_front();
      return true;
    }
    // Most carriers say that they have sent something before it arrives; one that breaks may never say it.
    const auto say_written = [&] {
      if (!packet.written && !connection.cut) ends_[1 - end].mux.written(packet.segment);
      packet.written = true;
    };
    if (one_in(2)) say_written();
    const std::byte* const bytes = packet.segment.chunk->chunk.payload.data() + packet.segment.offset;
    const std::uint32_t half = packet.segment.length / 2;
    if (!pipe.copy) {
      core::Result<SegmentCopy> begun = mux.begin(packet.header);
      if (!begun.is_ok()) {
        say(core::str("begin: ", begun.status().to_string()));
        return true;
      }
      pipe.copy = std::move(begun).value();
      write(*pipe.copy, 0, bytes, half);
      if (one_in(3)) return true;
    }
    write(*pipe.copy, half, bytes + half, packet.segment.length - half);
    SegmentCopy copy = std::move(*pipe.copy);
    pipe.copy.reset();
    mux.finish(std::move(copy), now_);
    say_written();
    if (fault_ == Fault::CopiesLookNew && !std::exchange(done_, step_ > 50)) {
      WireHeader again = packet.header;
      again.sequence += 1000;
      if (!mux.begin(again).is_ok()) say("a copy with another number");
    }
    pipe.packets.pop_front();
    return true;
  }

  void write(SegmentCopy& copy, std::uint32_t offset, const std::byte* bytes, std::uint32_t count) {
    if (copy.superseded()) copy.discard();
    if (copy.incoming.dest == nullptr || count == 0) return;
    std::memcpy(copy.incoming.dest + offset, bytes, count);
    if (fault_ == Fault::BytesAreWrong && !std::exchange(done_, true))
      copy.incoming.dest[offset] ^= std::byte{1};
  }

  void hear(int end, const WireHeader& header) {
    Mux& mux = ends_[end].mux;
    const core::Result<Mux::Told> told = mux.on_control(header, now_);
    if (!told.is_ok()) return say(core::str("control: ", told.status().to_string()));
    if (told->leaves) mux.peer_left({StatusCode::PeerLost, "left"}, true);
    // As a link does when something was acknowledged; all else is the Mux's to say.
    if (static_cast<PacketType>(header.type) == PacketType::Ack && mux.has_ready()) ends_[end].woken = true;
  }

  void break_one(Connection& connection) {
    if (std::exchange(connection.cut, true)) return;
    for (Pipe& pipe : connection.to) {
      // What was on its way last is lost; the rest lies where the peer may still read it.
      std::size_t kept = draw(pipe.packets.size() + 1);
      if (pipe.copy && kept == 0) kept = 1;
      pipe.packets.resize(kept);
    }
  }

  void notice(Connection& connection, int end) {
    if (!std::exchange(connection.open[end], false)) return;
    Pipe& pipe = connection.to[end];
    pipe.packets.clear();
    pipe.copy.reset();
    const auto stream = static_cast<std::uint16_t>(&connection - connections_.data());
    if (fault_ != Fault::LossesAreHidden) ends_[end].mux.lost({stream, connection.generation});
    ends_[end].woken = true;
  }

  // An end notices that a connection is cut, or both have noticed and make another one.
  void mend(Connection& connection, int end) {
    if (!connection.cut) return;
    if (one_in(2)) return notice(connection, end);
    for (const int either : {0, 1}) notice(connection, either);
    const std::uint32_t newer = connection.generation + 1;
    connection = Connection();
    connection.generation = newer;
    if (&connection != connections_.data()) return;
    const std::array<std::uint64_t, 2> heard{ends_[0].mux.control_received(),
                                             ends_[1].mux.control_received()};
    for (const int either : {0, 1}) {
      Mux& mux = ends_[either].mux;
      if (fault_ != Fault::ControlIsNotAgain) {
        const Status fits = mux.restart_control(heard[1 - either]);
        if (!fits.is_ok()) say(core::str("restart: ", fits.to_string()));
      }
      mux.repeat_acks();
    }
  }

  // As a link does when it was woken. Whether anything happened.
  bool flush(int end) {
    ends_[end].woken = false;
    bool any = speak(end);
    for (std::size_t i = 1; i < kStreams; ++i) {
      while (ends_[end].mux.has_ready() && pull(end, connections_[i])) any = true;
    }
    for (std::size_t i = 1; i < kStreams && ends_[end].mux.has_slow(now_); ++i)
      any |= pull(end, connections_[i], true);
    return any;
  }

  // Nothing breaks any more, and nobody acts but who was woken or waits for a time: until nothing is left to
  // do.
  void settle() {
    for (Connection& connection : connections_) {
      while (connection.cut) mend(connection, an_end());
    }
    const Mux::Time end_of_patience = now_ + 1s;
    while (trouble_.empty() && now_ < end_of_patience) {
      bool any = false;
      for (const int end : {0, 1}) {
        if (fault_ == Fault::WakesAreNotHeard) ends_[end].woken = false;
        if (ends_[end].woken) any = true;
        if (ends_[end].woken) (void)flush(end);
        for (Connection& connection : connections_) any |= deliver(end, connection);
      }
      if (any) continue;
      std::optional<Mux::Time> next;
      for (End& end : ends_) {
        if (const auto due = end.mux.due(now_)) next = next ? std::min(*next, *due) : *due;
      }
      if (!next) return;
      now_ = *next;
      for (End& end : ends_) end.woken = true;
    }
    // Only what nobody knows to be lost takes so long, and then goes out as slow.
    say("something waits for what does not come");
  }

  bool drained() const { return ends_[0].mux.drained() && ends_[1].mux.drained(); }

  // All that was begun is sent, and received or cancelled.
  void finish_operations() {
    for (const int end : {0, 1}) {
      for (std::uint64_t group = 1; group < kGroups; ++group) {
        if (ends_[1 - end].closed.contains(group)) close_group(end, group);
      }
      for (auto& [key, operation] : ends_[end].operations) {
        while (send_one(end, key, operation)) {
        }
        if (!one_in(4)) post_one(1 - end, key, operation);
      }
    }
    settle();
    // What nobody posts takes credit until it is cancelled, and what waits for that comes then.
    for (int round = 0; round < 100 && trouble_.empty(); ++round) {
      const bool all_came = drained();
      for (const int end : {0, 1}) {
        for (auto& [key, operation] : ends_[1 - end].operations) {
          const bool given_up = !operation.posted || operation.cancelled_here || operation.cancelled_there;
          if (!given_up) continue;
          run_callbacks(end, ends_[end].mux.cancel(key));
          // A chunk that is more than all credit waits until somebody asks for it: for ever.
          const bool fits = std::all_of(operation.pieces.begin(), operation.pieces.end(),
                                        [](const Piece& piece) { return piece.bytes <= kCreditBytes; });
          if (!fits) run_callbacks(1 - end, ends_[1 - end].mux.cancel(key));
        }
      }
      settle();
      if (all_came) break;
    }
    if (!drained()) say("not everything was acknowledged");
  }

  void check_operations() {
    for (const int end : {0, 1}) {
      for (const auto& [key, operation] : ends_[end].operations) {
        for (const Piece& piece : operation.pieces) {
          if (piece.callbacks != (piece.sent ? 1 : 0))
            say(core::str("a callback ran ", piece.callbacks, " times"));
        }
        const auto sink = ends_[1 - end].sinks.find(key);
        const bool closed = ends_[end].closed.contains(key.group);
        if (sink == ends_[1 - end].sinks.end() || operation.cancelled_here || operation.cancelled_there ||
            closed)
          continue;
        if (!sink->second->complete() || sink->second->failed()) say("an operation is not complete");
      }
      const MuxStats stats = ends_[end].mux.stats();
      if (stats.early_bytes_held != 0) say(core::str(stats.early_bytes_held, " early bytes are held"));
      if (stats.early_bytes_sent != 0)
        say(core::str(stats.early_bytes_sent, " bytes of credit did not come back"));
    }
  }

  // In good order.
  void part() {
    for (End& end : ends_) {
      if (!end.mux.say_close() || end.mux.say_close()) say("Close is said once");
      end.woken = true;
    }
    settle();
    for (End& end : ends_) {
      if (!end.mux.has_peer_left() || !end.mux.control_acknowledged()) say("Close did not arrive");
    }
  }

  void check_memory() {
    for (End& end : ends_) {
      if (end.received.usage().out_bytes != 0) say("received bytes are kept");
      if (end.sent.usage().out_bytes != 0) say("sent bytes are kept");
      for (auto& [key, sink] : end.sinks) {
        if (sink.use_count() != 1) say("a sink is kept");
        if (!sink->untouched()) say("a chunk was written to after it was complete");
      }
    }
  }

  std::mt19937_64 random_;
  const Fault fault_;
  bool done_ = false;  // the fault, where once is enough
  std::string trouble_;
  int step_ = 0;
  std::uint64_t next_op_ = 1;
  Mux::Time now_{std::chrono::hours(1)};
  std::array<End, 2> ends_;
  std::array<Connection, kStreams> connections_;
};

TEST(MuxSchedules, test_a_thousand_random_schedules_deliver_everything_once) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const std::string trouble = World(seed, Fault::None).run();
    ASSERT_TRUE(trouble.empty()) << "seed " << seed << ": " << trouble;
  }
}

class MuxSchedulesWithFault : public ::testing::TestWithParam<Fault> {};

TEST_P(MuxSchedulesWithFault, test_schedules_find_a_fault) {
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 100 && found == 0; ++seed)
    found += World(seed, GetParam()).run().empty() ? 0 : 1;
  EXPECT_GT(found, 0);
}

INSTANTIATE_TEST_SUITE_P(Each, MuxSchedulesWithFault,
                         ::testing::Values(Fault::AcksAreLost, Fault::GrantIsLost, Fault::LossesAreHidden,
                                           Fault::ControlIsNotAgain, Fault::CopiesLookNew,
                                           Fault::BytesAreWrong, Fault::WakesAreNotHeard,
                                           Fault::CallbacksAreDropped));

}  // namespace
}  // namespace geocomm::transport::testing::schedules
