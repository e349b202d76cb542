// FailureNotice: how a failed rank tells the others of its group, so that none of them waits for its timeout.
//
// A rank that fails leaves its partners waiting: those on other sites for its chunks, those on its own site
// inside of Gloo, which cannot be interrupted from outside. So every rank has a few neighbours in the group
// (its partners at the other sites, and the ranks before and after it at its own), tells them when the group
// has failed, and passes on what it hears. A neighbour whose process dies is such news too, also while the
// group is idle. Knows nothing of torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/executor.h"
#include "core/status.h"
#include "transport/channel.h"

namespace geocomm::binding {

class FailureNotice : public std::enable_shared_from_this<FailureNotice> {
 public:
  // `executor` and `buffers` outlive it. All methods are thread-safe and do not block.
  FailureNotice(std::uint64_t group, std::vector<std::shared_ptr<transport::Channel>> neighbours,
                core::GrowingExecutor& executor, core::BufferPool& buffers);

  // From now on `on_failure` runs, on the executor and at most once, with what the first neighbour says or
  // died of.
  void listen(std::function<void(const core::Status&)> on_failure);
  // Tells the neighbours; Ok: that this rank leaves in good order. Only the first call counts. To be called
  // before the group is closed at the endpoint; the notice arrives all the same.
  void send(const core::Status& why);
  // Hears nothing any more.
  void close();

 private:
  class Sink;
  void heard(const core::Status& status);

  const transport::OpKey key_;
  const std::vector<std::shared_ptr<transport::Channel>> neighbours_;
  core::GrowingExecutor& executor_;
  core::BufferPool& buffers_;
  std::mutex mutex_;  // guards all below
  std::function<void(const core::Status&)> on_failure_;
  bool sent_ = false;
};

// The chunk's bytes: status code (4, little-endian), peer, a zero byte, message; at most kMaxNoticeBytes.
inline constexpr std::size_t kMaxNoticeBytes = 4096;
std::vector<std::byte> encode_notice(const core::Status& status);
// What was encoded, or CorruptData if `bytes` is no notice.
core::Status decode_notice(std::span<const std::byte> bytes);

}  // namespace geocomm::binding
