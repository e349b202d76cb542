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
// A stream that still has this much of its last segments to write pulls no others.
constexpr std::size_t kPullBelowBytes = 64 * 1024;
// To decrypt so much takes three times as long as the way to another thread and back.
constexpr std::size_t kMuchBytes = 32 * 1024;

Status lost(const std::string& what) {
  return {StatusCode::PeerLost, what};
}

Status lost(const std::string& what, const Status& why) {
  return Status(StatusCode::PeerLost, core::str(what, ": ", why.message())).with_errno(why.sys_errno());
}
}  // namespace

Stream::Stream(IoLoop& loop, std::unique_ptr<Connection> connection, const Carrier& carrier,
               StreamDelegate& delegate, core::ThreadPool* helpers)
    : loop_(loop),
      connection_(std::move(connection)),
      carrier_(carrier),
      delegate_(delegate),
      aside_(helpers == nullptr ? nullptr : std::make_unique<Aside>(*helpers, loop)) {}

Stream::~Stream() {
  Stream::close();
}

Status Stream::start() {
  watched_ = connection_->wanted_events();
  GEOCOMM_ASSIGN_OR_RETURN(handler_, loop_.add(connection_->fd(), this, watched_));
  end_turn();  // what came behind the handshake may be here already
  return Status::ok();
}

void Stream::close() {
  if (!is_open()) return;
  if (aside_) aside_->offload.cancel();
  loop_.remove(handler_);
  connection_.reset();
  copy_ = SegmentCopy();
  out_.clear();
}

void Stream::lose(const Status& why) {
  if (is_open()) delegate_.on_stream_lost(*this, why);
}

void Stream::violation(const Status& why) {
  if (is_open()) delegate_.on_violation(*this, why);
}

void Stream::on_ready(std::uint32_t events) {
  comes_again_ = false;
  if (is_aside()) return;  // an error or an end, which the calls that are under way find too
  take_turn(events);
  end_turn();
}

void Stream::take_turn(std::uint32_t events) {
  const bool writable = (events & EPOLLOUT) != 0;
  if ((events & EPOLLIN) != 0) {
    if (reads_much_) {
      // What one direction lacks costs a call that says so.
      if (writable) pull_packets(false);
      return begin_aside(writable ? next_writing() : Writing());
    }
    read();
  }
  if (is_open() && writable) write();
  if (!is_open() || is_aside() || (events & (EPOLLERR | EPOLLHUP)) == 0) return;
  if (const int error = connect_error(fd()); error != 0) {
    lose(lost(core::str("stream ", index(), " broke"), errno_status(error)));
  } else {
    read();
  }
}

// Both directions of TLS may have changed what either waits for.
void Stream::end_turn() {
  if (!is_open() || is_aside()) return;
  watch();
  if (connection_->has_more() && !std::exchange(comes_again_, true)) loop_.again(handler_, EPOLLIN);
}

void Stream::read() {
  // What is more than this the next turn reads aside.
  const std::size_t budget = aside_ ? kMuchBytes : kReadBudgetBytes;
  std::size_t bytes = 0;
  bool more = true;
  while (more && bytes < budget) {
    const Reading reading = next_reading();
    const bool claims = copy_.incoming.dest != nullptr;
    if (claims && !copy_.reception->claim()) continue;  // it is to be thrown away now
    const Result<Connection::Received> received = connection_->read(reading.span());
    if (claims) copy_.reception->release();
    if (received.is_ok()) bytes += received->bytes;
    more = account_for(reading, received);
  }
  reads_much_ = aside_ && (more || (receiving_ && bytes >= kMuchBytes));
}

Stream::Reading Stream::next_reading() {
  Reading reading;
  if (receiving_) {
    if (copy_.superseded()) copy_.discard();
    const bool discard = copy_.incoming.dest == nullptr;
    reading.payload_room = discard ? std::min(payload_left_, IoLoop::kScratchBytes) : payload_left_;
    reading.parts[reading.count++] = {discard ? loop_.scratch() : copy_.incoming.dest, reading.payload_room};
  }
  if (reading.payload_room == payload_left_) {
    reading.parts[reading.count++] = {staged_.data() + staged_bytes_, staged_.size() - staged_bytes_};
  }
  for (const iovec& part : reading.span()) reading.room += part.iov_len;
  return reading;
}

bool Stream::account_for(const Reading& reading, const Result<Connection::Received>& received) {
  if (!received.is_ok()) {
    lose(lost(core::str("reading stream ", index(), " failed"), received.status()));
    return false;
  }
  if (received->ended) {
    lose(lost(core::str("the peer closed stream ", index())));
    return false;
  }
  const std::size_t bytes = received->bytes;
  if (bytes == 0) return false;
  delegate_.count_bytes(bytes, 0);
  const std::size_t payload = std::min(bytes, reading.payload_room);
  staged_bytes_ += bytes - payload;
  if (receiving_) {
    if (copy_.incoming.dest != nullptr) copy_.incoming.dest += payload;
    if (!take_payload(payload)) return false;
  }
  return parse_staged() && bytes == reading.room;
}

bool Stream::take_payload(std::size_t bytes) {
  payload_left_ -= bytes;
  if (payload_left_ > 0) return true;
  receiving_ = false;
  delegate_.finish_segment(std::exchange(copy_, SegmentCopy()));
  return is_open();
}

bool Stream::parse_staged() {
  std::size_t begin = 0;
  for (;;) {
    if (receiving_) {
      const std::size_t bytes = std::min(staged_bytes_ - begin, payload_left_);
      if (copy_.incoming.dest != nullptr && bytes > 0 && copy_.reception->claim()) {
        std::memcpy(copy_.incoming.dest, staged_.data() + begin, bytes);
        copy_.reception->release();
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
    Result<SegmentCopy> copy = delegate_.begin_segment(header);
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
  const Status status = delegate_.on_packet(header);
  if (!status.is_ok()) violation(status);
  return is_open();
}

void Stream::send_packets(std::span<const WireHeader> headers) {
  if (!is_open() || headers.empty()) return;
  for (const WireHeader& header : headers) {
    out_.push_back({encode_header(header), {}});
    out_bytes_ += kHeaderBytes;
  }
  if (watches_output_ || is_aside()) return;
  write();
  end_turn();
}

bool Stream::is_idle() const {
  return is_open() && !is_aside() && pending_bytes() == 0 && !connection_->has_unsent() &&
         not_sent_bytes(fd()) == 0;
}

void Stream::wake() {
  if (!is_open() || is_aside() || watches_output_) return;
  // Another stream may have nothing left to send, while this one's last bytes still wait.
  if (not_sent_bytes(fd()) >= kNotSentLowatBytes / 2) {
    watches_output_ = true;
  } else {
    write();
  }
  end_turn();
}

void Stream::pull_packets(bool time_left) {
  if (index() == 0 || pending_bytes() >= kPullBelowBytes) return;
  pulled_.clear();
  delegate_.pull(carrier_, time_left, pulled_);
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
  const Writing writing = next_writing();
  if (aside_ && writing.bytes > kMostSmallBytes) return begin_aside(writing);
  const bool writes = writing.bytes > 0 || connection_->has_unsent();
  account_for(writing, writes ? connection_->write(writing.span()) : std::size_t{0});
}

Stream::Writing Stream::next_writing() const {
  Writing writing;
  std::size_t skip = out_written_;
  const auto add = [&](const std::byte* data, std::size_t bytes) {
    const std::size_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (bytes == skipped) return;
    writing.parts[writing.count++] = {const_cast<std::byte*>(data) + skipped, bytes - skipped};
    writing.bytes += bytes - skipped;
  };
  for (std::size_t i = 0; i < std::min(out_.size(), kMaxPacketsPerWrite); ++i) {
    add(out_[i].header.data(), kHeaderBytes);
    const OutSegment& segment = out_[i].segment;
    if (segment.chunk) add(segment.chunk->chunk.payload.data() + segment.offset, segment.length);
  }
  return writing;
}

void Stream::account_for(const Writing& writing, const Result<std::size_t>& written) {
  if (!written.is_ok()) {
    return lose(lost(core::str("writing stream ", index(), " failed"), written.status()));
  }
  if (*written > 0) delegate_.count_bytes(0, *written);
  advance(*written);
  if (!is_open()) return;
  watches_output_ =
      *written < writing.bytes || !out_.empty() || (index() != 0 && delegate_.has_ready(carrier_));
}

void Stream::advance(std::size_t written) {
  out_written_ += written;
  while (is_open() && !out_.empty() && out_written_ >= out_.front().size()) {
    const OutPacket packet = std::move(out_.front());
    out_.pop_front();
    out_written_ -= packet.size();
    out_bytes_ -= packet.size();
    if (packet.segment.chunk) delegate_.on_segment_sent(packet.segment);
  }
}

// Of a stream that is aside, epoll reports an error or an end, and that once.
void Stream::watch() {
  const std::uint32_t events =
      is_aside() ? std::uint32_t{EPOLLONESHOT} : connection_->wanted_events(watches_output_);
  if (std::exchange(watched_, events) != events) loop_.modify(handler_, events);
}

// ---- turns whose calls another thread makes ----

void Stream::begin_aside(const Writing& writing) {
  aside_->writing = writing;
  aside_->reading = next_reading();
  aside_->offload.begin([this] { make_calls_aside(); }, [this] { end_aside(); });
  watch();
}

// The IO thread touches neither the connection, nor what is read into, nor what is written meanwhile, but for
// close(), which waits.
void Stream::make_calls_aside() {
  aside_->written = std::size_t{0};
  aside_->received = Connection::Received{};
  if (aside_->writing.bytes > 0 || connection_->has_unsent())
    aside_->written = connection_->write(aside_->writing.span());
  if (receiving_ && copy_.incoming.dest == nullptr) return;  // the IO thread's scratch memory
  const bool claims = receiving_;
  if (claims && !copy_.reception->try_claim()) return;
  aside_->received = connection_->read(aside_->reading.span());
  if (claims) copy_.reception->release();
}

void Stream::end_aside() {
  account_for(aside_->writing, aside_->written);
  if (!is_open()) return;
  const Result<Connection::Received>& received = aside_->received;
  const bool more = account_for(aside_->reading, received);
  if (!is_open()) return;
  reads_much_ = more || (receiving_ && received->bytes >= kMuchBytes);
  end_turn();
}

}  // namespace geocomm::transport
