#include "transport/mux/unacked_segments.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace geocomm::transport {

using core::Status;

namespace {
constexpr std::size_t kMostLookedAt = 1024;
}  // namespace

void UnackedSegments::add(OutSegment& segment, const Carrier& carrier, Clock::time_point now) {
  segment.number = first_ + entries_.size();
  Entry& entry = entries_.emplace_back();
  entry.segment = segment;
  entry.handed = now;
  carry(segment.number, carrier);
}

void UnackedSegments::carry(std::uint64_t number, const Carrier& carrier) {
  Carried& carried = carried_[carrier];
  Entry& entry = at(number);
  entry.carrier = carrier;
  entry.lost = false;
  entry.before = carried.newest;
  entry.after = 0;
  if (carried.newest != 0) {
    at(carried.newest).after = number;
  } else {
    carried.oldest = number;
  }
  carried.newest = number;
}

// Out of its list.
void UnackedSegments::put_down(std::uint64_t number) {
  const Entry& entry = at(number);
  if (entry.lost) {
    lost_.erase(number);
    return;
  }
  const auto carried = carried_.find(entry.carrier);
  if (entry.before != 0) {
    at(entry.before).after = entry.after;
  } else {
    carried->second.oldest = entry.after;
  }
  if (entry.after != 0) {
    at(entry.after).before = entry.before;
  } else {
    carried->second.newest = entry.before;
  }
  if (carried->second.oldest == 0) carried_.erase(carried);
}

UnackedSegments::Entry* UnackedSegments::find(std::uint64_t number) {
  if (number < first_ || number - first_ >= entries_.size()) return nullptr;
  Entry& entry = at(number);
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
  put_down(number);
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
  const auto carried = carried_.find(carrier);
  if (carried == carried_.end()) return;
  auto place = lost_.end();
  for (std::uint64_t number = carried->second.oldest; number != 0;) {
    Entry& entry = at(number);
    entry.lost = true;
    place = std::next(lost_.insert(place, number));  // mostly in order
    number = entry.after;
  }
  carried_.erase(carried);
}

OutSegment UnackedSegments::resend(const Carrier& carrier, Clock::time_point now) {
  const std::uint64_t number = *lost_.begin();
  put_down(number);
  carry(number, carrier);
  Entry& entry = at(number);
  entry.handed = now;
  entry.again = true;
  return entry.segment;
}

const OutSegment* UnackedSegments::find_slow(Clock::time_point since, const Carrier* carrier) {
  const std::size_t count = std::min(entries_.size(), kMostLookedAt);
  looks_ += count;
  for (std::size_t i = 0; i < count; ++i) {
    const Entry& entry = entries_[i];
    const bool elsewhere = carrier == nullptr || entry.carrier.stream != carrier->stream;
    if (entry.segment.chunk && !entry.again && elsewhere && entry.handed < since) return &entry.segment;
  }
  return nullptr;
}

OutSegment UnackedSegments::hedge(std::uint64_t number, const Carrier& carrier) {
  put_down(number);
  carry(number, carrier);
  Entry& entry = at(number);
  entry.again = true;
  return entry.segment;
}

void UnackedSegments::clear() {
  first_ += entries_.size();
  entries_.clear();
  carried_.clear();
  lost_.clear();
  acked_ = 0;
}

}  // namespace geocomm::transport
