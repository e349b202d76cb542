#include "collective/run/move_transfer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "collective/layout/descriptor.h"
#include "core/str.h"

namespace geocomm::collective {

using core::Buffer;
using core::Result;
using core::Status;
using core::StatusCode;
using core::str;

namespace {

template <typename Byte>
struct Piece {
  std::span<Byte> data;
  bool relayed = false;  // for, or from, another rank
};

// The chunks of one rank's pieces, in order. Empty pieces have none; if all are empty, one empty chunk tells
// the peer that this rank is there.
template <typename Byte>
std::vector<Piece<Byte>> cut(const std::vector<Piece<Byte>>& pieces, std::size_t chunk_bytes) {
  std::vector<Piece<Byte>> chunks;
  for (auto [data, relayed] : pieces) {
    while (!data.empty()) {
      const std::size_t size = std::min(data.size(), chunk_bytes);
      chunks.push_back({data.first(size), relayed});
      data = data.subspan(size);
    }
  }
  if (chunks.empty()) chunks.emplace_back();
  return chunks;
}

template <typename Byte>
std::uint64_t total_bytes(const std::vector<Piece<Byte>>& pieces) {
  std::uint64_t total = 0;
  for (const auto& piece : pieces) total += piece.data.size();
  return total;
}

}  // namespace

MoveTransfer::MoveTransfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context,
                           std::span<const SendPiece> sends, std::span<const ReceivePiece> receives)
    : Transfer(std::move(shared), context) {
  struct Traffic {
    std::vector<Piece<const std::byte>> out;
    std::vector<Piece<std::byte>> in;
  };
  std::map<int, Traffic> traffic;
  for (const SendPiece& piece : sends) traffic[piece.rank].out.push_back({piece.data});
  for (const ReceivePiece& piece : receives) {
    traffic[piece.rank].in.push_back({piece.data, piece.relayed});
    for (const int rank : piece.forward_to) traffic[rank].out.push_back({piece.data, true});
  }

  // By place in the sequence of chunks, so that the peers take turns; equal memory is copied once.
  std::map<std::tuple<std::uint32_t, const std::byte*, std::size_t>, std::vector<Target>> jobs;
  std::map<const std::byte*, std::vector<Target>> forwarded;  // by where the chunk is received
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
      for (const auto& [data, relayed] : cut(pieces.out, config().chunk_bytes)) {
        auto& targets = relayed ? forwarded[data.data()] : jobs[{peer.sends, data.data(), data.size()}];
        targets.push_back({peers.size(), peer.sends});
        ++peer.sends;
      }
    }
    std::vector<Slot> slots;
    if (!pieces.in.empty()) {
      peer.receive_descriptor = descriptor(total_bytes(pieces.in));
      for (const auto& [data, relayed] : cut(pieces.in, config().chunk_bytes)) {
        slots.push_back({data, relayed});
        if (!relayed) ++peer.owed;
      }
      peer.receives = static_cast<std::uint32_t>(slots.size());
      finishes += slots.size();
    }
    slots_.push_back(std::move(slots));
    peers.push_back(std::move(peer));
  }
  for (auto& slots : slots_) {
    for (Slot& slot : slots) {
      const auto found = forwarded.find(slot.data.data());
      if (slot.data.empty() || found == forwarded.end()) continue;
      slot.forward_to = found->second;
      ++finishes;
    }
  }
  std::uint64_t bytes = 0;
  for (const SendPiece& piece : sends) bytes += piece.data.size();
  for (const ReceivePiece& piece : receives) bytes += piece.data.size();
  for (auto& [place, targets] : jobs) {
    jobs_.push_back({{std::get<1>(place), std::get<2>(place)}, std::move(targets)});
  }
  plan(std::move(peers), jobs_.size(), finishes, bytes);
}

Status MoveTransfer::produce(std::size_t index) {
  const Job& job = jobs_[index];
  return send(job.targets, buffers().copy_of(job.data), job.data.size());
}

Result<std::span<std::byte>> MoveTransfer::place(std::size_t peer, std::uint32_t number,
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
  if (slot.placed) return came_twice(peer, number);
  slot.placed = true;
  return slot.data;
}

Transfer::Arrival MoveTransfer::on_arrival(std::size_t peer, std::uint32_t number) {
  const Slot& slot = slots_[peer][number];
  if (!slot.forward_to.empty()) {
    submit_finish_locked(
        [this, &slot] { return relay(slot.forward_to, buffers().copy_of(slot.data), slot.data.size()); });
  }
  finished_locked();
  return {!slot.relayed, slot.data.size(), slot.data.size()};
}

}  // namespace geocomm::collective
