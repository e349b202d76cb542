#include "transport/rdma/rdma_stream.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {

// Given to the fabric at most: what a link of 100 Gbit/s has under way in 5 ms.
constexpr std::size_t kMostInFlightBytes = std::size_t{64} << 20;
// Sent in one turn at most, before others get theirs.
constexpr std::size_t kMostPerTurnBytes = std::size_t{8} << 20;
// A fabric that has segments and sends none for so long is broken, whatever it says.
constexpr std::chrono::seconds kFabricStalled{10};

}  // namespace

RdmaStream::RdmaStream(IoLoop& loop, std::unique_ptr<Connection> connection, const Carrier& carrier,
                       StreamDelegate& delegate, RdmaFabric& fabric)
    : Stream(loop, std::move(connection), carrier, delegate), fabric_(fabric) {}

RdmaStream::~RdmaStream() {
  RdmaStream::close();
}

Status RdmaStream::start() {
  GEOCOMM_ASSIGN_OR_RETURN(link_, fabric_.open_link(*this));
  GEOCOMM_ASSIGN_OR_RETURN(fabric_handler_, loop().add(link_->event_fd(), &events_, EPOLLIN));
  watched_ = connection().wanted_events();
  GEOCOMM_ASSIGN_OR_RETURN(handler_, loop().add(fd(), this, watched_));
  GEOCOMM_RETURN_IF_ERROR(send_address());
  if (connection().has_more()) loop().again(handler_, EPOLLIN);
  run_soon();
  return Status::ok();
}

Status RdmaStream::send_address() {
  if (::getrandom(&token_, sizeof token_, 0) != static_cast<ssize_t>(sizeof token_)) {
    return Status(StatusCode::Internal, "no random bytes from the kernel").with_errno(errno);
  }
  const auto address = link_->address();
  if (address.size() > kMaxRdmaAddressBytes) {
    return {StatusCode::Unsupported,
            core::str("the fabric's address has ", address.size(), " bytes, at most ", kMaxRdmaAddressBytes,
                      " are possible: name fewer devices in UCX_NET_DEVICES")};
  }
  WireHeader header = make_header(PacketType::RdmaAddress);
  header.op = token_;
  header.length = static_cast<std::uint32_t>(address.size());
  HeaderBytes head = encode_header(header);
  const std::array<iovec, 2> parts = {iovec{head.data(), head.size()},
                                      iovec{const_cast<std::byte*>(address.data()), address.size()}};
  GEOCOMM_RETURN_IF_ERROR(connection().write_at_once(parts));
  delegate().count_bytes(0, head.size() + address.size());
  return Status::ok();
}

void RdmaStream::close() {
  if (!is_open()) return;
  *self_ = nullptr;
  if (stall_timer_runs_) loop().cancel_timer(stall_timer_);
  stall_timer_runs_ = connected_ = false;
  loop().remove(handler_);
  if (link_) {
    loop().remove(fabric_handler_);
    link_->silence();
    // One of its callbacks may be running.
    loop().post([link = std::shared_ptr<RdmaLink>(std::move(link_))] {});
  }
  Stream::close();
}

std::string RdmaStream::transport() const {
  std::lock_guard lock(mutex_);
  return transport_;
}

void RdmaStream::on_ready(std::uint32_t) {
  read();
  if (is_open()) answer();
}

// What TLS has to say to the peer (that it takes new keys), no packet takes along here.
void RdmaStream::answer() {
  if (connection().has_unsent()) {
    if (const auto sent = connection().write({}); !sent.is_ok()) {
      return lose(
          Status(StatusCode::PeerLost, core::str("stream ", index(), " broke: ", sent.status().message())));
    }
  }
  const std::uint32_t events = connection().wanted_events();
  if (std::exchange(watched_, events) != events) loop().modify(handler_, events);
}

void RdmaStream::read() {
  while (is_open()) {
    const std::size_t wanted = connected_ ? 1 : kHeaderBytes + kMaxRdmaAddressBytes;
    const std::size_t had = received_.size();
    received_.resize(wanted);
    const iovec part{received_.data() + had, wanted - had};
    const Result<Connection::Received> got = connection().read({&part, 1});
    received_.resize(had + (got.is_ok() ? got->bytes : 0));
    if (!got.is_ok()) {
      return lose(
          Status(StatusCode::PeerLost, core::str("stream ", index(), " broke: ", got.status().message())));
    }
    if (got->ended) return lose({StatusCode::PeerLost, core::str("the peer closed stream ", index())});
    if (got->bytes == 0) return;
    delegate().count_bytes(got->bytes, 0);
    on_address();
  }
}

// Received_ has grown.
void RdmaStream::on_address() {
  const auto corrupt = [this](const std::string& what) {
    violation(core::corrupt("stream ", index(), ": ", what));
  };
  if (connected_) return corrupt("bytes behind the fabric's address");
  if (received_.size() < kHeaderBytes) return;
  const Result<WireHeader> header = parse_header(std::span(received_).first<kHeaderBytes>());
  if (!header.is_ok()) return violation(header.status());
  if (static_cast<PacketType>(header->type) != PacketType::RdmaAddress || header->length == 0 ||
      header->length > kMaxRdmaAddressBytes) {
    return corrupt(core::str("packet of type ", int{header->type}, " with ", header->length,
                             " bytes, expected the fabric's address"));
  }
  const std::size_t whole = kHeaderBytes + header->length;
  if (received_.size() < whole) return;
  if (received_.size() > whole) return corrupt("bytes behind the fabric's address");
  const Status status = link_->connect(std::span(received_).subspan(kHeaderBytes));
  if (status.code() == StatusCode::Unsupported) return violation(status);
  if (!status.is_ok()) return lose(status);
  received_.clear();
  peer_token_ = header->op;
  connected_ = true;
  {
    std::lock_guard lock(mutex_);
    transport_ = core::str("rdma (", link_->transports(), ")");
  }
  run_soon();
}

void RdmaStream::wake() {
  if (is_open() && connected_) run_soon();
}

// Not at once: a task that was posted earlier destroys the link before this one, and with it what was still
// being received.
void RdmaStream::run_soon() {
  if (std::exchange(runs_soon_, true)) return;
  loop().post([self = self_] {
    if (*self == nullptr) return;
    (*self)->runs_soon_ = false;
    (*self)->run();
  });
}

void RdmaStream::run() {
  if (!is_open()) return;
  const Result<bool> more = link_->progress();
  if (!is_open()) return;
  if (!more.is_ok()) return lose(more.status());
  if (send_segments() || *more) run_soon();
}

// False if there was nothing to send.
bool RdmaStream::send_segments() {
  std::size_t sent = 0;
  std::vector<OutSegment> segments;
  while (is_open() && connected_ && sent < kMostPerTurnBytes && in_flight_bytes_ < kMostInFlightBytes &&
         delegate().has_ready(carrier())) {
    segments.clear();
    delegate().pull(carrier(), false, segments);
    if (segments.empty()) break;
    for (OutSegment& segment : segments) {
      // It may be lost while the first ones are sent; then the others are sent again, too.
      if (!is_open()) return false;
      RdmaOutgoing message;
      const HeaderBytes header = encode_header(segment_header(segment));
      std::memcpy(message.header.data(), &peer_token_, sizeof peer_token_);
      std::memcpy(message.header.data() + sizeof peer_token_, header.data(), header.size());
      message.payload = segment.chunk->chunk.payload.span().subspan(segment.offset, segment.length);
      const std::size_t bytes = kRdmaHeaderBytes + segment.length;
      if (in_flight_bytes_ == 0) last_sent_ = loop().now();
      in_flight_bytes_ += bytes;
      sent += bytes;
      delegate().count_bytes(0, bytes);
      message.on_sent = [this, segment = std::move(segment)] { on_sent(segment); };
      link_->send(std::move(message));
    }
  }
  if (is_open()) watch_for_stall();
  return sent > 0;
}

void RdmaStream::on_sent(const OutSegment& segment) {
  const std::size_t bytes = kRdmaHeaderBytes + segment.length;
  in_flight_bytes_ -= bytes;
  moved_ = true;
  last_sent_ = loop().now();
  delegate().on_segment_sent(segment);
  if (is_open() && delegate().has_ready(carrier())) run_soon();
}

void RdmaStream::watch_for_stall() {
  if (in_flight_bytes_ == 0 || stall_timer_runs_) return;
  stall_timer_runs_ = true;
  stall_timer_ = loop().add_timer(last_sent_ + kFabricStalled, [this] {
    stall_timer_runs_ = false;
    if (in_flight_bytes_ > 0 && loop().now() - last_sent_ >= kFabricStalled) {
      return lose({StatusCode::PeerLost, core::str("the fabric (", transport(), ") has sent nothing for ",
                                                   kFabricStalled.count(), " s")});
    }
    watch_for_stall();
  });
}

std::optional<RdmaIncoming> RdmaStream::on_message(std::span<const std::byte> head,
                                                   std::size_t payload_bytes) {
  // Of a stranger, or of a link that is gone.
  if (!is_open() || head.size() != kRdmaHeaderBytes ||
      std::memcmp(head.data(), &token_, sizeof token_) != 0) {
    return std::nullopt;
  }
  const Result<WireHeader> header = parse_header(head.subspan<sizeof token_, kHeaderBytes>());
  Status broken = header.is_ok() ? Status::ok() : header.status();
  if (broken.is_ok() && (static_cast<PacketType>(header->type) != PacketType::Segment ||
                         header->length != payload_bytes || landing_.contains(header->sequence))) {
    broken = core::corrupt("message of type ", int{header->type}, ", number ", header->sequence, ", with ",
                           payload_bytes, " bytes where ", header->length, " are said");
  }
  if (!broken.is_ok()) {
    violation(broken);
    return std::nullopt;
  }
  delegate().count_bytes(head.size() + payload_bytes, 0);
  Result<SegmentCopy> begun = delegate().begin_segment(*header);
  if (!is_open()) return std::nullopt;
  if (!begun.is_ok()) {
    violation(begun.status());
    return std::nullopt;
  }
  SegmentCopy copy = std::move(begun).value();
  if (copy.superseded()) copy.discard();
  landing_.insert(header->sequence);
  RdmaIncoming incoming;
  incoming.dest = copy.incoming.dest;
  incoming.on_received = [this, copy = std::move(copy), number = header->sequence] {
    landing_.erase(number);
    moved_ = true;
    delegate().finish_segment(copy);
  };
  return incoming;
}

}  // namespace geocomm::transport
