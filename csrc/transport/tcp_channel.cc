#include "transport/tcp_channel.h"

#include <utility>

#include "core/must_not_throw.h"
#include "core/str.h"

namespace geocomm::transport {

using core::Status;
using core::StatusCode;

namespace {
// What a channel shares between threads is half changed then.
constexpr const char* kCall = "ended a call of a channel";
}  // namespace

TcpChannel::TcpChannel(std::shared_ptr<ChannelContext> context, const ProcessId& peer_id,
                       std::string description)
    : context_(std::move(context)),
      name_(std::move(description)),
      mux_(context_->options.max_unexpected_bytes, context_->pool, context_->closed_groups,
           [this] { schedule_flush(); }),
      link_(*context_, peer_id, name_, mux_, [this] { schedule_flush(); }) {}

Status TcpChannel::wait_ready(core::Deadline deadline) {
  GEOCOMM_ASSIGN_OR_RETURN(const bool connected, link_.status().wait(deadline));
  if (connected) return Status::ok();
  return Status(StatusCode::Timeout, core::str("not connected to ", peer(), " yet"))
      .with_peer(std::string(peer()));
}

Status TcpChannel::send(OutgoingChunk chunk, std::function<void(const Status&)> on_sent) {
  const bool write_here = chunk.write_here;
  Status status =
      core::must_not_throw(kCall, [&] { return mux_.send(std::move(chunk), std::move(on_sent)); });
  if (!status.is_ok()) return std::move(status).with_peer(std::string(peer()));
  if (!write_here || !context_->loop->try_run([this] { flush(); })) schedule_flush();
  return status;
}

Status TcpChannel::post_receive(OpKey key, std::uint64_t descriptor, std::uint32_t chunk_count,
                                std::shared_ptr<ReceiveSink> sink) {
  if (link_.status().is_leaving() && sink) {
    const Status why = status();
    sink->on_error(why);
    return why;
  }
  Status posted = core::must_not_throw(kCall, [&] { return mux_.post(key, descriptor, chunk_count, sink); });
  return posted.is_ok() ? posted : std::move(posted).with_peer(std::string(peer()));
}

void TcpChannel::cancel(OpKey key) {
  core::must_not_throw(
      kCall, [&] { run_callbacks(mux_.cancel(key), {StatusCode::Aborted, "the operation was cancelled"}); });
}

void TcpChannel::close_group(std::uint64_t group, const Status& why, QueuedChunks queued) {
  core::must_not_throw(kCall, [&] { run_callbacks(mux_.close_group(group, why, queued), why); });
}

void TcpChannel::expect_rate(double bytes_per_sec) {
  context_->loop->post(
      [self = shared_from_this(), bytes_per_sec] { self->link_.expect_rate(bytes_per_sec); });
}

ChannelStats TcpChannel::stats() const {
  ChannelStats stats;
  static_cast<MuxStats&>(stats) = mux_.stats();
  link_.add_stats(stats);
  return stats;
}

void TcpChannel::run_callbacks(Mux::Callbacks callbacks, const Status& status) {
  if (callbacks.empty()) return;
  context_->loop->post([callbacks = std::move(callbacks), status, self = shared_from_this()] {
    for (const auto& callback : callbacks) callback(status);
    self->schedule_flush();  // nothing may be left to wait for
  });
}

void TcpChannel::schedule_flush() {
  if (flush_scheduled_.exchange(true)) return;
  core::must_not_throw(kCall, [&] { context_->loop->post([self = shared_from_this()] { self->flush(); }); });
}

void TcpChannel::flush() {
  flush_scheduled_ = false;
  link_.flush();
}

}  // namespace geocomm::transport
