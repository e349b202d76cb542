// Bytes sent and received exactly, in flight. The pieces between two ranks are cut into chunks that do not
// cross pieces; the sender copies them into frames, the channel writes them where they belong. A chunk that
// is forwarded goes on once it is there.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "collective/run/transfer.h"

namespace geocomm::collective {

class MoveTransfer final : public Transfer {
 public:
  // The pieces are checked (Exchange::move()).
  MoveTransfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context,
               std::span<const SendPiece> sends, std::span<const ReceivePiece> receives);

 private:
  // Bytes that go to one peer or, as in a broadcast, to several.
  struct Job {
    std::span<const std::byte> data;
    std::vector<Target> targets;
  };
  struct Slot {
    std::span<std::byte> data;
    bool relayed = false;
    std::vector<Target> forward_to = {};
    bool placed = false;
  };

  core::Status produce(std::size_t job) override;
  core::Result<std::span<std::byte>> place(std::size_t peer, std::uint32_t chunk,
                                           std::size_t chunk_bytes) override;
  Arrival on_arrival(std::size_t peer, std::uint32_t chunk) override;

  std::vector<Job> jobs_;
  std::vector<std::vector<Slot>> slots_;  // per peer and chunk; placed is guarded by mutex_
};

}  // namespace geocomm::collective
