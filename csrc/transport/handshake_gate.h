// Keeps TLS handshakes, which cost a good part of a millisecond each and which any stranger may ask for, from
// taking the IO thread away from running transfers: together they get at most half of its time, in the order
// in which they ask.
#pragma once

#include <chrono>
#include <deque>

#include "transport/io_loop.h"

namespace geocomm::transport {

// The IO thread's.
class HandshakeGate {
 public:
  explicit HandshakeGate(IoLoop& loop) : loop_(loop) {}
  ~HandshakeGate() { loop_.cancel_timer(timer_); }
  HandshakeGate(const HandshakeGate&) = delete;
  HandshakeGate& operator=(const HandshakeGate&) = delete;

  // Whether `handler` may work on its handshake now. If not, it gets on_ready(0) when it is worth asking
  // again, unless forget() comes first.
  bool enter(IoHandler& handler);
  // After the work that enter() allowed.
  void leave() { spent_ += IoLoop::Clock::now() - entered_; }
  // `handler` goes away.
  void forget(const IoHandler& handler) { std::erase(waiting_, &handler); }

  static constexpr std::chrono::milliseconds kPeriod{20};
  static constexpr std::chrono::milliseconds kShare{10};  // of each period

 private:
  void arm();
  void next_period();

  IoLoop& loop_;
  std::deque<IoHandler*> waiting_;
  bool armed_ = false;  // the timer
  IoLoop::TimerId timer_{};
  IoLoop::Clock::time_point period_start_{};
  IoLoop::Clock::time_point entered_{};
  IoLoop::Clock::duration spent_{};
};

}  // namespace geocomm::transport
