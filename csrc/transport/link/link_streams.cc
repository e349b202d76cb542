// How many data streams a TcpChannel has, and how it gets more. All on the IO thread, but for expect_rate().
#include <algorithm>
#include <utility>

#include "core/log.h"
#include "transport/io/link_stats.h"
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

void TcpChannel::plan_streams() {
  const Stream* const control = streams_.control();
  if (control == nullptr || !may_add_streams()) return;
  std::uint64_t stalled = 0;
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    if (const Stream* const stream = streams_.open(i)) {
      const TcpCounters counters = read_link_stats(stream->fd()).counters;
      stalled += counters.stalled_by_receiver_us + counters.stalled_by_send_buffer_us;
    }
  }
  limited_ = stalled > stalled_us_ + kLimitedUs;
  stalled_us_ = stalled;
  path_rtt_ = std::chrono::microseconds(read_link_stats(control->fd()).least_rtt_us);
  const std::uint64_t window = window_of(context_->buffers.send_bytes, peer_receive_buffer_);
  planned_streams_ = streams_for(expected_rate_, path_rtt_, window, first_streams_);
  want_streams(planned_streams_);
  share_pacing();
}

int TcpChannel::used_streams() const {
  if (!may_add_streams()) return data_streams();
  return trial_.useful() > 0 ? std::max(trial_.useful(), planned_streams_)
                             : std::max({wanted_streams_, first_streams_, 1});
}

bool TcpChannel::is_spare(std::size_t stream) const {
  return stream > static_cast<std::size_t>(used_streams()) && carrying_streams() == used_streams();
}

int TcpChannel::carrying_streams() const {
  const int used = used_streams();
  int open = 0;
  int open_of_used = 0;
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    if (streams_.open(i) == nullptr) continue;
    ++open;
    if (i <= static_cast<std::size_t>(used)) ++open_of_used;
  }
  return open_of_used == used ? used : open;
}

// Of the cap on the channel's rate, what each data stream may take; 0: there is no cap.
std::uint64_t TcpChannel::share_of_pacing() const {
  const std::uint64_t cap_bps = context_->options.max_pacing_bps;
  if (cap_bps == 0) return 0;
  return std::max<std::uint64_t>(cap_bps / 8 / static_cast<std::uint64_t>(std::max(carrying_streams(), 1)),
                                 1);
}

// When it may have changed which streams carry segments.
void TcpChannel::share_pacing() {
  const std::uint64_t share = share_of_pacing();
  for (std::size_t i = 1; share > 0 && i < streams_.size(); ++i) {
    if (const Stream* const stream = streams_.open(i)) set_max_pacing(stream->fd(), share);
  }
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
  streams_.set_data_streams(static_cast<std::uint16_t>(count));
  for (int i = before + 1; i <= count && phase_ == Phase::Ready; ++i) {
    redialer_.dial(static_cast<std::uint16_t>(i), tuning());
  }
}

}  // namespace geocomm::transport
