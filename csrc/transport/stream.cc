#include "transport/stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/str.h"

namespace geocomm::transport {

using core::Result;
using core::Status;
using core::StatusCode;

namespace {
// Bytes that one stream reads before the others get their turn.
constexpr std::size_t kReadBudgetBytes = 1024 * 1024;
constexpr std::size_t kMaxFramesPerWrite = 16;
// A stream that still has this much of its last segments to write pulls no others.
constexpr std::size_t kPullBelowBytes = 64 * 1024;

Status lost(const std::string& what, int error) {
  return Status(StatusCode::PeerLost,
                error == 0 ? what : core::str(what, ": ", std::generic_category().message(error)))
      .with_errno(error);
}
}  // namespace

Stream::Stream(IoLoop& loop, Fd fd, std::uint16_t index, StreamOwner& owner)
    : loop_(loop), fd_(std::move(fd)), index_(index), owner_(owner) {}

Stream::~Stream() {
  close();
}

Status Stream::start() {
  GEOCOMM_ASSIGN_OR_RETURN(handler_, loop_.add(fd_.get(), this, EPOLLIN));
  return Status::ok();
}

void Stream::close() {
  if (!fd_.valid()) return;
  loop_.remove(handler_);
  fd_.reset();
  incoming_ = Incoming();
  out_.clear();
}

void Stream::fail(const Status& why) {
  if (is_open()) owner_.on_stream_failed(*this, why);
}

void Stream::on_ready(std::uint32_t events) {
  if ((events & EPOLLIN) != 0 && !drained_) read();
  if (is_open() && (events & EPOLLOUT) != 0) write();
  if (!is_open() || (events & (EPOLLERR | EPOLLHUP)) == 0) return;
  if (const int error = connect_error(fd_.get()); error != 0) {
    fail(lost(core::str("stream ", index_, " broke"), error));
  } else if (!drained_) {
    read();
  } else if ((events & EPOLLHUP) != 0) {
    fail(lost(core::str("stream ", index_, " was closed by the peer before everything was sent"), 0));
  }
}

void Stream::read() {
  std::size_t budget = kReadBudgetBytes;
  while (is_open() && !drained_ && budget > 0) {
    // The rest of the payload and, behind it, what follows: one call for both.
    std::array<iovec, 2> parts;
    std::size_t count = 0;
    std::size_t payload_room = 0;
    if (receiving_) {
      if (incoming_.dest != nullptr && incoming_.op->dead) {
        incoming_.dest = nullptr;
        incoming_.sink.reset();
        incoming_.buffer = core::Buffer();
      }
      const bool discard = incoming_.dest == nullptr;
      payload_room = discard ? std::min(payload_left_, IoLoop::kScratchBytes) : payload_left_;
      parts[count++] = {discard ? loop_.scratch() : incoming_.dest, payload_room};
    }
    if (payload_room == payload_left_) {
      parts[count++] = {staged_.data() + staged_bytes_, staged_.size() - staged_bytes_};
    }
    std::size_t room = 0;
    for (std::size_t i = 0; i < count; ++i) room += parts[i].iov_len;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t received = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    if (received < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      return fail(lost(core::str("reading stream ", index_, " failed"), errno));
    }
    if (received == 0) return on_end_of_stream();
    const auto bytes = static_cast<std::size_t>(received);
    owner_.count_bytes(bytes, 0);
    const std::size_t payload = std::min(bytes, payload_room);
    staged_bytes_ += bytes - payload;
    if (receiving_) {
      if (incoming_.dest != nullptr) incoming_.dest += payload;
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
  owner_.finish_segment(std::exchange(incoming_, Incoming()));
  return is_open();
}

bool Stream::parse_staged() {
  std::size_t begin = 0;
  for (;;) {
    if (receiving_) {
      const std::size_t bytes = std::min(staged_bytes_ - begin, payload_left_);
      if (incoming_.dest != nullptr && bytes > 0) {
        std::memcpy(incoming_.dest, staged_.data() + begin, bytes);
        incoming_.dest += bytes;
      }
      begin += bytes;
      if (!take_payload(bytes)) return false;
      if (receiving_) break;  // all staged bytes are used
    }
    const std::size_t left = staged_bytes_ - begin;
    if (left > 0 && !may_be_header(std::span(staged_).subspan(begin, left))) {
      fail({StatusCode::CorruptData, core::str("stream ", index_, ": not a header where one must begin")});
      return false;
    }
    if (left < kHeaderBytes) break;
    const Result<WireHeader> header = parse_header(std::span(staged_).subspan(begin).first<kHeaderBytes>());
    begin += kHeaderBytes;
    if (!header.is_ok()) {
      fail(header.status());
      return false;
    }
    if (!on_header(*header)) return false;
  }
  std::memmove(staged_.data(), staged_.data() + begin, staged_bytes_ - begin);
  staged_bytes_ -= begin;
  return true;
}

bool Stream::on_header(const WireHeader& header) {
  if (peer_finished_) {
    fail({StatusCode::CorruptData, core::str("stream ", index_, ": a frame after Goodbye")});
    return false;
  }
  const auto type = static_cast<FrameType>(header.type);
  if (type == FrameType::Segment && index_ != 0) {
    Result<Incoming> incoming = owner_.begin_segment(header);
    if (!is_open()) return false;
    if (!incoming.is_ok()) {
      fail(incoming.status());
      return false;
    }
    incoming_ = std::move(incoming).value();
    payload_left_ = header.length;
    receiving_ = true;
    return true;
  }
  if (type == FrameType::Goodbye && header.length == 0) {
    peer_finished_ = true;
    owner_.on_stream_progress(*this);
    return is_open();
  }
  if (index_ != 0 || header.length != 0) {
    fail({StatusCode::CorruptData, core::str("stream ", index_, ": unexpected frame of type ",
                                             int{header.type}, " with ", header.length, " bytes")});
    return false;
  }
  const Status status = owner_.on_frame(header);
  if (!status.is_ok()) fail(status);
  return is_open();
}

void Stream::on_end_of_stream() {
  if (!peer_finished_) {
    return fail(lost("the peer closed the connection without a goodbye: its process has probably ended", 0));
  }
  drained_ = true;
  update_interest();
  owner_.on_stream_progress(*this);
}

void Stream::send_frames(std::span<const WireHeader> headers) {
  if (!is_open() || finishing_ || headers.empty()) return;
  for (const WireHeader& header : headers) {
    out_.push_back({encode_header(header), {}});
    out_bytes_ += kHeaderBytes;
  }
  if (!watches_output_) write();
}

void Stream::wake() {
  if (!is_open() || watches_output_ || finishing_) return;
  // Another stream may have nothing left to send, while this one's last bytes still wait.
  if (not_sent_bytes(fd_.get()) >= kNotSentLowatBytes / 2) {
    watch_output(true);
  } else {
    write();
  }
}

void Stream::finish() {
  if (!is_open() || finishing_) return;
  send_frame(make_header(FrameType::Goodbye));
  finishing_ = true;
  if (!watches_output_) write();
}

void Stream::pull_frames() {
  if (index_ == 0 || finishing_ || pending_bytes() >= kPullBelowBytes) return;
  pulled_.clear();
  owner_.pull(pulled_);
  for (OutSegment& segment : pulled_) {
    const OutgoingChunk& chunk = segment.chunk->chunk;
    WireHeader header = make_header(FrameType::Segment);
    header.group = chunk.key.group;
    header.op = chunk.key.op;
    header.descriptor = chunk.descriptor;
    header.chunk = chunk.chunk;
    header.chunk_count = chunk.chunk_count;
    header.chunk_bytes = static_cast<std::uint32_t>(chunk.payload.size());
    header.offset = segment.offset;
    header.length = segment.length;
    out_.push_back({encode_header(header), std::move(segment)});
    out_bytes_ += out_.back().size();
  }
  pulled_.clear();
}

// One sendmsg() per turn: when the kernel reports room again, it has taken most of what it had, and another
// stream may be faster.
void Stream::write() {
  pull_frames();
  if (!out_.empty()) {
    std::array<iovec, 2 * kMaxFramesPerWrite> parts;
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
    for (std::size_t i = 0; i < std::min(out_.size(), kMaxFramesPerWrite); ++i) {
      add(out_[i].header.data(), kHeaderBytes);
      const OutSegment& segment = out_[i].segment;
      if (segment.chunk) add(segment.chunk->chunk.payload.data() + segment.offset, segment.length);
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      return fail(lost(core::str("writing stream ", index_, " failed"), errno));
    }
    const std::size_t written = sent < 0 ? 0 : static_cast<std::size_t>(sent);
    owner_.count_bytes(0, written);
    advance(written);
    if (!is_open()) return;
    if (written < total) return watch_output(true);
  }
  if (out_.empty() && finishing_ && !finished_) {
    finished_ = true;
    (void)::shutdown(fd_.get(), SHUT_WR);
    watch_output(false);
    return owner_.on_stream_progress(*this);
  }
  watch_output(!out_.empty() || (index_ != 0 && !finishing_ && owner_.has_ready()));
}

void Stream::advance(std::size_t written) {
  out_written_ += written;
  while (is_open() && !out_.empty() && out_written_ >= out_.front().size()) {
    const OutFrame frame = std::move(out_.front());
    out_.pop_front();
    out_written_ -= frame.size();
    out_bytes_ -= frame.size();
    if (frame.segment.chunk) owner_.on_segment_sent(frame.segment);
  }
}

void Stream::watch_output(bool on) {
  if (watches_output_ == on || !is_open()) return;
  watches_output_ = on;
  update_interest();
}

void Stream::update_interest() {
  loop_.modify(handler_,
               (drained_ ? 0U : std::uint32_t{EPOLLIN}) | (watches_output_ ? std::uint32_t{EPOLLOUT} : 0U));
}

}  // namespace geocomm::transport
