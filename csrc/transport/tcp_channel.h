// A Channel over TCP: one control stream, which carries Grant, heartbeats, acknowledgements and Close, and
// data streams, which carry segments, or one that has them carried by RDMA. What they carry is its Mux's, the
// connections are its Link's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/buffer.h"
#include "core/deadline.h"
#include "core/status.h"
#include "transport/channel.h"
#include "transport/link/link.h"
#include "transport/link/peer_name.h"
#include "transport/mux/closed_groups.h"
#include "transport/mux/mux.h"
#include "transport/rdma/rdma_fabric.h"

namespace geocomm::transport {

// What the channels of an endpoint share; outlives them all.
struct ChannelContext : LinkContext {
  core::BufferPool pool{std::size_t{64} << 20};  // of unexpected chunks
  ClosedGroups closed_groups;
  std::unique_ptr<RdmaFabric> rdma;  // null: none; the IO thread's once it runs
};

class TcpChannel final : public Channel, public std::enable_shared_from_this<TcpChannel> {
 public:
  TcpChannel(std::shared_ptr<ChannelContext> context, const ProcessId& peer_id, std::string description);

  core::Status wait_ready(core::Deadline deadline) override;
  core::Status send(OutgoingChunk chunk, std::function<void(const core::Status&)> on_sent) override;
  core::Status post_receive(OpKey key, std::uint64_t descriptor, std::uint32_t chunk_count,
                            std::shared_ptr<ReceiveSink> sink) override;
  void cancel(OpKey key) override;
  void expect_rate(double bytes_per_sec) override;
  core::Status status() const override { return link_.status().reason(); }
  ChannelStats stats() const override;
  const std::string& peer() const override { return name_.get(); }

  // Any thread. Gives a channel that the peer opened its name; the first one counts.
  void describe(const std::string& description) { name_.set(description); }
  void close_group(std::uint64_t group, const core::Status& why, QueuedChunks queued);

  // The IO thread's.
  Link& link() { return link_; }

 private:
  void run_callbacks(Mux::Callbacks callbacks, const core::Status& status);
  void schedule_flush();
  void flush();

  const std::shared_ptr<ChannelContext> context_;
  PeerName name_;
  std::atomic<bool> flush_scheduled_{false};
  Mux mux_;
  Link link_;
};

}  // namespace geocomm::transport
