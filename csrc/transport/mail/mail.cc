#include "transport/mail/mail.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "core/str.h"

namespace geocomm::transport {

using core::Status;
using core::StatusCode;

namespace {

// Of a chunk: several make use of several streams, and credit is given for each.
constexpr std::uint64_t kMailChunkBytes = std::uint64_t{4} << 20;
static_assert(kMailChunkBytes <= kMaxChunkBytes);
constexpr std::uint64_t kMostMailBytes = kMailChunkBytes * kMaxChunkCount;
constexpr std::uint64_t kLengthDescriptor = 0x4C49414D;  // "MAIL"
constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kRoundBit = std::uint64_t{1} << 63;

std::uint64_t group_of_round(std::uint64_t round) {
  return round | kRoundBit;
}
OpKey length_key(std::uint64_t round, std::uint64_t part) {
  return {group_of_round(round), 2 * part};
}
OpKey bytes_key(std::uint64_t round, std::uint64_t part) {
  return {group_of_round(round), 2 * part + 1};
}
std::uint32_t mail_chunks_of(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + kMailChunkBytes - 1) / kMailChunkBytes);
}

// Empty where there is no memory: how much it is may be a peer's word.
core::Buffer memory_for(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  auto* const memory = static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow));
  if (memory == nullptr) return {};
  return core::Buffer::around({memory, [](std::byte* freed) { ::operator delete(freed, kAlignment); }},
                              bytes);
}

// A receive: calls `then` once.
class Receipt {
 public:
  Receipt(core::GrowingExecutor& executor, Mail::Then then) : executor_(executor), then_(std::move(then)) {}
  ~Receipt() { finish(Status(StatusCode::Aborted, "the channel was closed")); }
  Receipt(const Receipt&) = delete;
  Receipt& operator=(const Receipt&) = delete;

  void finish(core::Result<core::Buffer> content) {
    if (finished_.exchange(true)) return;
    executor_.post([then = std::move(then_), result = std::move(content)] { then(result); });
  }
  core::GrowingExecutor& executor() const { return executor_; }

 private:
  core::GrowingExecutor& executor_;
  Mail::Then then_;
  std::atomic<bool> finished_{false};
};

class PartSink : public ReceiveSink {
 public:
  explicit PartSink(std::shared_ptr<Receipt> receipt) : receipt_(std::move(receipt)) {}
  Status on_mismatch(std::uint64_t descriptor, std::uint32_t chunk_count) override {
    return core::corrupt("mail with descriptor ", descriptor, " in ", chunk_count, " chunks");
  }
  void on_error(const Status& status) override { receipt_->finish(status); }

 protected:
  const std::shared_ptr<Receipt> receipt_;
};

class BytesSink final : public PartSink {
 public:
  BytesSink(std::shared_ptr<Receipt> receipt, core::Buffer content)
      : PartSink(std::move(receipt)), content_(std::move(content)), left_(mail_chunks_of(content_.size())) {}

  core::Result<std::span<std::byte>> place(std::uint32_t chunk, std::size_t chunk_bytes) override {
    const std::size_t begin = chunk * kMailChunkBytes;
    if (begin >= content_.size() ||
        chunk_bytes != std::min<std::size_t>(kMailChunkBytes, content_.size() - begin)) {
      return core::corrupt("chunk ", chunk, " of ", chunk_bytes, " bytes in mail of ", content_.size());
    }
    return content_.span().subspan(begin, chunk_bytes);
  }
  void on_chunk(std::uint32_t) override {
    if (--left_ == 0) receipt_->finish(content_);
  }

 private:
  const core::Buffer content_;
  std::uint32_t left_;
};

class LengthSink final : public PartSink {
 public:
  LengthSink(std::shared_ptr<Receipt> receipt, std::weak_ptr<Channel> channel, OpKey bytes_key,
             std::uint64_t max_bytes)
      : PartSink(std::move(receipt)), channel_(std::move(channel)), key_(bytes_key), max_bytes_(max_bytes) {}

  core::Result<std::span<std::byte>> place(std::uint32_t, std::size_t chunk_bytes) override {
    if (chunk_bytes != kLengthBytes) return core::corrupt("a length of mail in ", chunk_bytes, " bytes");
    return std::as_writable_bytes(std::span(&length_, 1));
  }
  void on_chunk(std::uint32_t) override {
    if (length_ > max_bytes_) {
      return receipt_->finish(
          core::corrupt("mail of ", length_, " bytes, at most ", max_bytes_, " are taken"));
    }
    // A sink posts no receives, and memory may take a while.
    receipt_->executor().post([receipt = receipt_, channel = channel_, key = key_, length = length_] {
      post_bytes(receipt, channel.lock(), key, length);
    });
  }

 private:
  static void post_bytes(const std::shared_ptr<Receipt>& receipt, const std::shared_ptr<Channel>& channel,
                         OpKey key, std::uint64_t length) {
    if (length == 0) return receipt->finish(core::Buffer());
    const core::Buffer content = memory_for(length);
    if (content.empty()) {
      return receipt->finish(
          Status(StatusCode::OutputTooSmall, core::str("no memory for ", length, " bytes of mail")));
    }
    if (!channel) return receipt->finish(Status(StatusCode::Aborted, "the channel was closed"));
    const Status posted = channel->post_receive(key, length, mail_chunks_of(length),
                                                std::make_shared<BytesSink>(receipt, content));
    if (!posted.is_ok()) receipt->finish(posted);
  }

  const std::weak_ptr<Channel> channel_;
  const OpKey key_;
  const std::uint64_t max_bytes_;
  std::uint64_t length_ = 0;
};

}  // namespace

Mail::Mail(std::shared_ptr<Endpoint> endpoint, Release release, const JobToken& token,
           std::uint64_t max_bytes, core::GrowingExecutor& executor)
    : endpoint_(std::move(endpoint)),
      release_(std::move(release)),
      token_(token),
      max_bytes_(std::min(max_bytes, kMostMailBytes)),
      executor_(executor) {
  endpoint_->allow(token_);
}

Mail::~Mail() {
  if (mark_.is_here()) (void)close(std::chrono::milliseconds(0));
}

Status Mail::check(std::uint64_t round, std::uint64_t part) const {
  if (!mark_.is_here()) return core::inherited_by_fork();
  if (round < kMostRounds && part < kMostParts) return Status::ok();
  return {StatusCode::InvalidArgument,
          core::str("round ", round, ", part ", part, ": rounds are below 2**63, parts below 2**62")};
}

Status Mail::peer(PeerAddress address) {
  GEOCOMM_RETURN_IF_ERROR(check(0, 0));
  address.verdict_from_above = true;
  std::lock_guard changing(changing_);
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return {StatusCode::Aborted, "the mail is closed"};
    const auto known = peers_.find(address.id);
    failed = known != peers_.end() && !known->second.channel->status().is_ok();
  }
  if (failed) endpoint_->forget(address.id, {StatusCode::Aborted, "the channel is made anew"});
  GEOCOMM_ASSIGN_OR_RETURN(auto channel, endpoint_->connect(address, token_));
  std::lock_guard lock(mutex_);
  peers_[address.id] = {address, std::move(channel)};
  return Status::ok();
}

// Null: there is none, or it is too late.
std::shared_ptr<Channel> Mail::channel_of(const ProcessId& peer, std::uint64_t round) {
  std::lock_guard lock(mutex_);
  const auto known = peers_.find(peer);
  if (closed_ || known == peers_.end()) return nullptr;
  rounds_.insert(round);
  return known->second.channel;
}

Status Mail::send(const ProcessId& peer, std::uint64_t round, std::uint64_t part, core::Buffer content) {
  GEOCOMM_RETURN_IF_ERROR(check(round, part));
  const std::uint64_t bytes = content.size();
  if (bytes > kMostMailBytes) {
    return {StatusCode::InvalidArgument, core::str("mail of ", bytes, " bytes, at most ", kMostMailBytes)};
  }
  const auto channel = channel_of(peer, round);
  if (!channel) return Status::ok();

  OutgoingChunk length;
  length.key = length_key(round, part);
  length.descriptor = kLengthDescriptor;
  length.payload = memory_for(kLengthBytes);
  if (length.payload.empty()) return {StatusCode::OutputTooSmall, "no memory left to send mail"};
  std::memcpy(length.payload.data(), &bytes, kLengthBytes);
  if (!channel->send(std::move(length)).is_ok()) return Status::ok();
  for (std::uint64_t begin = 0; begin < bytes; begin += kMailChunkBytes) {
    OutgoingChunk chunk;
    chunk.key = bytes_key(round, part);
    chunk.descriptor = bytes;
    chunk.chunk = static_cast<std::uint32_t>(begin / kMailChunkBytes);
    chunk.chunk_count = mail_chunks_of(bytes);
    chunk.payload = content.part(begin, std::min(kMailChunkBytes, bytes - begin));
    if (!channel->send(std::move(chunk)).is_ok()) break;
  }
  return Status::ok();
}

Status Mail::receive(const ProcessId& peer, std::uint64_t round, std::uint64_t part, Then then) {
  GEOCOMM_RETURN_IF_ERROR(check(round, part));
  const auto receipt = std::make_shared<Receipt>(executor_, std::move(then));
  const auto channel = channel_of(peer, round);
  if (!channel) {
    receipt->finish(Status(StatusCode::Aborted, "no such peer: unknown, forgotten, or the mail is closed"));
    return Status::ok();
  }
  const Status posted = channel->post_receive(
      length_key(round, part), kLengthDescriptor, 1,
      std::make_shared<LengthSink>(receipt, channel, bytes_key(round, part), max_bytes_));
  if (!posted.is_ok()) receipt->finish(posted);
  return Status::ok();
}

Status Mail::end_round(std::uint64_t round) {
  GEOCOMM_RETURN_IF_ERROR(check(round, 0));
  {
    std::lock_guard lock(mutex_);
    rounds_.erase(round);
    if (closed_) return Status::ok();
  }
  endpoint_->close_group(group_of_round(round),
                         {StatusCode::Aborted, core::str("round ", round, " has ended")}, QueuedChunks::Drop);
  return Status::ok();
}

Status Mail::forget(const ProcessId& peer) {
  GEOCOMM_RETURN_IF_ERROR(check(0, 0));
  std::lock_guard changing(changing_);
  {
    std::lock_guard lock(mutex_);
    if (peers_.erase(peer) == 0 || closed_) return Status::ok();
  }
  endpoint_->forget(peer, {StatusCode::Aborted, "the peer was forgotten"});
  return Status::ok();
}

core::Result<std::vector<MailPeer>> Mail::peers() const {
  GEOCOMM_RETURN_IF_ERROR(check(0, 0));
  std::map<ProcessId, Peer> all;
  {
    std::lock_guard lock(mutex_);
    all = peers_;
  }
  std::vector<MailPeer> rows;
  for (const auto& [id, peer] : all) {
    MailPeer row{id, peer.address.description, peer.address.site, "", peer.channel->stats()};
    const Status status = peer.channel->status();
    row.state = !status.is_ok()          ? "failed: " + status.message()
                : row.stats.streams == 0 ? "connecting"
                                         : "connected";
    rows.push_back(std::move(row));
  }
  return rows;
}

Status Mail::close(std::chrono::milliseconds patience) {
  GEOCOMM_RETURN_IF_ERROR(check(0, 0));
  std::lock_guard changing(changing_);
  std::set<std::uint64_t> rounds;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return Status::ok();
    rounds.swap(rounds_);
  }
  // What others use stays open, with what is queued; what is to be received here ends.
  if (release_(patience)) return Status::ok();
  for (const std::uint64_t round : rounds) {
    endpoint_->close_group(group_of_round(round), {StatusCode::Aborted, "the mail was closed"},
                           QueuedChunks::Send);
  }
  return Status::ok();
}

}  // namespace geocomm::transport
