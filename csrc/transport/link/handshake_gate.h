// Keeps TLS handshakes, which cost a good part of a millisecond each and which any stranger may ask for, from
// taking the IO thread away from running transfers: together they get at most half of its time. Of those that
// wait, the first in HalfOpen::goes_before()'s order is served.
#pragma once

#include <chrono>
#include <vector>

#include "transport/io/io_loop.h"

namespace geocomm::transport {

class HalfOpen;

// The IO thread's.
class HandshakeGate {
 public:
  explicit HandshakeGate(IoLoop& loop) : loop_(loop) {}
  ~HandshakeGate() { loop_.cancel_timer(timer_); }
  HandshakeGate(const HandshakeGate&) = delete;
  HandshakeGate& operator=(const HandshakeGate&) = delete;

  // Whether `one` may work on its handshake now. If not, it gets on_ready(0) when it is worth asking again,
  // unless forget() comes first.
  bool enter(HalfOpen& one);
  // After the work that enter() allowed.
  void leave() { spent_ += loop_.now() - entered_; }
  // `one` goes away.
  void forget(const HalfOpen& one) { std::erase(waiting_, &one); }

  static constexpr std::chrono::milliseconds kPeriod{20};
  static constexpr std::chrono::milliseconds kShare{10};  // of each period

 private:
  bool has_time();
  void arm();
  void serve();

  IoLoop& loop_;
  std::vector<HalfOpen*> waiting_;
  const HalfOpen* served_ = nullptr;  // it asks again
  bool armed_ = false;                // the timer
  Timers::TimerId timer_{};
  Timers::Time period_start_{};
  Timers::Time entered_{};
  Timers::Clock::duration spent_{};
};

}  // namespace geocomm::transport
