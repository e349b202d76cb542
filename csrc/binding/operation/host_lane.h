// HostLane: the steps of one group's operations on threads.
//
//   pre       inside the site, before the WAN   one after the other, in order of issue
//   exchange  over the WAN                      many at once, in any order
//   post      inside the site, after the WAN    one after the other, in order of issue
//
// Gloo and NCCL match operations by order of issue, and WAN exchanges end in any order: so the steps inside
// the site have a FIFO and an inner group each, and operation k+1's `pre` runs under operation k's exchange.
// An operation that has the lane to itself may go through all its steps on one thread of the executor.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>

#include "binding/operation/operation.h"
#include "core/deadline.h"
#include "core/executor.h"

namespace geocomm::binding {

// Operations of a group that may be on the WAN at the same time; further ones wait in order. Each holds a
// thread and the memory of its frames; sixteen keep a long path busy with buckets of a few MB (25 MB of
// DDP's, 100 ms and 10 Gbit/s: five), and leave room for those that wait for a site which is late.
constexpr std::size_t kMaxConcurrentExchanges = 16;

class HostLane {
 public:
  // `executor` outlives the lane and its operations, and keeps a thread.
  explicit HostLane(core::GrowingExecutor& executor, std::size_t most_exchanges = kMaxConcurrentExchanges);
  // Destroying it lets running steps end by themselves; does not wait.
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  // Runs nothing on the calling thread. Where the system has no further thread, it waits for one.
  void submit(const std::shared_ptr<Operation>& operation, Runs runs);
  // From now on every step in order that has not begun is skipped, and its operation ends with `why`.
  void fail(std::exception_ptr why);
  // Whether all operations in order were done by the deadline.
  bool wait_idle(core::Deadline deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace geocomm::binding
