#include "transport/mux/mux.h"

#include <algorithm>
#include <utility>

namespace geocomm::transport {

using core::Result;
using core::Status;

namespace {

constexpr std::size_t kMaxPullSegments = 15;
// The peer is told what has arrived after so many segments or so long, whichever comes first.
constexpr int kMostUntold = 32;
constexpr std::chrono::milliseconds kLongestUntold{5};

void run(const Mux::Callbacks& callbacks, const Status& status) {
  for (const SentCallback& callback : callbacks) callback(status);
}

}  // namespace

// ---- any thread ----

Status Mux::post(const OpKey& key, std::uint64_t descriptor, std::uint32_t chunk_count,
                 const std::shared_ptr<ReceiveSink>& sink) {
  GEOCOMM_RETURN_IF_ERROR(table_.post(key, descriptor, chunk_count, sink));
  announce(key);
  return Status::ok();
}

Mux::Callbacks Mux::cancel(const OpKey& key) {
  if (table_.cancel(key)) announce(key);
  return queue_.cancel(key);
}

Mux::Callbacks Mux::close_group(std::uint64_t group, const Status& why, QueuedChunks queued) {
  for (const OpKey& key : table_.close_group(group, why)) announce(key);
  return queue_.close_group(group, queued);
}

MuxStats Mux::stats() const {
  return {.payload_sent = payload_sent_,
          .payload_received = payload_received_,
          .resent_segments = resent_segments_,
          .acks = acks_,
          .early_bytes_held = table_.unexpected_bytes(),
          .early_bytes_sent = queue_.charged_bytes()};
}

// The peer is told that it may send all of an operation, or that its data takes no memory here any more.
void Mux::announce(const OpKey& key) {
  WireHeader header = make_header(PacketType::Grant);
  header.group = key.group;
  header.op = key.op;
  control_.push(header);
  wake_();
}

// ---- sending ----

void Mux::pull(const Carrier& carrier, Time now, bool time_left, std::vector<OutSegment>& out) {
  const std::size_t before = out.size();
  std::size_t resent = 0;
  if (time_left && !queue_.has_ready() && queue_.pull_slow(carrier, now, out)) {
    resent = 1;
  } else {
    resent = queue_.pull(carrier, kMaxSegmentBytes, kMaxPullSegments, now, out);
  }
  resent_segments_.fetch_add(resent, std::memory_order_relaxed);
  for (std::size_t i = before + resent; i < out.size(); ++i) {
    payload_sent_.fetch_add(out[i].length, std::memory_order_relaxed);
  }
}

void Mux::written(const OutSegment& segment) {
  if (const SentCallback callback = queue_.segment_sent(segment)) callback(Status::ok());
}

// ---- receiving ----

Result<SegmentCopy> Mux::begin(const WireHeader& header) {
  GEOCOMM_ASSIGN_OR_RETURN(SegmentReceiver::Begun begun, receiver_.begin(header));
  if (begun.announce) announce({header.group, header.op});
  if (begun.is_new) payload_received_.fetch_add(header.length, std::memory_order_relaxed);
  return std::move(begun.copy);
}

void Mux::finish(SegmentCopy copy, Time now) {
  receiver_.finish(std::move(copy));
  arrived(now);
}

void Mux::arrived(Time now) {
  if (!acks_at_) acks_at_ = now + kLongestUntold;
  if (++arrived_ != kMostUntold) return;
  acks_at_ = Time::min();
  wake_();
}

// ---- control ----

Result<Mux::Told> Mux::on_control(const WireHeader& header, Time now) {
  const auto type = static_cast<PacketType>(header.type);
  if (type == PacketType::Ack) return on_ack(header, now);
  if (type != PacketType::Grant && type != PacketType::Close) {
    return core::corrupt("packet of unexpected type ", int{header.type});
  }
  GEOCOMM_ASSIGN_OR_RETURN(const bool is_new, control_.receive(header.sequence));
  arrived(now);
  if (!is_new) return Told{};
  // spec channel 9.1: "numbered control packet from its sender for CorruptData."
  if (has_peer_left()) return core::corrupt("a control packet after Close");
  if (type == PacketType::Close) return Told{.leaves = true};
  GEOCOMM_RETURN_IF_ERROR(queue_.granted({header.group, header.op}));
  wake_();
  return Told{};
}

Result<Mux::Told> Mux::on_ack(const WireHeader& header, Time now) {
  GEOCOMM_ASSIGN_OR_RETURN(const AckPacket ack, parse_ack(header));
  acks_.fetch_add(1, std::memory_order_relaxed);
  GEOCOMM_RETURN_IF_ERROR(control_.acknowledge(ack.control_received));
  Callbacks callbacks;
  Told told;
  GEOCOMM_RETURN_IF_ERROR(queue_.acknowledge(ack, now, callbacks, told.acked_bytes));
  run(callbacks, Status::ok());
  return told;
}

void Mux::take_control(Time now, bool room, std::vector<WireHeader>& out) {
  const std::size_t before = out.size();
  control_.take_unsent(out);
  if (!room || !acks_at_ || (*acks_at_ > now && out.size() == before)) return;
  arrived_ = 0;
  acks_at_.reset();
  std::vector<AckPacket> acks;
  receiver_.window().collect(acks);
  for (AckPacket& ack : acks) {
    ack.control_received = control_.received();
    out.push_back(make_ack(ack));
  }
}

// The peer may have missed what an older control stream carried.
void Mux::repeat_acks() {
  receiver_.window().tell_all();
  acks_at_ = Time::min();
  wake_();
}

bool Mux::hurry_acks() {
  if (acks_at_) acks_at_ = Time::min();
  return acks_at_.has_value();
}

// What is due already and was not taken waits for room, which no timer makes.
std::optional<Mux::Time> Mux::due(Time now) const {
  std::optional<Time> due;
  if (const auto slow = queue_.slow_after()) due = now + *slow;
  if (acks_at_ && *acks_at_ > now) due = due ? std::min(*due, *acks_at_) : *acks_at_;
  return due;
}

// ---- the end ----

bool Mux::say_close() {
  return control_.push(make_header(PacketType::Close));
}

void Mux::peer_left(const Status& why, bool keep_complete) {
  queue_.refuse(why);
  receiver_.expect_no_more();
  table_.fail(why, keep_complete);
  run(queue_.drop_waiting(), why);  // it will post nothing any more
  wake_();
}

void Mux::fail(const Status& why, bool keep_complete) {
  arrived_ = 0;
  acks_at_.reset();
  receiver_.clear();
  queue_.refuse(why);
  run(queue_.drop_all(), why);
  table_.fail(why, keep_complete);
}

}  // namespace geocomm::transport
