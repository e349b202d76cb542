// What the two kinds of reductions over the sites share: the plan (reduce_plan.h), and what frames they
// exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "codec/codec_spec.h"
#include "codec/frame.h"
#include "collective/operation.h"
#include "collective/reduce_plan.h"

namespace geocomm::collective {

// The codec of an operation: that of its policy where the dtype and the reduction allow it.
codec::CodecSpec reduction_codec(const OpContext& context, ReduceOp op);
// What a chunk's owner sends: sums that are to be quantized again keep their precision until then.
core::DType result_dtype(const codec::CodecSpec& codec, core::DType dtype);

// `lanes` are checked (Exchange::reduce()); their data is not looked at. `codec`: that of the operation.
ReducePlan plan_of(const ExchangeConfig& config, const OpContext& context, const codec::CodecSpec& codec,
                   std::span<const LaneData> lanes);

// How this rank encodes a chunk of `lane`: seeds differ between ranks, operations and kinds.
codec::CompressOptions encode_options(const ExchangeConfig& config, const OpContext& context,
                                      const LaneData& lane, const PlannedChunk& chunk, Message::Kind kind);

class PlannedReduction : public Operation {
 protected:
  struct Send {
    std::size_t peer = 0;
    std::uint32_t number = 0;  // of the chunk, on the wire
  };
  // Messages of a chunk.
  struct Route {
    std::vector<Send> contributions;
    std::vector<Send> results;
    std::uint32_t contributions_awaited = 0;
    std::uint32_t results_awaited = 0;
  };

  PlannedReduction(std::shared_ptr<ExchangeShared> shared, const OpContext& context, ReduceOp op,
                   std::span<const LaneData> lanes);

  // The peers for plan().
  std::vector<Peer> make_peers() const;

  const Message& received_message(std::size_t peer, std::uint32_t number) const {
    return plan_.peers[peer].receives[number];
  }
  int site_of_peer(std::size_t peer) const { return config().topology.site_of(plan_.peers[peer].rank); }
  // Whether a frame of `bytes` may be that message: before any memory is taken for it.
  core::Status check_size(std::size_t peer, std::uint32_t number, std::size_t bytes) const;
  core::Status came_twice(std::size_t peer, std::uint32_t number) const;
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
  const std::vector<LaneData> lanes_;
  const codec::CodecSpec codec_;
  const ReducePlan plan_;
  std::vector<Route> routes_;  // per chunk
};

}  // namespace geocomm::collective
