// A reduction over the sites, in flight: encode, exchange, reduce, as reduce_plan.h lays it out.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "codec/codec_spec.h"
#include "codec/frame.h"
#include "collective/operation.h"
#include "collective/reduce_plan.h"

namespace geocomm::collective {

class ReduceOperation final : public Operation {
 public:
  // `lanes` are checked (Exchange::reduce()).
  ReduceOperation(std::shared_ptr<ExchangeShared> shared, const OpContext& context, ReduceOp op,
                  std::span<const LaneData> lanes);

 private:
  struct Send {
    std::size_t peer = 0;
    std::uint32_t number = 0;  // of the chunk, on the wire
  };
  struct ChunkState {
    std::vector<Send> contributions;
    std::vector<Send> results;
    bool finishes = false;             // this rank reduces it or receives the result
    std::uint32_t awaited = 0;         // before it can be finished: frames of peers, and its own encoding
    std::vector<core::Buffer> frames;  // contributions, by site; of this site only where it takes its own
    core::Buffer result;               // the owner's frame
  };

  core::Status produce(std::size_t job) override;
  void start() override;
  core::Result<std::span<std::byte>> place(std::size_t peer, std::uint32_t chunk,
                                           std::size_t chunk_bytes) override;
  Arrival on_arrival(std::size_t peer, std::uint32_t chunk) override;

  void arrived_locked(std::size_t chunk);
  core::Status finish(std::size_t chunk);
  core::Status reduce_exactly(const PlannedChunk& chunk, ChunkState& state);
  core::Status reduce_decoded(const PlannedChunk& chunk, ChunkState& state);
  core::Status take_result(const PlannedChunk& chunk, const core::Buffer& frame);
  core::Status send_result(const PlannedChunk& chunk, const ChunkState& state,
                           std::span<const std::byte> elements, core::Buffer& frame);
  core::Result<core::Buffer> encode(const PlannedChunk& chunk, core::DType dtype,
                                    std::span<const std::byte> elements, Message::Kind kind);
  core::Result<codec::FrameView> check_frame(const core::Buffer& frame, core::DType dtype,
                                             const PlannedChunk& chunk, int site) const;

  std::span<std::byte> data_of(const PlannedChunk& chunk) const;
  std::uint64_t raw_bytes(const PlannedChunk& chunk) const;
  bool receives(const PlannedChunk& chunk) const;
  // What the owner's frames hold: sums that are to be quantized again keep their precision until then.
  core::DType result_dtype() const;
  int divisor() const;
  int own_site() const { return config().topology.site(); }
  std::string site_peer_name(const PlannedChunk& chunk, int site) const;

  const ReduceOp op_;
  const std::vector<LaneData> lanes_;
  codec::CodecSpec codec_;
  ReducePlan plan_;
  std::vector<ChunkState> states_;      // per chunk; frames and awaited guarded by mutex_
  std::vector<std::size_t> producers_;  // job → chunk
  std::vector<std::size_t> ready_;      // chunks to finish that await nothing: the group has one site
};

}  // namespace geocomm::collective
