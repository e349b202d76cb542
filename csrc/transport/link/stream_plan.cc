#include "transport/link/stream_plan.h"

#include <algorithm>
#include <cmath>

#include "transport/wire/wire.h"

namespace geocomm::transport {

namespace {

constexpr double kStreamBytesPerSec = 3e9 / 8;
constexpr double kGain = 1.1;
// Between two acknowledgements: with more, the channel was not busy, whatever it looked like.
constexpr StreamTrial::Seconds kLongestStep{1};
constexpr StreamTrial::Seconds kLeastSettling{1};
constexpr StreamTrial::Seconds kLeastMeasured{2};
constexpr StreamTrial::Seconds kPatience{60};
constexpr double kSettlingRtts = 10;
constexpr double kMeasuredRtts = 20;
// Of a heartbeat's interval.
constexpr std::uint64_t kLimitedUs = 300'000;

}  // namespace

std::uint64_t window_of(std::uint64_t send_buffer_bytes, std::uint64_t receive_buffer_bytes) {
  if (send_buffer_bytes == 0 || receive_buffer_bytes == 0)
    return std::max(send_buffer_bytes, receive_buffer_bytes) / 2;
  return std::min(send_buffer_bytes, receive_buffer_bytes) / 2;
}

int streams_for(double bytes_per_sec, std::chrono::microseconds rtt, std::uint64_t window_bytes, int least) {
  double wanted = std::ceil(bytes_per_sec / kStreamBytesPerSec);
  if (window_bytes > 0) {
    const double under_way = bytes_per_sec * std::chrono::duration<double>(rtt).count();
    wanted = std::max(wanted, std::ceil(under_way / static_cast<double>(window_bytes)));
  }
  return static_cast<int>(
      std::clamp(wanted, static_cast<double>(least), static_cast<double>(kMaxDataStreams)));
}

int streams_of_channel(int streams, int channels) {
  channels = std::max(channels, 1);
  return std::max((streams + channels - 1) / channels, 1);
}

void StreamTrial::begin(int streams) {
  streams_ = streams;
  settling_ = measured_ = Seconds(0);
  bytes_ = 0;
}

int StreamTrial::acknowledged(std::uint64_t bytes, bool busy, bool limited, int streams,
                              std::chrono::microseconds rtt, Clock::time_point now) {
  if (over_ || rtt < kLeastRtt) return streams;
  const bool counts = was_busy_ && now - last_ <= kLongestStep;
  const Seconds step = now - last_;
  last_ = now;
  was_busy_ = busy;
  if (streams != streams_) {
    // Others than were asked for: lost ones, or what the formula wanted meanwhile.
    if (streams_ != 0 && streams < streams_) return streams_;
    if (streams > streams_) base_ = 0;
    begin(streams);
  }
  if (!counts) return streams;
  const Seconds round_trip = rtt;
  if (settling_ < std::max(kLeastSettling, kSettlingRtts * round_trip)) {
    settling_ += step;
    return streams;
  }
  measured_ += step;
  bytes_ += static_cast<double>(bytes);
  if (measured_ < std::max(kLeastMeasured, kMeasuredRtts * round_trip)) return streams;
  waited_ += settling_ + measured_;
  if (base_ == 0 && !limited && waited_ < kPatience) {
    begin(streams);
    return streams;
  }
  const double rate = bytes_ / measured_.count();
  const bool gained = rate >= kGain * base_;
  if (!gained || streams >= static_cast<int>(kMaxDataStreams)) {
    over_ = true;
    useful_ = gained ? streams : streams / 2;
    return streams;
  }
  base_ = rate;
  begin(std::min(2 * streams, static_cast<int>(kMaxDataStreams)));
  return streams_;
}

void StreamPlanner::peer_wants(int streams) {
  peer_wanted_ = std::max(peer_wanted_, streams);
}

void StreamPlanner::look(const PathFacts& facts) {
  limited_ = facts.stalled_us > stalled_us_ + kLimitedUs;
  stalled_us_ = facts.stalled_us;
  path_rtt_ = facts.rtt;
  planned_ = streams_for(expected_rate_, path_rtt_, facts.window_bytes, first_);
  wanted_ = std::max(wanted_, planned_);
}

void StreamPlanner::acknowledged(std::uint64_t bytes, bool busy, int open,
                                 StreamTrial::Clock::time_point now) {
  wanted_ =
      std::max(wanted_, trial_.acknowledged(bytes, busy, limited_, std::min(open, used()), path_rtt_, now));
}

int StreamPlanner::wanted() const {
  return std::max(wanted_, peer_wanted_);
}

int StreamPlanner::used() const {
  return trial_.useful() > 0 ? std::max(trial_.useful(), planned_) : std::max({wanted_, first_, 1});
}

}  // namespace geocomm::transport
