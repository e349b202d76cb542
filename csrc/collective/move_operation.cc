#include "collective/move_operation.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "collective/descriptor.h"
#include "core/str.h"

namespace geocomm::collective {

using core::Buffer;
using core::Result;
using core::Status;
using core::StatusCode;
using core::str;

namespace {

// The chunks of one rank's pieces, in order. Empty pieces have none; if all are empty, one empty chunk tells
// the peer that this rank is there.
template <typename Byte>
std::vector<std::span<Byte>> cut(const std::vector<std::span<Byte>>& pieces, std::size_t chunk_bytes) {
  std::vector<std::span<Byte>> chunks;
  for (std::span<Byte> piece : pieces) {
    while (!piece.empty()) {
      const std::size_t size = std::min(piece.size(), chunk_bytes);
      chunks.push_back(piece.first(size));
      piece = piece.subspan(size);
    }
  }
  if (chunks.empty()) chunks.emplace_back();
  return chunks;
}

template <typename Byte>
std::uint64_t total_bytes(const std::vector<std::span<Byte>>& pieces) {
  std::uint64_t total = 0;
  for (const auto& piece : pieces) total += piece.size();
  return total;
}

}  // namespace

MoveOperation::MoveOperation(std::shared_ptr<ExchangeShared> shared, const OpContext& context,
                             std::span<const SendPiece> sends, std::span<const ReceivePiece> receives)
    : Operation(std::move(shared), context) {
  struct Traffic {
    std::vector<std::span<const std::byte>> out;
    std::vector<std::span<std::byte>> in;
  };
  std::map<int, Traffic> traffic;
  for (const SendPiece& piece : sends) traffic[piece.rank].out.push_back(piece.data);
  for (const ReceivePiece& piece : receives) traffic[piece.rank].in.push_back(piece.data);

  // By place in the sequence of chunks, so that the peers take turns; equal memory is copied once.
  std::map<std::tuple<std::uint32_t, const std::byte*, std::size_t>, std::vector<Target>> jobs;
  std::vector<Peer> peers;
  std::size_t finishes = 0;
  for (const auto& [rank, pieces] : traffic) {
    Peer peer;
    peer.rank = rank;
    const auto descriptor = [&](std::uint64_t bytes) {
      return pack_descriptor({context.kind, context.dtype, std::nullopt, {}, bytes});
    };
    if (!pieces.out.empty()) {
      peer.send_descriptor = descriptor(total_bytes(pieces.out));
      for (const auto& chunk : cut(pieces.out, config().chunk_bytes)) {
        jobs[{peer.sends, chunk.data(), chunk.size()}].push_back({peers.size(), peer.sends});
        ++peer.sends;
      }
    }
    std::vector<Slot> slots;
    if (!pieces.in.empty()) {
      peer.receive_descriptor = descriptor(total_bytes(pieces.in));
      for (const auto& chunk : cut(pieces.in, config().chunk_bytes)) slots.push_back({chunk});
      peer.receives = peer.owed = static_cast<std::uint32_t>(slots.size());
      finishes += slots.size();
    }
    slots_.push_back(std::move(slots));
    peers.push_back(std::move(peer));
  }
  for (auto& [place, targets] : jobs) {
    jobs_.push_back({{std::get<1>(place), std::get<2>(place)}, std::move(targets)});
  }
  plan(std::move(peers), jobs_.size(), finishes);
}

Status MoveOperation::produce(std::size_t index) {
  const Job& job = jobs_[index];
  Buffer frame;
  if (!job.data.empty()) {
    frame = buffers().acquire(job.data.size());
    frame.resize(job.data.size());
    std::memcpy(frame.data(), job.data.data(), job.data.size());
  }
  for (const Target& to : job.targets) {
    GEOCOMM_RETURN_IF_ERROR(send(to.peer, to.number, frame, frame.size()));
  }
  return Status::ok();
}

Result<std::span<std::byte>> MoveOperation::place(std::size_t peer, std::uint32_t number,
                                                  std::size_t chunk_bytes) {
  Slot& slot = slots_[peer][number];
  if (chunk_bytes != slot.data.size()) {
    return Status(StatusCode::InvalidArgument,
                  str("chunk ", number, " from ", peer_name(peer), " has ", chunk_bytes, " bytes, expected ",
                      slot.data.size(), ": the pieces of ", to_string(context().kind),
                      " must have the same sizes on both ranks"))
        .with_peer(peer_name(peer));
  }
  std::lock_guard lock(mutex_);
  if (slot.placed) {
    return Status(StatusCode::CorruptData, str("chunk ", number, " from ", peer_name(peer), " came twice"))
        .with_peer(peer_name(peer));
  }
  slot.placed = true;
  return slot.data;
}

Operation::Arrival MoveOperation::on_arrival(std::size_t peer, std::uint32_t number) {
  const std::size_t bytes = slots_[peer][number].data.size();
  finished_locked();
  return {true, bytes, bytes};
}

}  // namespace geocomm::collective
