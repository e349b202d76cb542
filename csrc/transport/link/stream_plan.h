// How many data streams a channel should have: what the link asks for by a formula, and more while more of
// them move more.
#pragma once

#include <chrono>
#include <cstdint>

namespace geocomm::transport {

// Several BBR flows on one path each take the most they have seen for theirs, overfill the queue together and
// lose by it; one alone waits for its own losses. Two were the fastest of 1, 2, 4 and 8 on clean and on
// slightly lossy links.
inline constexpr int kStreamsWithBbr = 2;
inline constexpr int kStreamsWithout = 16;

// What each of the channels that share a path begins with, of the `streams` that suit the path.
int streams_of_channel(int streams, int channels);

// What one connection of a link may have under way: half of the smaller buffer, since the kernel counts its
// own overhead too. A size of 0 is not known.
std::uint64_t window_of(std::uint64_t send_buffer_bytes, std::uint64_t receive_buffer_bytes);

// clamp(max(⌈R·RTT/W⌉, ⌈R / 3 Gbit/s⌉), least, 64): the windows W together cover the link, and no stream is
// more than one core can carry.
int streams_for(double bytes_per_sec, std::chrono::microseconds rtt, std::uint64_t window_bytes, int least);

// Tries twice as many streams, and so on while that gains over 10 %; goes back from the try that does not. A
// try disturbs a link that is full already, so the first one waits for a minute of traffic, unless the
// kernel's buffers hold the streams up. It compares rates over time in which the channel had something to
// send, so that pauses between operations do not count.
class StreamTrial {
 public:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  // Links with shorter round trips than this lack no streams.
  static constexpr std::chrono::microseconds kLeastRtt{2000};

  // The peer has acknowledged `bytes`. `busy`: more waits to be sent. `limited`: by the kernel's buffers, of
  // late. `streams` are connected; `rtt` is the link's, 0 if unknown. Returns how many streams there should
  // be: never less than `streams`, until useful() says so.
  int acknowledged(std::uint64_t bytes, bool busy, bool limited, int streams, std::chrono::microseconds rtt,
                   Clock::time_point now);
  // The most streams that were worth it; 0: not known yet.
  int useful() const { return useful_; }

 private:
  void begin(int streams);

  bool over_ = false;
  bool was_busy_ = false;
  int streams_ = 0;  // under measurement
  double base_ = 0;  // bytes per second with half as many; 0: none was measured
  int useful_ = 0;
  Seconds waited_{0};    // busy time before the first try
  Seconds settling_{0};  // busy time since streams_ changed; then
  Seconds measured_{0};
  double bytes_ = 0;
  Clock::time_point last_{};
};

// How many data streams a link wants, and how many of those that it has carry segments; the others stand in
// for those that are down. Either side may want more, and the one that dials opens them.
class StreamPlanner {
 public:
  // What the kernel knows of the connections now.
  struct PathFacts {
    std::chrono::microseconds rtt{};  // without the time that processes take; 0: unknown
    std::uint64_t window_bytes = 0;   // as window_of()
    std::uint64_t stalled_us = 0;     // by the kernel's buffers, all open streams
  };

  // With how many it begins. Precondition of all below.
  void begin(int first) { first_ = first; }
  int first() const { return first_; }
  // Bytes per second that the link is to carry; 0: not known.
  void expect_rate(double bytes_per_sec) { expected_rate_ = bytes_per_sec; }
  void peer_wants(int streams);
  // Once a heartbeat.
  void look(const PathFacts& facts);
  // As StreamTrial::acknowledged(), with so many open data streams.
  void acknowledged(std::uint64_t bytes, bool busy, int open, StreamTrial::Clock::time_point now);

  // By this side.
  int wanted_here() const { return wanted_; }
  int wanted() const;
  int used() const;

 private:
  double expected_rate_ = 0;
  StreamTrial trial_;
  std::chrono::microseconds path_rtt_{0};
  std::uint64_t stalled_us_ = 0;
  bool limited_ = false;  // by the kernel's buffers, between the last two looks
  int planned_ = 0;       // by the formula
  int first_ = 0;
  int wanted_ = 0;       // by this side
  int peer_wanted_ = 0;  // by the other side
};

}  // namespace geocomm::transport
