#include "binding/operation/exposed_time.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <optional>

namespace geocomm::binding {
namespace {

thread_local bool t_left_out = false;

// What a thread of this process has run since it began, and stood in line for a core (Linux,
// Documentation/scheduler/sched-stats.rst); nullopt: it has ended.
std::optional<std::chrono::nanoseconds> busy_time(pid_t thread) {
  // The clock of a thread by its id (clock_getcpuclockid does the same for processes): what /proc says of the
  // running is as old as the last tick.
  const auto clock = static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3U) | 6U);
  timespec ran{};
  if (clock_gettime(clock, &ran) != 0) return std::nullopt;
  unsigned long long in_line_ns = 0;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", static_cast<int>(thread));
  if (std::FILE* const file = std::fopen(path, "re")) {  // a kernel may come without
    if (std::fscanf(file, "%*u %llu", &in_line_ns) != 1) in_line_ns = 0;
    std::fclose(file);
  }
  return std::chrono::seconds(ran.tv_sec) + std::chrono::nanoseconds(ran.tv_nsec) +
         std::chrono::nanoseconds(in_line_ns);
}

}  // namespace

void ExposedTime::leave_out_this_thread() {
  t_left_out = true;
}

std::int64_t ExposedTime::nanoseconds() const {
  std::lock_guard lock(mutex_);
  return total_.count();
}

void ExposedTime::wait_begins() {
  if (t_left_out) return;
  std::lock_guard lock(mutex_);
  Watched& watched = watched_[gettid()];
  if (watched.futures > 0 && watched.waits == 0) count(gettid(), watched);
  if (watched.waits++ == 0) watched.seen = Clock::now();
}

void ExposedTime::wait_ends() {
  if (t_left_out) return;
  std::lock_guard lock(mutex_);
  const auto found = watched_.find(gettid());
  Watched& watched = found->second;
  count(found->first, watched);
  if (--watched.waits > 0) return;
  if (watched.futures == 0) {
    watched_.erase(found);
  } else {
    watched.busy_when_seen = busy_time(found->first).value_or(std::chrono::nanoseconds{});
  }
}

pid_t ExposedTime::future_taken() {
  if (t_left_out) return 0;
  const pid_t thread = gettid();
  std::lock_guard lock(mutex_);
  Watched& watched = watched_[thread];
  if (watched.futures++ == 0 && watched.waits == 0) {
    watched.seen = Clock::now();
    watched.busy_when_seen = busy_time(thread).value_or(std::chrono::nanoseconds{});
  }
  return thread;
}

void ExposedTime::ended(pid_t thread) {
  if (thread == 0) return;
  std::lock_guard lock(mutex_);
  const auto found = watched_.find(thread);
  count(thread, found->second);
  if (--found->second.futures == 0 && found->second.waits == 0) watched_.erase(found);
}

void ExposedTime::count(pid_t thread, Watched& watched) {
  // Before the clock, and after it where a time begins: what passes between never counts as busy.
  const auto busy = watched.waits == 0 ? busy_time(thread) : watched.busy_when_seen;
  if (!busy) return;  // a thread that has ended waits for nothing
  const auto now = Clock::now();
  std::chrono::nanoseconds still = now - watched.seen;
  if (watched.waits == 0) still -= *busy - watched.busy_when_seen;
  watched.busy_when_seen = *busy;
  total_ += std::max(std::chrono::nanoseconds{}, still);
  watched.seen = now;
}

}  // namespace geocomm::binding
