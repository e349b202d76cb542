// Whether a link is there, and why not any more.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "core/deadline.h"
#include "core/status.h"

namespace geocomm::transport {

// Thread-safe.
class LinkStatus {
 public:
  // Ok while it connects or is connected; else the reason why it has failed or ends.
  core::Status reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }
  // True once connected, an error once there is a reason, false at the deadline.
  core::Result<bool> wait(core::Deadline deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.when(), [&] { return connected_ || !reason_.is_ok(); });
    if (!reason_.is_ok()) return reason_;
    return connected_;
  }
  void set_connected() {
    {
      std::lock_guard lock(mutex_);
      connected_ = true;
    }
    changed_.notify_all();
  }
  // The first one counts.
  void set_reason(const core::Status& reason) {
    {
      std::lock_guard lock(mutex_);
      if (reason_.is_ok()) reason_ = reason;
    }
    changed_.notify_all();
  }
  // This process is about to leave.
  void leave() { leaving_ = true; }
  bool is_leaving() const { return leaving_; }

 private:
  mutable std::mutex mutex_;  // guards connected_ and reason_
  std::condition_variable changed_;
  bool connected_ = false;
  core::Status reason_;
  std::atomic<bool> leaving_{false};
};

}  // namespace geocomm::transport
