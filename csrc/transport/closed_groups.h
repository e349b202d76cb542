// The groups of this process that have ended: what still comes for them is thrown away. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace geocomm::transport {

class ClosedGroups {
 public:
  void add(std::uint64_t group) {
    std::lock_guard lock(mutex_);
    groups_.insert(group);
  }
  bool contains(std::uint64_t group) const {
    std::lock_guard lock(mutex_);
    return groups_.contains(group);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<std::uint64_t> groups_;
};

}  // namespace geocomm::transport
