#include "transport/mux/unacked_segments.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace geocomm::transport {

using core::Status;

namespace {
constexpr std::size_t kMostLookedAt = 1024;
}  // namespace

void UnackedSegments::add(OutSegment& segment, const Carrier& carrier, Clock::time_point now) {
  segment.number = first_ + entries_.size();
  entries_.push_back({segment, carrier, now});
}

UnackedSegments::Entry* UnackedSegments::find(std::uint64_t number) {
  if (number < first_ || number - first_ >= entries_.size()) return nullptr;
  Entry& entry = entries_[number - first_];
  return entry.segment.chunk ? &entry : nullptr;
}

bool UnackedSegments::mark_written(std::uint64_t number) {
  Entry* const entry = find(number);
  return entry != nullptr && !std::exchange(entry->written, true);
}

void UnackedSegments::take(std::uint64_t number, std::vector<Acked>& out) {
  Entry* const entry = find(number);
  if (entry == nullptr) return;
  out.push_back({std::move(entry->segment), entry->written, !entry->again, entry->handed});
  entry->segment.chunk.reset();
  lost_.erase(number);
  ++acked_;
}

Status UnackedSegments::acknowledge(const AckPacket& ack, std::vector<Acked>& out) {
  const std::uint64_t next = first_ + entries_.size();
  const auto top = static_cast<std::uint64_t>(std::bit_width(ack.bits));  // 0: no bit
  if (ack.low > next || (top > 0 && ack.base + top > next)) {
    return core::corrupt("acknowledgement of segment ", top > 0 ? ack.base + top - 1 : ack.low - 1,
                         ", which was never sent (the last one is ", next - 1, ")");
  }
  for (std::uint64_t number = first_; number < ack.low; ++number) take(number, out);
  for (std::uint64_t bits = ack.bits; bits != 0; bits &= bits - 1) {
    take(ack.base + static_cast<std::uint64_t>(std::countr_zero(bits)), out);
  }
  while (!entries_.empty() && !entries_.front().segment.chunk) {
    entries_.pop_front();
    ++first_;
    --acked_;
  }
  return Status::ok();
}

void UnackedSegments::lose(const Carrier& carrier) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].segment.chunk && entries_[i].carrier == carrier) lost_.insert(first_ + i);
  }
}

OutSegment UnackedSegments::resend(const Carrier& carrier, Clock::time_point now) {
  const std::uint64_t number = *lost_.begin();
  lost_.erase(lost_.begin());
  Entry& entry = entries_[number - first_];
  entry.carrier = carrier;
  entry.handed = now;
  entry.again = true;
  return entry.segment;
}

const OutSegment* UnackedSegments::find_slow(Clock::time_point since, const Carrier* carrier) const {
  const std::size_t count = std::min(entries_.size(), kMostLookedAt);
  for (std::size_t i = 0; i < count; ++i) {
    const Entry& entry = entries_[i];
    const bool elsewhere = carrier == nullptr || entry.carrier.stream != carrier->stream;
    if (entry.segment.chunk && !entry.again && elsewhere && entry.handed < since) return &entry.segment;
  }
  return nullptr;
}

OutSegment UnackedSegments::hedge(std::uint64_t number, const Carrier& carrier) {
  Entry& entry = entries_[number - first_];
  entry.carrier = carrier;
  entry.again = true;
  return entry.segment;
}

void UnackedSegments::clear() {
  first_ += entries_.size();
  entries_.clear();
  lost_.clear();
  acked_ = 0;
}

}  // namespace geocomm::transport
