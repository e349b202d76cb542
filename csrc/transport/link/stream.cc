#include "transport/link/stream.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {
// Bytes that one stream reads before the others get their turn.
constexpr std::size_t kReadBudgetBytes = 1024 * 1024;
constexpr std::size_t kMaxPacketsPerWrite = 16;
// A stream that still has this much of its last segments to write pulls no others.
constexpr std::size_t kPullBelowBytes = 64 * 1024;

Status lost(const std::string& what) {
  return {StatusCode::PeerLost, what};
}

Status lost(const std::string& what, const Status& why) {
  return Status(StatusCode::PeerLost, core::str(what, ": ", why.message())).with_errno(why.sys_errno());
}
}  // namespace

Stream::Stream(IoLoop& loop, std::unique_ptr<Connection> connection, const Carrier& carrier,
               StreamOwner& owner)
    : loop_(loop), connection_(std::move(connection)), carrier_(carrier), owner_(owner) {}

Stream::~Stream() {
  Stream::close();
}

Status Stream::start() {
  GEOCOMM_ASSIGN_OR_RETURN(handler_, loop_.add(connection_->fd(), this, EPOLLIN));
  // What came behind the handshake may be here already.
  if (connection_->has_more()) loop_.again(handler_, EPOLLIN);
  return Status::ok();
}

void Stream::close() {
  if (!is_open()) return;
  loop_.remove(handler_);
  connection_.reset();
  copy_ = SegmentCopy();
  out_.clear();
}

void Stream::lose(const Status& why) {
  if (is_open()) owner_.on_stream_lost(*this, why);
}

void Stream::violation(const Status& why) {
  if (is_open()) owner_.on_violation(*this, why);
}

void Stream::on_ready(std::uint32_t events) {
  if ((events & EPOLLIN) != 0) read();
  if (is_open() && (events & EPOLLOUT) != 0) write();
  if (!is_open() || (events & (EPOLLERR | EPOLLHUP)) == 0) return;
  if (const int error = connect_error(fd()); error != 0) {
    lose(lost(core::str("stream ", index(), " broke"), errno_status(error)));
  } else {
    read();
  }
}

void Stream::read() {
  read_parts();
  if (is_open() && connection_->has_more()) loop_.again(handler_, EPOLLIN);
}

void Stream::read_parts() {
  std::size_t budget = kReadBudgetBytes;
  while (is_open() && budget > 0) {
    // The rest of the payload and, behind it, what follows: one call for both.
    std::array<iovec, 2> parts;
    std::size_t count = 0;
    std::size_t payload_room = 0;
    if (receiving_) {
      if (copy_.superseded()) copy_.discard();
      const bool discard = copy_.incoming.dest == nullptr;
      payload_room = discard ? std::min(payload_left_, IoLoop::kScratchBytes) : payload_left_;
      parts[count++] = {discard ? loop_.scratch() : copy_.incoming.dest, payload_room};
    }
    if (payload_room == payload_left_) {
      parts[count++] = {staged_.data() + staged_bytes_, staged_.size() - staged_bytes_};
    }
    std::size_t room = 0;
    for (std::size_t i = 0; i < count; ++i) room += parts[i].iov_len;
    const Result<Connection::Received> received = connection_->read(std::span(parts).first(count));
    if (!received.is_ok()) {
      return lose(lost(core::str("reading stream ", index(), " failed"), received.status()));
    }
    if (received->ended) return lose(lost(core::str("the peer closed stream ", index())));
    const std::size_t bytes = received->bytes;
    if (bytes == 0) return;
    owner_.count_bytes(bytes, 0);
    const std::size_t payload = std::min(bytes, payload_room);
    staged_bytes_ += bytes - payload;
    if (receiving_) {
      if (copy_.incoming.dest != nullptr) copy_.incoming.dest += payload;
      if (!take_payload(payload)) return;
    }
    if (!parse_staged()) return;
    if (bytes < room) return;  // the kernel has no more
    budget -= std::min(budget, bytes);
  }
}

bool Stream::take_payload(std::size_t bytes) {
  payload_left_ -= bytes;
  if (payload_left_ > 0) return true;
  receiving_ = false;
  owner_.finish_segment(std::exchange(copy_, SegmentCopy()));
  return is_open();
}

bool Stream::parse_staged() {
  std::size_t begin = 0;
  for (;;) {
    if (receiving_) {
      const std::size_t bytes = std::min(staged_bytes_ - begin, payload_left_);
      if (copy_.incoming.dest != nullptr && bytes > 0) {
        std::memcpy(copy_.incoming.dest, staged_.data() + begin, bytes);
        copy_.incoming.dest += bytes;
      }
      begin += bytes;
      if (!take_payload(bytes)) return false;
      if (receiving_) break;  // all staged bytes are used
    }
    const std::size_t left = staged_bytes_ - begin;
    if (left > 0 && !may_be_header(std::span(staged_).subspan(begin, left))) {
      violation(core::corrupt("stream ", index(), ": not a header where one must begin"));
      return false;
    }
    if (left < kHeaderBytes) break;
    const Result<WireHeader> header = parse_header(std::span(staged_).subspan(begin).first<kHeaderBytes>());
    begin += kHeaderBytes;
    if (!header.is_ok()) {
      violation(header.status());
      return false;
    }
    if (!on_header(*header)) return false;
  }
  std::memmove(staged_.data(), staged_.data() + begin, staged_bytes_ - begin);
  staged_bytes_ -= begin;
  return true;
}

bool Stream::on_header(const WireHeader& header) {
  if (static_cast<PacketType>(header.type) == PacketType::Segment && index() != 0) {
    Result<SegmentCopy> copy = owner_.begin_segment(header);
    if (!is_open()) return false;
    if (!copy.is_ok()) {
      violation(copy.status());
      return false;
    }
    copy_ = std::move(copy).value();
    payload_left_ = header.length;
    receiving_ = true;
    return true;
  }
  if (index() != 0 || header.length != 0) {
    violation(core::corrupt("stream ", index(), ": unexpected packet of type ", int{header.type}, " with ",
                            header.length, " bytes"));
    return false;
  }
  const Status status = owner_.on_packet(header);
  if (!status.is_ok()) violation(status);
  return is_open();
}

void Stream::send_packets(std::span<const WireHeader> headers) {
  if (!is_open() || headers.empty()) return;
  for (const WireHeader& header : headers) {
    out_.push_back({encode_header(header), {}});
    out_bytes_ += kHeaderBytes;
  }
  if (!watches_output_) write();
}

bool Stream::is_idle() const {
  return is_open() && pending_bytes() == 0 && not_sent_bytes(fd()) == 0;
}

void Stream::wake() {
  if (!is_open() || watches_output_) return;
  // Another stream may have nothing left to send, while this one's last bytes still wait.
  if (not_sent_bytes(fd()) >= kNotSentLowatBytes / 2) {
    watch_output(true);
  } else {
    write();
  }
}

void Stream::pull_packets(bool time_left) {
  if (index() == 0 || pending_bytes() >= kPullBelowBytes) return;
  pulled_.clear();
  owner_.pull(carrier_, time_left, pulled_);
  for (OutSegment& segment : pulled_) {
    out_.push_back({encode_header(segment_header(segment)), std::move(segment)});
    out_bytes_ += out_.back().size();
  }
  pulled_.clear();
}

// One write per turn: when the kernel reports room again, it has taken most of what it had, and another
// stream may be faster.
void Stream::write(bool time_left) {
  pull_packets(time_left);
  if (!out_.empty()) {
    std::array<iovec, 2 * kMaxPacketsPerWrite> parts;
    std::size_t count = 0;
    std::size_t skip = out_written_;
    std::size_t total = 0;
    const auto add = [&](const std::byte* data, std::size_t bytes) {
      const std::size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (bytes == skipped) return;
      parts[count++] = {const_cast<std::byte*>(data) + skipped, bytes - skipped};
      total += bytes - skipped;
    };
    for (std::size_t i = 0; i < std::min(out_.size(), kMaxPacketsPerWrite); ++i) {
      add(out_[i].header.data(), kHeaderBytes);
      const OutSegment& segment = out_[i].segment;
      if (segment.chunk) add(segment.chunk->chunk.payload.data() + segment.offset, segment.length);
    }
    const Result<std::size_t> written = connection_->write(std::span(parts).first(count));
    if (!written.is_ok()) {
      return lose(lost(core::str("writing stream ", index(), " failed"), written.status()));
    }
    owner_.count_bytes(0, *written);
    advance(*written);
    if (!is_open()) return;
    if (*written < total) return watch_output(true);
  }
  watch_output(!out_.empty() || (index() != 0 && owner_.has_ready(carrier_)));
}

void Stream::advance(std::size_t written) {
  out_written_ += written;
  while (is_open() && !out_.empty() && out_written_ >= out_.front().size()) {
    const OutPacket packet = std::move(out_.front());
    out_.pop_front();
    out_written_ -= packet.size();
    out_bytes_ -= packet.size();
    if (packet.segment.chunk) owner_.on_segment_sent(packet.segment);
  }
}

void Stream::watch_output(bool on) {
  if (watches_output_ == on || !is_open()) return;
  watches_output_ = on;
  loop_.modify(handler_, std::uint32_t{EPOLLIN} | (on ? std::uint32_t{EPOLLOUT} : 0U));
}

}  // namespace geocomm::transport
