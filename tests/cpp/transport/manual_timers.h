// Timers that stand still until a test moves them on.
#pragma once

#include <algorithm>
#include <chrono>

#include "transport/io/timers.h"

namespace geocomm::transport::testing {

class ManualTimers final : public Timers {
 public:
  Time now() const override { return now_; }
  // Runs what becomes due, in order, each at its own time.
  void advance(Clock::duration time) {
    const Time end = now_ + time;
    for (auto next = next_timer(); next && *next <= end; next = next_timer()) {
      now_ = std::max(now_, *next);
      run_timers_until(now_);
    }
    now_ = end;
  }

 private:
  Time now_{std::chrono::hours(1)};
};

}  // namespace geocomm::transport::testing
