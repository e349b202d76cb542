// How much a channel may hold for its peer: twice what the link has under way, as measured.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

namespace geocomm::transport {

class SendWindow {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{2} << 30;

  explicit SendWindow(std::uint64_t least_bytes) : least_bytes_(least_bytes), bytes_(least_bytes) {}

  // The peer has acknowledged `bytes`; `rtt` is the link's, 0 if unknown. True if the window has changed.
  bool acknowledged(std::uint64_t bytes, std::chrono::microseconds rtt, Clock::time_point now) {
    counted_bytes_ += bytes;
    const auto time = std::chrono::duration<double>(now - since_).count();
    if (time < std::max(kInterval, std::chrono::duration<double>(rtt).count())) return false;
    // Across a pause it means nothing; a burst that ends does not shrink the window at once.
    const double rate = time < kPause ? static_cast<double>(counted_bytes_) / time : 0;
    bytes_per_sec_ = std::max(rate, 0.95 * bytes_per_sec_);
    since_ = now;
    counted_bytes_ = 0;
    const double wanted = 2 * bytes_per_sec_ * std::chrono::duration<double>(rtt).count();
    const auto most = std::max(least_bytes_, kMostBytes);
    const auto next = wanted >= static_cast<double>(most)
                          ? most
                          : std::max(least_bytes_, static_cast<std::uint64_t>(wanted));
    return std::exchange(bytes_, next) != next;
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr double kInterval = 0.05;
  static constexpr double kPause = 5;

  const std::uint64_t least_bytes_;
  std::uint64_t bytes_;
  double bytes_per_sec_ = 0;
  std::uint64_t counted_bytes_ = 0;
  Clock::time_point since_ = Clock::now();
};

}  // namespace geocomm::transport
