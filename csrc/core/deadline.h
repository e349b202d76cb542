// A point in time after which a wait gives up. Every wait in geocomm takes one.
#pragma once

#include <chrono>

namespace geocomm::core {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::milliseconds timeout) { return Deadline(Clock::now() + timeout); }
  static Deadline at(Clock::time_point when) { return Deadline(when); }

  bool expired() const { return Clock::now() >= when_; }
  Clock::time_point when() const { return when_; }
  // Never negative.
  std::chrono::milliseconds remaining() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(when_ - Clock::now());
    return left.count() > 0 ? left : std::chrono::milliseconds(0);
  }
  Deadline earlier(Deadline other) const { return Deadline(when_ < other.when_ ? when_ : other.when_); }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

}  // namespace geocomm::core
