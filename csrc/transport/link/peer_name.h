// What a peer is called in messages.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace geocomm::transport {

// Thread-safe. Every name that it ever had stays where it is.
class PeerName {
 public:
  explicit PeerName(std::string first) : first_(std::move(first)) {}

  const std::string& get() const { return *name_.load(std::memory_order_acquire); }
  // Gives a peer that has come by itself its name; the first one that is not empty counts.
  void set(const std::string& name) {
    std::lock_guard lock(mutex_);
    if (given_ || name.empty()) return;
    given_ = std::make_unique<const std::string>(name);
    name_.store(given_.get(), std::memory_order_release);
  }

 private:
  const std::string first_;
  std::mutex mutex_;  // guards given_
  std::unique_ptr<const std::string> given_;
  std::atomic<const std::string*> name_{&first_};
};

}  // namespace geocomm::transport
