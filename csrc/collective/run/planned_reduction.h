// What the two kinds of reductions over the sites share: the plan (reduce_plan.h), and what frames they
// exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codec/frames/codec.h"
#include "codec/frames/frame.h"
#include "codec/spec/codec_spec.h"
#include "collective/layout/reduce_plan.h"
#include "collective/run/transfer.h"

namespace geocomm::collective {

// The codec of an operation: its caller's, else that of its policy, where the dtype and the reduction allow
// it.
codec::CodecSpec reduction_codec(const ExchangeConfig& config, const OpContext& context, ReduceOp op);
// What a chunk's owner sends: sums that are to be quantized again keep their precision until then.
core::DType result_dtype(const codec::CodecSpec& codec, core::DType dtype);

// `stripes` are checked (Exchange::reduce()); their data is not looked at. `codec`: that of the operation.
ReducePlan plan_of(const ExchangeConfig& config, const OpContext& context, const codec::CodecSpec& codec,
                   std::span<const StripeData> stripes);

// How this rank encodes a chunk of `stripe`: seeds differ between ranks, operations and kinds.
codec::CompressOptions encode_options(const ExchangeConfig& config, const OpContext& context,
                                      const StripeData& stripe, const PlannedChunk& chunk,
                                      Message::Kind kind);

class PlannedReduction : public Transfer {
 protected:
  // Messages of a chunk, but for those that this rank relays.
  struct Route {
    std::vector<Target> contributions;
    std::vector<Target> results;
    std::uint32_t contributions_awaited = 0;
    std::uint32_t results_awaited = 0;
  };

  PlannedReduction(std::shared_ptr<ExchangeShared> shared, const OpContext& context, ReduceOp op,
                   std::span<const StripeData> stripes);

  // The peers for plan().
  std::vector<Peer> make_peers() const;

  // Frames that this rank sends on, each one of the `finishes`.
  std::size_t relayed_frames() const { return relays_.size(); }
  // Where a frame for this rank lies once it is placed; memory for one of `bytes`, without mutex_; it is
  // there.
  virtual core::Buffer& slot(const Message& message) = 0;
  virtual core::Buffer room_for(const Message& message, std::size_t bytes) = 0;
  virtual void delivered_locked(const Message& message) = 0;
  // Whether the frame, sealed and whole, is what the chunk needs from that site.
  core::Result<codec::FrameView> check_frame(std::span<const std::byte> frame, core::DType dtype,
                                             const PlannedChunk& chunk, int site) const;

  std::uint64_t raw_bytes(const PlannedChunk& chunk) const;
  codec::CompressOptions encode_options(const PlannedChunk& chunk, Message::Kind kind) const;
  bool receives(const PlannedChunk& chunk) const;
  core::DType result_dtype() const { return collective::result_dtype(codec_, context().dtype); }
  int own_site() const { return config().topology.site(); }
  std::string site_peer_name(const PlannedChunk& chunk, int site) const;

  const ReduceOp op_;
  const std::vector<StripeData> stripes_;
  const codec::CodecSpec codec_;
  const ReducePlan plan_;
  std::vector<Route> routes_;  // per chunk

 private:
  using FrameName = std::pair<std::size_t, std::uint32_t>;  // peer that it comes from, number

  core::Result<std::span<std::byte>> place(std::size_t peer, std::uint32_t number,
                                           std::size_t bytes) override;
  Arrival on_arrival(std::size_t peer, std::uint32_t number) override;
  // Whether a frame of `bytes` may be that message: before any memory is taken for it.
  core::Status check_size(std::size_t peer, std::uint32_t number, std::size_t bytes) const;
  // Whether `rank` sends it without waiting for anybody.
  bool is_owed(const Message& message, int rank) const {
    return message.kind == Message::Kind::Contribution && message.origin == config().topology.site_of(rank);
  }

  std::map<FrameName, std::vector<Target>> relays_;
  // Guarded by mutex_.
  std::vector<std::vector<bool>> placed_;      // per peer and message
  std::map<FrameName, core::Buffer> relayed_;  // being received, for other ranks alone
};

}  // namespace geocomm::collective
