#include "binding/operation/failure_notice.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/str.h"

namespace geocomm::binding {

using core::Status;
using core::StatusCode;

namespace {

// The number of no operation: those begin at 1.
constexpr std::uint64_t kNoticeOp = 0;
constexpr std::uint64_t kNoticeDescriptor = 0x4543'4954'4f4e;  // "NOTICE"
constexpr std::size_t kCodeBytes = 4;

}  // namespace

std::vector<std::byte> encode_notice(const Status& status) {
  const auto code = static_cast<std::uint32_t>(status.code());
  std::string text(reinterpret_cast<const char*>(&code), kCodeBytes);
  text += status.peer().substr(0, kMaxNoticeBytes / 4) + '\0' + status.message();
  text.resize(std::min(text.size(), kMaxNoticeBytes));
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

Status decode_notice(std::span<const std::byte> bytes) {
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto end_of_peer = text.find('\0', kCodeBytes);
  if (bytes.size() > kMaxNoticeBytes || end_of_peer == std::string::npos) {
    return core::corrupt("a failure notice of ", bytes.size(), " bytes has no peer");
  }
  std::uint32_t code = 0;
  std::memcpy(&code, bytes.data(), kCodeBytes);
  if (code > static_cast<std::uint32_t>(StatusCode::Internal)) {
    return core::corrupt("a failure notice has the unknown status code ", code);
  }
  if (code == 0) return Status::ok();
  return Status(static_cast<StatusCode>(code), text.substr(end_of_peer + 1))
      .with_peer(text.substr(kCodeBytes, end_of_peer - kCodeBytes));
}

// Takes the one chunk that a neighbour may send.
class FailureNotice::Sink : public transport::ReceiveSink {
 public:
  Sink(std::weak_ptr<FailureNotice> notice, std::string from)
      : notice_(std::move(notice)), from_(std::move(from)) {}

  core::Result<std::span<std::byte>> place(std::uint32_t, std::size_t chunk_bytes) override {
    if (chunk_bytes > kMaxNoticeBytes) {
      return core::corrupt("a failure notice of ", chunk_bytes, " bytes");
    }
    bytes_.resize(chunk_bytes);
    return std::span<std::byte>(bytes_);
  }
  void on_chunk(std::uint32_t) override {
    const Status said = decode_notice(bytes_);
    if (said.is_ok()) return;
    // What another rank passes on stays what it is: only the first one says who told it.
    const bool passed_on = said.message().find(kToldBy) != std::string::npos;
    tell(Status(said.code(), passed_on ? said.message() : core::str(said.message(), kToldBy, from_, ")"))
             .with_peer(said.peer()));
  }
  Status on_mismatch(std::uint64_t descriptor, std::uint32_t) override {
    return core::corrupt("a failure notice has the descriptor ", descriptor);
  }
  void on_error(const Status& status) override {
    // Neighbours that cannot be reached at all, or a channel closed here, are no news of the group.
    if (status.code() == StatusCode::PeerLost) tell(Status(status).with_peer(from_));
  }

 private:
  static constexpr const char* kToldBy = " (told by ";

  void tell(const Status& status) {
    if (const auto notice = notice_.lock()) notice->heard(status);
  }

  const std::weak_ptr<FailureNotice> notice_;
  const std::string from_;
  std::vector<std::byte> bytes_;
};

FailureNotice::FailureNotice(std::uint64_t group, std::vector<std::shared_ptr<transport::Channel>> neighbours,
                             core::GrowingExecutor& executor, core::BufferPool& buffers)
    : key_{.group = group, .op = kNoticeOp},
      neighbours_(std::move(neighbours)),
      executor_(executor),
      buffers_(buffers) {}

void FailureNotice::listen(std::function<void(const Status&)> on_failure) {
  {
    std::lock_guard lock(mutex_);
    on_failure_ = std::move(on_failure);
  }
  for (const auto& neighbour : neighbours_) {
    // A channel that has failed already tells its sink so.
    (void)neighbour->post_receive(key_, kNoticeDescriptor, 1,
                                  std::make_shared<Sink>(weak_from_this(), neighbour->peer()));
  }
}

void FailureNotice::heard(const Status& status) {
  std::function<void(const Status&)> on_failure;
  {
    std::lock_guard lock(mutex_);
    on_failure = std::exchange(on_failure_, nullptr);
  }
  if (on_failure) executor_.post([on_failure = std::move(on_failure), status] { on_failure(status); });
}

// spec operations 6.1: "A rank MUST tell its neighbours when its group fails, and when it leaves."
void FailureNotice::send(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(sent_, true)) return;
  }
  const auto bytes = encode_notice(why);
  for (const auto& neighbour : neighbours_) {
    // One that is lost need not know.
    (void)neighbour->send({.key = key_,
                           .descriptor = kNoticeDescriptor,
                           .payload = buffers_.copy_of(bytes),
                           .outlives_group = true});
  }
}

void FailureNotice::close() {
  std::lock_guard lock(mutex_);
  on_failure_ = nullptr;
}

}  // namespace geocomm::binding
