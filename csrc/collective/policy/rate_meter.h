// How fast data came from each peer while it had more on the way: the rate of a link, read off the operations
// that ran anyway.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace geocomm::collective {

struct PeerRate {
  int rank = 0;
  std::uint64_t bytes = 0;
  double seconds = 0.0;  // in which those bytes came
};

// Thread-safe.
class RateMeter {
 public:
  using Clock = std::chrono::steady_clock;

  // A chunk of `bytes` came from `rank`. `begins`: the first of several of its operation, `ends`: the last.
  // The time since the chunk before counts only if an operation of that peer was under way then: what lies
  // between operations, and the latency of the first chunk, is no transfer.
  void arrived(int rank, std::size_t bytes, bool begins, bool ends, Clock::time_point now = Clock::now());
  // Since the last call of take(); peers from which nothing countable came are left out.
  std::vector<PeerRate> take();

 private:
  struct Peer {
    PeerRate sum;
    Clock::time_point last;
    int under_way = 0;  // operations
  };
  std::mutex mutex_;  // guards peers_
  std::map<int, Peer> peers_;
};

}  // namespace geocomm::collective
