// The groups of this process that have ended: what still comes for them is thrown away. Thread-safe.
//
// Only the latest kMost are remembered, so that a process that makes groups for ever does not grow. What
// comes for an older one is taken for an operation that was not posted yet: it is kept, within the credit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_set>

namespace geocomm::transport {

class ClosedGroups {
 public:
  static constexpr std::size_t kMost = std::size_t{1} << 14;

  void add(std::uint64_t group) {
    std::lock_guard lock(mutex_);
    if (!groups_.insert(group).second) return;
    order_.push_back(group);
    if (order_.size() <= kMost) return;
    groups_.erase(order_.front());
    order_.pop_front();
  }
  bool contains(std::uint64_t group) const {
    std::lock_guard lock(mutex_);
    return groups_.contains(group);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<std::uint64_t> groups_;
  std::deque<std::uint64_t> order_;  // of groups_, the oldest first
};

}  // namespace geocomm::transport
