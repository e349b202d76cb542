// How many data streams a link has, which of them carry segments, and how it gets more.
#include <algorithm>
#include <utility>

#include "core/log.h"
#include "transport/io/link_stats.h"
#include "transport/link/link.h"

namespace geocomm::transport {

void Link::expect_rate(double bytes_per_sec) {
  planner_.expect_rate(bytes_per_sec);
  if (is_up()) plan_streams();
}

std::uint16_t Link::data_streams() const {
  return static_cast<std::uint16_t>(std::max<std::size_t>(streams_.size(), 2) - 1);
}

void Link::plan_streams() {
  const Stream* const control = streams_.control();
  if (control == nullptr || !may_add_streams()) return;
  std::uint64_t stalled = 0;
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    if (const Stream* const stream = streams_.open(i)) {
      const TcpCounters counters = read_link_stats(stream->fd()).counters;
      stalled += counters.stalled_by_receiver_us + counters.stalled_by_send_buffer_us;
    }
  }
  const int before = planner_.wanted_here();
  planner_.look({.rtt = std::chrono::microseconds(read_link_stats(control->fd()).least_rtt_us),
                 .window_bytes = window_of(context_.buffers.send_bytes, peer_receive_buffer_),
                 .stalled_us = stalled});
  follow_plan(before);
  share_pacing();
}

bool Link::is_spare(std::size_t stream) const {
  return stream > static_cast<std::size_t>(used_streams()) && carrying_streams() == used_streams();
}

int Link::carrying_streams() const {
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
std::uint64_t Link::share_of_pacing() const {
  const std::uint64_t cap_bps = context_.options.max_pacing_bps;
  if (cap_bps == 0) return 0;
  return std::max<std::uint64_t>(cap_bps / 8 / static_cast<std::uint64_t>(std::max(carrying_streams(), 1)),
                                 1);
}

// When it may have changed which streams carry segments.
void Link::share_pacing() {
  const std::uint64_t share = share_of_pacing();
  for (std::size_t i = 1; share > 0 && i < streams_.size(); ++i) {
    if (const Stream* const stream = streams_.open(i)) set_max_pacing(stream->fd(), share);
  }
}

void Link::follow_plan(int before) {
  if (planner_.wanted_here() <= before) return;
  if (!redialer_.dials() && planner_.wanted_here() > data_streams()) return send_heartbeat();
  open_more_streams();
}

// As many as the side that wants more of them does. They are of use one by one, as they connect.
void Link::open_more_streams() {
  const int count = planner_.wanted();
  const int before = data_streams();
  if (!is_up() || is_ending() || !redialer_.dials() || !may_add_streams()) return;
  if (count <= before) return;
  core::log(core::LogLevel::Info, name_.get(), ": ", count, " data streams instead of ", before);
  streams_.set_data_streams(static_cast<std::uint16_t>(count));
  for (int i = before + 1; i <= count && is_up(); ++i) {
    redialer_.dial(static_cast<std::uint16_t>(i), tuning());
  }
}

}  // namespace geocomm::transport
