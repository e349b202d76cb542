// The data stream of an RDMA link. Its TCP (or TLS) connection carries the fabric addresses of both ends, and
// then nothing: it says that both ends still have this link. Segments travel over the fabric. When either is
// lost, the stream is.
//
// A link has one such stream only: the fabric stripes by itself, and one that is lost lets go of the memory
// that it was receiving into before its successor can receive the same segments again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/status.h"
#include "transport/io/connection.h"
#include "transport/io/io_loop.h"
#include "transport/link/stream.h"
#include "transport/rdma/rdma_fabric.h"
#include "transport/wire/wire.h"

namespace geocomm::transport {

// All on the IO thread.
class RdmaStream final : public Stream, public RdmaLinkDelegate {
 public:
  RdmaStream(IoLoop& loop, std::unique_ptr<Connection> connection, const Carrier& carrier,
             StreamDelegate& delegate, RdmaFabric& fabric);
  ~RdmaStream() override;

  core::Status start() override;
  bool is_idle() const override { return is_open() && connected_ && in_flight_bytes_ == 0; }
  void wake() override;
  void help() override { wake(); }
  void close() override;
  std::string transport() const override;
  bool is_fruitless() const override { return (in_flight_bytes_ > 0 || !connected_) && !moved_; }

  // Of the TCP connection.
  void on_ready(std::uint32_t events) override;
  std::optional<RdmaIncoming> on_message(std::span<const std::byte> header,
                                         std::size_t payload_bytes) override;

 private:
  struct FabricEvents : IoHandler {
    explicit FabricEvents(RdmaStream& its_stream) : stream(its_stream) {}
    void on_ready(std::uint32_t) override { stream.run_soon(); }
    RdmaStream& stream;
  };

  core::Status send_address();
  void read();
  void answer();
  void on_address();
  void run();
  void run_soon();
  bool send_segments();
  void on_sent(const OutSegment& segment);
  void watch_for_stall();

  RdmaFabric& fabric_;
  // Lets a posted task find out that this stream is gone.
  const std::shared_ptr<RdmaStream*> self_ = std::make_shared<RdmaStream*>(this);
  FabricEvents events_{*this};
  IoLoop::HandlerId fabric_handler_ = 0;
  IoLoop::HandlerId handler_ = 0;
  std::uint32_t watched_ = 0;  // of the TCP connection
  std::unique_ptr<RdmaLink> link_;
  std::uint64_t token_ = 0;       // ours: messages for this link begin with it
  std::uint64_t peer_token_ = 0;  // of the peer
  bool connected_ = false;        // the peer's address is here
  bool runs_soon_ = false;

  std::vector<std::byte> received_;            // of the peer's RdmaAddress
  std::unordered_set<std::uint64_t> landing_;  // numbers of segments that are being received
  std::size_t in_flight_bytes_ = 0;            // given to the fabric and not sent
  bool moved_ = false;                         // a segment was sent or received
  Timers::Time last_sent_;
  Timers::TimerId stall_timer_{};
  bool stall_timer_runs_ = false;

  mutable std::mutex mutex_;  // guards transport_
  std::string transport_ = "rdma";
};

}  // namespace geocomm::transport
