#include "transport/handshake_gate.h"

namespace geocomm::transport {

bool HandshakeGate::enter(IoHandler& handler) {
  entered_ = IoLoop::Clock::now();
  if (entered_ - period_start_ >= kPeriod) {
    period_start_ = entered_;
    spent_ = {};
  }
  if (spent_ < kShare) return true;
  waiting_.push_back(&handler);
  arm();
  return false;
}

void HandshakeGate::arm() {
  if (armed_) return;
  armed_ = true;
  timer_ = loop_.add_timer(period_start_ + kPeriod, [this] { next_period(); });
}

void HandshakeGate::next_period() {
  armed_ = false;
  // Until the share is used up: who is told to wait again stands at the end.
  for (std::size_t turns = waiting_.size(); turns > 0 && !waiting_.empty() && !armed_; --turns) {
    IoHandler* handler = waiting_.front();
    waiting_.pop_front();
    handler->on_ready(0);
  }
  if (!waiting_.empty()) arm();
}

}  // namespace geocomm::transport
