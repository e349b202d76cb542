// When the peer is to be told what has arrived: after 32 segments or 5 ms, whichever comes first.
#pragma once

#include <chrono>
#include <functional>

#include "transport/io/timers.h"

namespace geocomm::transport {

// The IO thread's.
class AckScheduler {
 public:
  // `send_now` makes the owner look at due() soon.
  AckScheduler(Timers& timers, std::function<void()> send_now)
      : timers_(timers), send_now_(std::move(send_now)) {}
  ~AckScheduler() { sent(); }

  // A segment or a reliable control packet has arrived.
  void arrived() {
    ++waiting_;
    if (waiting_ == kMostSegments) return set_due();
    if (waiting_ > 1) return;
    timer_ = timers_.add_timer_in(kLongestWait, [this] { set_due(); });
    timer_runs_ = true;
  }
  void set_due() {
    due_ = true;
    send_now_();
  }
  bool due() const { return due_; }
  // Whether something has arrived that was not told.
  bool waiting() const { return due_ || waiting_ > 0; }
  void sent() {
    if (timer_runs_) timers_.cancel_timer(timer_);
    timer_runs_ = due_ = false;
    waiting_ = 0;
  }

 private:
  static constexpr int kMostSegments = 32;
  static constexpr std::chrono::milliseconds kLongestWait{5};

  Timers& timers_;
  const std::function<void()> send_now_;
  Timers::TimerId timer_{};
  bool timer_runs_ = false;
  bool due_ = false;
  int waiting_ = 0;
};

}  // namespace geocomm::transport
