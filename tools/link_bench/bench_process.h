// A measurement on this machine: this process and a child, each with one end of a link.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "core/thread.h"

namespace geocomm::link_bench {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string what;                // "tcp", "tls" (bare loops), "channel"
  std::string keys_a, keys_b;      // folders of keys of the two ends; empty: plaintext
  std::string congestion;          // of the bare loops; empty: what channels take on loopback
  int streams = 0;                 // of a channel; 0: its default
  std::optional<int> tls_threads;  // of a channel; none: as a rank that has the machine to itself
  bool both_ways = false;          // both ends send
  std::chrono::duration<double> warmup{0.5};
  std::chrono::duration<double> time{2};
};

// Ends the process with a message.
[[noreturn]] void stop(const std::string& why);
// A thread, or the process ends with a message.
std::thread bench_thread(core::Task body);

// The other process, as either of the two sees it. Both calls end the process if the other one is gone.
class Partner {
 public:
  explicit Partner(int fd) : fd_(fd) {}
  void tell(const void* data, std::size_t bytes) const;
  void hear(void* data, std::size_t bytes) const;
  // Both have come so far.
  void meet() const;

 private:
  int fd_;
};

// When arrivals count. The clock is the same in both processes.
struct Window {
  Clock::time_point begin;
  Clock::time_point end;
};

struct Moved {
  double bytes = 0;
  double seconds = 0;
};

// Counts what arrives inside the window; one thread at a time.
class Meter {
 public:
  explicit Meter(const Window& window) : window_(window) {}
  // False once the window is over.
  bool count(std::size_t bytes);
  const Moved& moved() const { return moved_; }

 private:
  const Window window_;
  Clock::time_point first_{};
  Moved moved_;
};

// One end, connected.
class End {
 public:
  virtual ~End() = default;
  // Sends, if this end does, and receives, on threads of its own, at least until the window is over.
  virtual void start(const Window& window) = 0;
  // After the window. Nothing if this end only sends. Both ends are still there.
  virtual Moved received() = 0;
};
// `parent`: the end in the parent, which always sends.
using MakeEnd =
    std::function<std::unique_ptr<End>(const Settings& settings, bool parent, const Partner& partner)>;
// What the kernel, and OpenSSL on top of it, move with nothing else in the way: a thread that sends in a loop
// over one blocking connection, and one that receives.
std::unique_ptr<End> make_bare_end(const Settings& settings, bool parent, const Partner& partner);
// A channel of the transport between the two processes: operations of 64 chunks of 1 MiB, as an exchange of
// collectives sends them. The first operation is compared with what was sent.
std::unique_ptr<End> make_channel_end(const Settings& settings, bool parent, const Partner& partner);

struct Outcome {
  Moved to_child;
  Moved to_parent;  // nothing unless both ends send
  // CPU seconds of each process, inside the window.
  double parent_cpu = 0;
  double child_cpu = 0;
};
// Forks; returns in the parent only.
Outcome measure(const Settings& settings, const MakeEnd& make_end);

}  // namespace geocomm::link_bench
