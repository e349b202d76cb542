#include "binding/module/mail.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "binding/calls/wan_collectives.h"
#include "binding/torch/comm_error.h"
#include "core/str.h"

namespace geocomm::binding {

using core::Status;
using core::StatusCode;
using transport::OpKey;

namespace {

// Of a chunk: several make use of several streams, and credit is given for each.
constexpr std::uint64_t kChunkBytes = std::uint64_t{4} << 20;
static_assert(kChunkBytes <= transport::kMaxChunkBytes);
constexpr std::uint64_t kMostBytes = kChunkBytes * transport::kMaxChunkCount;
constexpr std::uint64_t kLengthDescriptor = 0x4C49414D;  // "MAIL"
constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kRoundBit = std::uint64_t{1} << 63;

std::uint64_t group_of(std::uint64_t round) {
  return round | kRoundBit;
}
OpKey length_key(std::uint64_t round, std::uint64_t part) {
  return {group_of(round), 2 * part};
}
OpKey bytes_key(std::uint64_t round, std::uint64_t part) {
  return {group_of(round), 2 * part + 1};
}
std::uint32_t chunks_of(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + kChunkBytes - 1) / kChunkBytes);
}

void check_names(std::uint64_t round, std::uint64_t part) {
  if (round < Mail::kMostRounds && part < Mail::kMostParts) return;
  throw_status(StatusCode::InvalidArgument,
               core::str("round ", round, ", part ", part, ": rounds are below 2**63, parts below 2**62"));
}

// Runs `task` where Python's lock may be waited for, with what it owns; leaks that if the gate is closed.
template <typename Owned>
void run_inside(const std::shared_ptr<CallGate>& gate, Owned owned) {
  blocking_executor().submit([gate, owned = std::move(owned)]() mutable {
    if (!gate->enter()) return core::leak(std::move(owned));
    {
      const Owned used = std::move(owned);
      used();
    }
    gate->leave();
  });
}

// Shared by the chunks on their way; the tensor is freed where Python's lock may be waited for.
std::shared_ptr<std::byte> held(const at::Tensor& content, const std::shared_ptr<CallGate>& gate) {
  struct Freed {
    at::Tensor tensor;
    void operator()() const {}
  };
  auto* const bytes = static_cast<std::byte*>(content.data_ptr());
  return {bytes,
          [gate, tensor = content](std::byte*) mutable { run_inside(gate, Freed{std::move(tensor)}); }};
}

// A receive: calls `then` once.
class Receipt {
 public:
  Receipt(std::shared_ptr<CallGate> gate, Mail::Then then) : gate_(std::move(gate)), then_(std::move(then)) {}
  ~Receipt() { finish(std::nullopt, "the channel was closed"); }
  Receipt(const Receipt&) = delete;
  Receipt& operator=(const Receipt&) = delete;

  void finish(std::optional<at::Tensor> content, std::string why) {
    if (finished_.exchange(true)) return;
    struct Call {
      Mail::Then then;
      std::optional<at::Tensor> content;
      std::string why;
      void operator()() const { then(content, why); }
    };
    run_inside(gate_, Call{std::move(then_), std::move(content), std::move(why)});
  }
  const std::shared_ptr<CallGate>& gate() const { return gate_; }

 private:
  const std::shared_ptr<CallGate> gate_;
  Mail::Then then_;
  std::atomic<bool> finished_{false};
};

class PartSink : public transport::ReceiveSink {
 public:
  explicit PartSink(std::shared_ptr<Receipt> receipt) : receipt_(std::move(receipt)) {}
  Status on_mismatch(std::uint64_t descriptor, std::uint32_t chunk_count) override {
    return core::corrupt("mail with descriptor ", descriptor, " in ", chunk_count, " chunks");
  }
  void on_error(const Status& status) override { receipt_->finish(std::nullopt, status.message()); }

 protected:
  const std::shared_ptr<Receipt> receipt_;
};

class BytesSink final : public PartSink {
 public:
  BytesSink(std::shared_ptr<Receipt> receipt, at::Tensor content)
      : PartSink(std::move(receipt)),
        bytes_(static_cast<std::byte*>(content.data_ptr()), static_cast<std::size_t>(content.numel())),
        left_(chunks_of(bytes_.size())),
        content_(std::move(content)) {}

  core::Result<std::span<std::byte>> place(std::uint32_t chunk, std::size_t chunk_bytes) override {
    const std::size_t begin = chunk * kChunkBytes;
    if (begin >= bytes_.size() || chunk_bytes != std::min<std::size_t>(kChunkBytes, bytes_.size() - begin)) {
      return core::corrupt("chunk ", chunk, " of ", chunk_bytes, " bytes in mail of ", bytes_.size());
    }
    return bytes_.subspan(begin, chunk_bytes);
  }
  void on_chunk(std::uint32_t) override {
    // Not shared any more: Python's lock may be needed to free what Python has seen.
    if (--left_ == 0) receipt_->finish(std::move(content_), "");
  }

 private:
  const std::span<std::byte> bytes_;
  std::uint32_t left_;
  at::Tensor content_;
};

class LengthSink final : public PartSink {
 public:
  LengthSink(std::shared_ptr<Receipt> receipt, std::weak_ptr<transport::Channel> channel, OpKey bytes_key,
             std::uint64_t max_bytes)
      : PartSink(std::move(receipt)), channel_(std::move(channel)), key_(bytes_key), max_bytes_(max_bytes) {}

  core::Result<std::span<std::byte>> place(std::uint32_t, std::size_t chunk_bytes) override {
    if (chunk_bytes != kLengthBytes) return core::corrupt("a length of mail in ", chunk_bytes, " bytes");
    return std::span<std::byte>(length_);
  }
  void on_chunk(std::uint32_t) override {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i) {
      length |= std::to_integer<std::uint64_t>(length_[i]) << (8 * i);
    }
    if (length > max_bytes_) {
      return receipt_->finish(
          std::nullopt,
          core::corrupt("mail of ", length, " bytes, at most ", max_bytes_, " are taken").message());
    }
    // A sink posts no receives, and memory may take a while.
    blocking_executor().submit([receipt = receipt_, channel = channel_, key = key_, length] {
      post_bytes(receipt, channel.lock(), key, length);
    });
  }

 private:
  static void post_bytes(const std::shared_ptr<Receipt>& receipt,
                         const std::shared_ptr<transport::Channel>& channel, OpKey key,
                         std::uint64_t length) {
    at::Tensor content;
    try {
      content = at::empty({static_cast<std::int64_t>(length)}, at::kByte);
    } catch (const std::exception&) {
      return receipt->finish(std::nullopt, core::str("no memory for ", length, " bytes of mail"));
    }
    if (length == 0) return receipt->finish(std::move(content), "");
    if (!channel) return receipt->finish(std::nullopt, "the channel was closed");
    const Status posted = channel->post_receive(key, length, chunks_of(length),
                                                std::make_shared<BytesSink>(receipt, std::move(content)));
    if (!posted.is_ok()) receipt->finish(std::nullopt, posted.message());
  }

  const std::weak_ptr<transport::Channel> channel_;
  const OpKey key_;
  const std::uint64_t max_bytes_;
  std::array<std::byte, kLengthBytes> length_{};
};

}  // namespace

bool CallGate::enter() {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  ++inside_;
  return true;
}

void CallGate::leave() {
  std::lock_guard lock(mutex_);
  if (--inside_ == 0) left_.notify_all();
}

void CallGate::close(core::Deadline deadline) {
  std::unique_lock lock(mutex_);
  closed_ = true;
  left_.wait_until(lock, deadline.when(), [&] { return inside_ == 0; });
}

Mail::Mail(std::shared_ptr<ProcessResources> process, const transport::JobToken& token,
           std::uint64_t max_bytes)
    : process_(std::move(process)), token_(token), max_bytes_(std::min(max_bytes, kMostBytes)) {
  if (!process_->acquire()) {
    throw_status(StatusCode::Aborted, "the endpoint is closed, or another process's: make a new one");
  }
  process_->endpoint->allow(token_);
}

Mail::~Mail() {
  if (mark_.is_here()) close(std::chrono::milliseconds(0));
}

void Mail::peer(transport::PeerAddress address) {
  require_own_process(mark_);
  address.verdict_from_above = true;
  std::lock_guard changing(changing_);
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    if (closed_) throw_status(StatusCode::Aborted, "the mail is closed");
    const auto known = peers_.find(address.id);
    failed = known != peers_.end() && !known->second.channel->status().is_ok();
  }
  if (failed) process_->endpoint->forget(address.id, {StatusCode::Aborted, "the channel is made anew"});
  auto channel = value_or_throw(process_->endpoint->connect(address, token_));
  std::lock_guard lock(mutex_);
  peers_[address.id] = {address, std::move(channel)};
}

// Null: there is none, or it is too late.
std::shared_ptr<transport::Channel> Mail::channel_of(const transport::ProcessId& peer, std::uint64_t round) {
  std::lock_guard lock(mutex_);
  const auto known = peers_.find(peer);
  if (closed_ || known == peers_.end()) return nullptr;
  rounds_.insert(round);
  return known->second.channel;
}

void Mail::send(const transport::ProcessId& peer, std::uint64_t round, std::uint64_t part,
                const at::Tensor& content) {
  require_own_process(mark_);
  check_names(round, part);
  const bool fits = content.defined() && content.layout() == at::kStrided && content.device().is_cpu() &&
                    content.scalar_type() == at::kByte && content.is_contiguous();
  if (!fits) throw_status(StatusCode::InvalidArgument, "mail is a contiguous uint8 tensor on the CPU");
  const auto bytes = static_cast<std::uint64_t>(content.numel());
  if (bytes > kMostBytes) {
    throw_status(StatusCode::InvalidArgument, core::str("mail of ", bytes, " bytes, at most ", kMostBytes));
  }
  const auto channel = channel_of(peer, round);
  if (!channel) return;

  transport::OutgoingChunk length;
  length.key = length_key(round, part);
  length.descriptor = kLengthDescriptor;
  length.payload = process_->buffers.acquire(kLengthBytes);
  length.payload.resize(kLengthBytes);
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length.payload.data()[i] = static_cast<std::byte>(bytes >> (8 * i) & 0xff);
  }
  if (!channel->send(std::move(length)).is_ok() || bytes == 0) return;

  const auto memory = held(content, gate_);
  for (std::uint64_t begin = 0; begin < bytes; begin += kChunkBytes) {
    transport::OutgoingChunk chunk;
    chunk.key = bytes_key(round, part);
    chunk.descriptor = bytes;
    chunk.chunk = static_cast<std::uint32_t>(begin / kChunkBytes);
    chunk.chunk_count = chunks_of(bytes);
    chunk.payload = core::Buffer::around({memory, memory.get() + begin},
                                         static_cast<std::size_t>(std::min(kChunkBytes, bytes - begin)));
    if (!channel->send(std::move(chunk)).is_ok()) return;
  }
}

void Mail::receive(const transport::ProcessId& peer, std::uint64_t round, std::uint64_t part, Then then) {
  require_own_process(mark_);
  check_names(round, part);
  const auto receipt = std::make_shared<Receipt>(gate_, std::move(then));
  const auto channel = channel_of(peer, round);
  if (!channel)
    return receipt->finish(std::nullopt, "no such peer: unknown, forgotten, or the mail is closed");
  const Status posted = channel->post_receive(
      length_key(round, part), kLengthDescriptor, 1,
      std::make_shared<LengthSink>(receipt, channel, bytes_key(round, part), max_bytes_));
  if (!posted.is_ok()) receipt->finish(std::nullopt, posted.message());
}

void Mail::end_round(std::uint64_t round) {
  require_own_process(mark_);
  check_names(round, 0);
  {
    std::lock_guard lock(mutex_);
    rounds_.erase(round);
    if (closed_) return;
  }
  process_->endpoint->close_group(group_of(round),
                                  {StatusCode::Aborted, core::str("round ", round, " has ended")},
                                  transport::QueuedChunks::Drop);
}

void Mail::forget(const transport::ProcessId& peer) {
  require_own_process(mark_);
  std::lock_guard changing(changing_);
  {
    std::lock_guard lock(mutex_);
    if (peers_.erase(peer) == 0 || closed_) return;
  }
  process_->endpoint->forget(peer, {StatusCode::Aborted, "the peer was forgotten"});
}

std::vector<MailPeer> Mail::peers() const {
  require_own_process(mark_);
  std::map<transport::ProcessId, Peer> all;
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

void Mail::close(std::chrono::milliseconds patience) {
  require_own_process(mark_);
  std::lock_guard changing(changing_);
  std::set<std::uint64_t> rounds;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    rounds.swap(rounds_);
  }
  // What others use stays open, with what is queued; what is to be received here ends.
  if (process_->release(patience)) return;
  for (const std::uint64_t round : rounds) {
    process_->endpoint->close_group(group_of(round), {StatusCode::Aborted, "the mail was closed"},
                                    transport::QueuedChunks::Send);
  }
}

}  // namespace geocomm::binding
