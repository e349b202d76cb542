// What a link has moved, how far the peer is, and since when nothing was heard of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "transport/io/timers.h"
#include "transport/link/channel_stats.h"
#include "transport/link/clock_offset.h"

namespace geocomm::transport {

// The IO thread's, but for the statistics.
class LinkHealth {
 public:
  explicit LinkHealth(const Timers& timers) : timers_(timers) {}

  void count(std::uint64_t received, std::uint64_t sent);
  // The peer is there: a byte came, or a connection.
  void on_contact();
  Timers::Time last_contact() const { return last_contact_; }
  // A heartbeat's interval is over. True if nothing was heard for several of them: not by the clock alone,
  // since a process that was stopped itself reads first what came meanwhile.
  bool is_silent_at_tick();
  // The reply to a heartbeat that was sent at `sent`, with the peer's times. False if it says nothing.
  bool on_reply(std::uint64_t sent, std::uint64_t came, std::uint64_t replied);
  std::chrono::microseconds rtt() const { return std::chrono::microseconds(rtt_us_); }

  // Any thread: fills in what it knows.
  void add_stats(ChannelStats& stats) const;

 private:
  const Timers& timers_;
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> bytes_received_{0};
  std::atomic<std::uint64_t> rtt_us_{0};
  std::atomic<std::uint64_t> least_rtt_us_{0};
  std::atomic<std::uint64_t> last_byte_ns_{0};  // by Timers::now_ns(); 0: none yet
  mutable std::mutex clock_mutex_;              // guards peer_clock_
  ClockOffset peer_clock_;
  Timers::Time last_contact_;
  int silent_ticks_ = 0;  // in a row, with nothing heard
};

}  // namespace geocomm::transport
