// The reliable control packets of a link (Grant, Close), both ways: numbered from 1, kept until the peer
// has them, sent again in order on a new control stream, taken once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "core/status.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// push() is for any thread, all else for the IO thread.
class ControlLog {
 public:
  // Nothing follows a Close: what is pushed after it is dropped, since the peer, whose data may still come,
  // needs no grants any more. False if it was dropped.
  bool push(WireHeader header);

  // A new control stream, over which the peer has said that it has the first `received` packets: the others
  // are to be sent again. CorruptData if that cannot be.
  core::Status restart(std::uint64_t received);
  // Adds the packets that this control stream has not been given yet.
  void take_unsent(std::vector<WireHeader>& out);
  // The peer has the first `received` packets. CorruptData if that cannot be.
  core::Status acknowledge(std::uint64_t received);
  bool all_acknowledged() const;
  // A peer that acknowledges nothing must not take all memory.
  bool overflows() const;

  // A packet came: true if it is new. CorruptData if one before it is missing.
  core::Result<bool> receive(std::uint64_t number);
  std::uint64_t received() const { return received_; }

 private:
  core::Status drop(std::uint64_t received);

  mutable std::mutex mutex_;        // guards packets_, first_, unsent_, has_close_
  std::deque<WireHeader> packets_;  // not acknowledged
  std::uint64_t first_ = 1;         // number of packets_[0]
  std::size_t unsent_ = 0;          // packets_ from here on wait for the control stream
  bool has_close_ = false;
  std::uint64_t received_ = 0;
};

}  // namespace geocomm::transport
