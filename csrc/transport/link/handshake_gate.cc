#include "transport/link/handshake_gate.h"

#include <algorithm>

#include "transport/link/handshake.h"

namespace geocomm::transport {

bool HandshakeGate::has_time() {
  const auto now = loop_.now();
  if (now - period_start_ >= kPeriod) {
    period_start_ = now;
    spent_ = {};
  }
  return spent_ < kShare;
}

bool HandshakeGate::enter(HalfOpen& one) {
  // Nobody passes those that wait: who asks together with many others is compared with them first.
  if (has_time() && (waiting_.empty() || served_ == &one)) {
    entered_ = loop_.now();
    return true;
  }
  waiting_.push_back(&one);
  arm();
  return false;
}

void HandshakeGate::arm() {
  if (armed_) return;
  armed_ = true;
  timer_ = loop_.add_timer(has_time() ? loop_.now() : period_start_ + kPeriod, [this] { serve(); });
}

void HandshakeGate::serve() {
  armed_ = false;
  while (!waiting_.empty() && has_time()) {
    const auto first =
        std::min_element(waiting_.begin(), waiting_.end(),
                         [](const HalfOpen* a, const HalfOpen* b) { return a->goes_before(*b); });
    HalfOpen* const one = *first;
    waiting_.erase(first);
    served_ = one;
    one->on_ready(0);
    served_ = nullptr;
  }
  if (!waiting_.empty()) arm();
}

}  // namespace geocomm::transport
