// What the last operations of the process went through, and when. Also those that are under way: who has not
// come yet is seen here while the others wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collective/layout/op_kind.h"
#include "core/dtype.h"

namespace geocomm::collective {

// All times in ns of the machine's steady clock (CLOCK_MONOTONIC); 0: not yet, or never.
struct OpTimes {
  struct Peer {
    int rank = 0;      // in the group
    std::string name;  // as its channel calls it
    std::uint64_t first_in = 0;
    std::uint64_t last_in = 0;
    bool sums = false;  // it sends sums of its region, for which it waits for that
  };
  std::uint64_t number = 0;  // in the process, from 1
  std::uint64_t group = 0;
  std::int64_t seq = 0;  // in the group; SendRecv has numbers of its own
  OpKind kind = OpKind::AllReduce;
  core::DType dtype = core::DType::UInt8;
  std::uint64_t elements = 0;  // 0: ranks have different ones
  std::string codec;           // as it is spelt; empty: it moves bytes
  std::uint64_t raw_bytes_sent = 0;
  std::uint64_t wire_bytes_sent = 0;
  std::uint64_t raw_bytes_received = 0;
  std::uint64_t wire_bytes_received = 0;
  std::uint64_t issued = 0;       // the program called it
  std::uint64_t began = 0;        // its part between sites, after that inside the site
  std::uint64_t encoded = 0;      // the last frame was made
  std::uint64_t exchanged = 0;    // its part between sites is over
  std::uint64_t ended = 0;        // all of it is, with an error too
  std::uint64_t wait_began = 0;   // the program stood still for it, the first time
  std::uint64_t wait_ended = 0;   // the last time
  std::uint64_t coding_time = 0;  // of all threads together: frames made, decoded and summed
  bool failed = false;
  std::vector<Peer> peers;  // those that send anything
};

// One operation. Thread-safe.
class OpRecord {
 public:
  // `times`: what is known before the program has called it.
  explicit OpRecord(OpTimes times) : times_(std::move(times)) {}

  static std::uint64_t now();

  // What the log says.
  void issued(std::uint64_t number);
  // What the operation between sites says; a call may have several, one after the other.
  void begins(const std::string& codec);
  void awaits(int rank, std::string name, bool sums);
  std::uint64_t made_frame(std::uint64_t began);  // the time since then, as the next one
  std::uint64_t used_frame(std::uint64_t began);
  void sent(std::uint64_t raw_bytes, std::uint64_t wire_bytes);
  void arrived(int rank, std::uint64_t raw_bytes, std::uint64_t wire_bytes);
  void exchanged();
  // What the call says.
  void ended(bool failed);
  void wait_begins();
  void wait_ends();

  OpTimes times() const;

 private:
  mutable std::mutex mutex_;  // guards times_
  OpTimes times_;
};

// Thread-safe.
class OpLog {
 public:
  static constexpr std::size_t kKept = 4096;

  // Takes the record of an operation that has begun, and gives it its number: from then on it is under way
  // until it says that it has ended.
  void issue(std::shared_ptr<OpRecord> record);
  // Those with a number above `after` that are still kept, in order.
  std::vector<OpTimes> read(std::uint64_t after) const;

 private:
  mutable std::mutex mutex_;  // guards all below
  std::uint64_t issued_ = 0;
  std::deque<std::shared_ptr<OpRecord>> records_;
};

// That of all groups. A forked child has its own.
OpLog& process_op_log();

}  // namespace geocomm::collective
