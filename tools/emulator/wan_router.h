// Moves packets between the sites' TUN devices as the links between them allow. Per device one thread reads
// and one delivers in the order of due times, so that a destination's links may have different delays.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <thread>
#include <vector>

#include "core/status.h"
#include "core/thread.h"
#include "emulator/wan_fd.h"
#include "emulator/wan_link.h"

namespace geocomm::emulator {

// A packet delivered later than this was not delayed by the emulated WAN but by a machine that is too busy:
// the run that it belongs to measures the machine.
inline constexpr std::chrono::milliseconds kLatenessLimit{5};

struct LinkSnapshot {
  LinkParams params;
  LinkCounters counters;
  std::chrono::nanoseconds max_lateness{0};
  std::uint64_t late_packets = 0;  // delivered more than kLatenessLimit after they were due
};

// The address of a site is 10.91.<site>.1; all of 10.91.<site>.0/24 is routed to it.
inline constexpr std::size_t kMaxSites = 64;
std::uint32_t site_address(std::size_t site);  // host byte order
std::optional<std::size_t> site_of_address(std::uint32_t address, std::size_t site_count);

class Router {
 public:
  // `links` has tuns.size()^2 entries, link (src, dst) at src * tuns.size() + dst; the diagonal is unused.
  Router(std::vector<UniqueFd> tuns, const std::vector<LinkParams>& links, std::uint64_t seed);
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Starts the threads. Driver: the kernel gave no event descriptor. Call once.
  core::Status start();
  // Ends the threads; what is in flight is lost. Idempotent.
  void stop();

  // Any thread. Precondition: src != dst, both valid, and params.validate().is_ok().
  void change(std::size_t src, std::size_t dst, const LinkParams& params);
  LinkSnapshot snapshot(std::size_t src, std::size_t dst) const;
  // Frames that no link took: not IPv4, malformed, or to an address that is no other site's.
  std::uint64_t unroutable_packets() const { return unroutable_packets_; }

 private:
  struct GuardedLink {
    GuardedLink(const LinkParams& params, std::uint64_t seed) : link(params, seed) {}
    mutable std::mutex mutex;
    Link link;  // guarded by mutex
    std::atomic<std::int64_t> max_lateness_ns{0};
    std::atomic<std::uint64_t> late_packets{0};
  };
  struct Delivery {
    Clock::time_point due;
    std::uint64_t order = 0;  // keeps packets that are due at once in the order of their admission
    GuardedLink* link = nullptr;
    std::vector<std::byte> bytes;
    bool operator>(const Delivery& other) const {
      return due != other.due ? due > other.due : order > other.order;
    }
  };
  struct Port {
    UniqueFd tun;
    std::mutex mutex;
    std::condition_variable changed;
    std::priority_queue<Delivery, std::vector<Delivery>, std::greater<>> pending;  // guarded by mutex
    std::uint64_t next_order = 0;                                                  // guarded by mutex
    bool stopping = false;                                                         // guarded by mutex
  };

  GuardedLink& link(std::size_t src, std::size_t dst) const { return *links_[src * ports_.size() + dst]; }
  void read_loop(std::size_t src);
  void deliver_loop(std::size_t dst);
  void route(std::size_t src, std::span<const std::byte> bytes, std::vector<SegmentRun>& runs);

  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<std::unique_ptr<GuardedLink>> links_;
  std::atomic<std::uint64_t> unroutable_packets_{0};
  UniqueFd stop_event_;
  std::vector<std::thread> threads_;
};

}  // namespace geocomm::emulator
