// The clock, and tasks for later times: IoLoop's, or one that a test moves on by itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace geocomm::transport {

// The IO thread's, but for the clock, which any thread may read.
class Timers {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Task = std::function<void()>;
  using TimerId = std::pair<Time, std::uint64_t>;

  virtual ~Timers() = default;
  virtual Time now() const = 0;
  // now(), as it travels in packets.
  std::uint64_t now_ns() const {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now().time_since_epoch()).count());
  }

  // Runs `task` once, at `when` or soon after.
  TimerId add_timer(Time when, Task task) {
    const TimerId id{when, next_timer_++};
    timers_.emplace(id, std::move(task));
    return id;
  }
  TimerId add_timer_in(Clock::duration time, Task task) { return add_timer(now() + time, std::move(task)); }
  // Nothing if it has run, is running, or never was.
  void cancel_timer(TimerId id) { timers_.erase(id); }

 protected:
  // Of the timer that is due first.
  std::optional<Time> next_timer() const {
    return timers_.empty() ? std::nullopt : std::optional(timers_.begin()->first.first);
  }
  // In their order, also those that become due by what the others add.
  void run_timers_until(Time until) {
    while (!timers_.empty() && timers_.begin()->first.first <= until) {
      const auto timer = timers_.extract(timers_.begin());
      timer.mapped()();
    }
  }

 private:
  std::map<TimerId, Task> timers_;
  std::uint64_t next_timer_ = 0;
};

}  // namespace geocomm::transport
