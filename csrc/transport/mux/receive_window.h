// Which segment numbers of a link have arrived whole, and what of that the peer has not been told yet.
//
// Numbers begin at 1. At most kMaxNumberSpan of them, from the oldest missing one on, are kept: 128 KiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "core/status.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// Not thread-safe: the IO thread's.
class ReceiveWindow {
 public:
  // CorruptData if no honest peer can be at `number` yet.
  core::Status check(std::uint64_t number) const;
  // Precondition of both: check() is Ok.
  bool has(std::uint64_t number) const;
  // It has arrived. False if it had before (which is told to the peer again: it seems not to know).
  bool add(std::uint64_t number);

  // All numbers below have arrived.
  std::uint64_t low() const { return low_; }
  // Everything is to be told again, to a peer that may have missed it.
  void tell_all();
  // Adds what is to be told: a packet for each block of 64 numbers that changed, at least one. Their
  // control_received is left for the caller.
  void collect(std::vector<AckPacket>& out);

 private:
  std::uint64_t first_block() const { return low_ / 64; }

  std::uint64_t low_ = 1;
  std::deque<std::uint64_t> blocks_;  // bits of the blocks from first_block() on
  std::set<std::uint64_t> dirty_;     // block numbers
};

}  // namespace geocomm::transport
