#include "transport/link/stream_set.h"

#include <algorithm>
#include <utility>

namespace geocomm::transport {

namespace {
constexpr std::chrono::milliseconds kShortLife{500};
constexpr std::chrono::milliseconds kFirstPause{20};
constexpr unsigned kMostDoublings = 3;
}  // namespace

void StreamSet::set_data_streams(std::uint16_t count) {
  std::lock_guard lock(mutex_);
  slots_.resize(std::max<std::size_t>(slots_.size(), count + 1U));
}

void StreamSet::begin_anew() {
  std::lock_guard lock(mutex_);
  slots_.clear();
  incomplete_since_.reset();
}

Stream* StreamSet::open(std::size_t index) const {
  return index < slots_.size() ? slots_[index].stream.get() : nullptr;
}

std::size_t StreamSet::open_count() const {
  return static_cast<std::size_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.stream != nullptr; }));
}

bool StreamSet::all_were_open() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.connected_before; });
}

std::uint32_t StreamSet::generation(std::uint16_t index) const {
  return index < slots_.size() ? slots_[index].generation : 0;
}

Stream& StreamSet::put(std::unique_ptr<Stream> stream) {
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[stream->index()];
  slot.generation = std::max(slot.generation, stream->carrier().generation);
  if (std::exchange(slot.connected_before, true)) ++resumes_;
  slot.opened = loop_->now();
  slot.stream = std::move(stream);
  note_complete();
  return *slot.stream;
}

// A stream that never had a connection has not lost one.
void StreamSet::note_complete() {
  if (!incomplete_since_) return;
  const bool complete = std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.connected_before && slot.stream == nullptr;
  });
  if (!complete) return;
  ++outages_;
  last_outage_ = loop_->now() - *std::exchange(incomplete_since_, std::nullopt);
  outage_time_ += last_outage_;
}

void StreamSet::close(Stream& stream, Timers::Time last_contact) {
  std::unique_ptr<Stream> gone;
  {
    std::lock_guard lock(mutex_);
    if (!stream.is_open()) return;
    const LinkStats link = read_link_stats(stream.fd());
    closed_.counters += link.counters;
    closed_.congestion_control = link.congestion_control;
    Slot& slot = slots_[stream.index()];
    slot.short_lives = loop_->now() - slot.opened < kShortLife ? slot.short_lives + 1 : 0;
    gone = std::move(slot.stream);
    gone->close();
    if (!incomplete_since_) incomplete_since_ = last_contact;
  }
  loop_->post([gone = std::shared_ptr<Stream>(std::move(gone))] {});
}

void StreamSet::close_all(Timers::Time last_contact) {
  for (const Slot& slot : slots_) {
    if (slot.stream) close(*slot.stream, last_contact);
  }
}

std::chrono::milliseconds StreamSet::pause_before_redial(std::uint16_t index) const {
  return kFirstPause * (1 << std::min(slots_[index].short_lives, kMostDoublings));
}

void StreamSet::add_stats(ChannelStats& stats) const {
  std::lock_guard lock(mutex_);
  stats.resumes = resumes_;
  stats.outages = outages_;
  stats.outage_us =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(outage_time_).count());
  stats.tcp = closed_.counters;
  stats.congestion_control = closed_.congestion_control;
  for (const Slot& slot : slots_) {
    if (!slot.stream) continue;
    const LinkStats link = read_link_stats(slot.stream->fd());
    stats.tcp += link.counters;
    stats.tcp_now += link.gauges;
    stats.congestion_control = link.congestion_control;
    stats.cipher = slot.stream->cipher();
    if (stats.rtt_us == 0) stats.rtt_us = link.rtt_us;
    if (slot.stream->index() == 0) continue;
    ++stats.streams;
    stats.transport = slot.stream->transport();
  }
}

}  // namespace geocomm::transport
