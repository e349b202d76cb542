// How many data streams a TcpChannel has, and how it gets more. All on the IO thread, but for expect_rate().
#include <algorithm>
#include <utility>

#include "core/log.h"
#include "transport/link_stats.h"
#include "transport/tcp_channel.h"

namespace geocomm::transport {

namespace {

// Of a heartbeat's interval.
constexpr std::uint64_t kLimitedUs = 300'000;

}  // namespace

void TcpChannel::expect_rate(double bytes_per_sec) {
  context_->loop->post([self = shared_from_this(), bytes_per_sec] {
    self->expected_rate_ = bytes_per_sec;
    if (self->phase_ == Phase::Ready) self->plan_streams();
  });
}

std::uint16_t TcpChannel::data_streams() const {
  return static_cast<std::uint16_t>(std::max<std::size_t>(streams_.size(), 2) - 1);
}

// The cap on the channel's rate is shared out anew.
void TcpChannel::set_data_streams(std::uint16_t count) {
  streams_.set_data_streams(count);
  const std::uint64_t pacing = tuning().max_pacing_bytes_per_sec;
  for (std::size_t i = 1; pacing > 0 && i < streams_.size(); ++i) {
    if (const Stream* const stream = streams_.open(i)) set_max_pacing(stream->fd(), pacing);
  }
}

void TcpChannel::plan_streams() {
  const Stream* const control = streams_.control();
  if (control == nullptr || !may_add_streams()) return;
  std::uint64_t stalled = 0;
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    if (const Stream* const stream = streams_.open(i)) {
      const LinkStats stats = read_link_stats(stream->fd());
      stalled += stats.stalled_by_receiver_us + stats.stalled_by_send_buffer_us;
    }
  }
  limited_ = stalled > stalled_us_ + kLimitedUs;
  stalled_us_ = stalled;
  path_rtt_ = std::chrono::microseconds(read_link_stats(control->fd()).least_rtt_us);
  const std::uint64_t window = window_of(context_->buffers.send_bytes, peer_receive_buffer_);
  planned_streams_ = streams_for(expected_rate_, path_rtt_, window, first_streams_);
  want_streams(planned_streams_);
}

int TcpChannel::used_streams() const {
  if (!may_add_streams()) return data_streams();
  return trial_.useful() > 0 ? std::max(trial_.useful(), planned_streams_)
                             : std::max(wanted_streams_, first_streams_);
}

bool TcpChannel::is_spare(std::size_t stream) const {
  const auto used = static_cast<std::size_t>(used_streams());
  if (stream <= used) return false;
  for (std::size_t i = 1; i <= used; ++i) {
    if (streams_.open(i) == nullptr) return false;
  }
  return true;
}

void TcpChannel::want_streams(int count) {
  if (count <= wanted_streams_) return;
  wanted_streams_ = count;
  if (!redialer_.dials() && count > data_streams()) return send_heartbeat();
  open_more_streams();
}

// As many as the side that wants more of them does. They are of use one by one, as they connect.
void TcpChannel::open_more_streams() {
  const int count = std::max(wanted_streams_, peer_wanted_streams_);
  const int before = data_streams();
  if (phase_ != Phase::Ready || closing_ || !redialer_.dials() || !may_add_streams()) return;
  if (count <= before) return;
  core::log(core::LogLevel::Info, peer(), ": ", count, " data streams instead of ", before);
  set_data_streams(static_cast<std::uint16_t>(count));
  for (int i = before + 1; i <= count && phase_ == Phase::Ready; ++i) {
    redialer_.dial(static_cast<std::uint16_t>(i), tuning());
  }
}

}  // namespace geocomm::transport
