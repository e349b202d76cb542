// A reduction over the sites, in flight: encode, exchange, reduce, as reduce_plan.h lays it out.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "collective/run/planned_reduction.h"

namespace geocomm::collective {

class ReduceTransfer final : public PlannedReduction {
 public:
  // `stripes` are checked (Exchange::reduce()).
  ReduceTransfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context, ReduceOp op,
                 std::span<const StripeData> stripes);

  // After a run() that succeeded.
  FeedbackReport report() const;

 private:
  struct ChunkState {
    bool finishes = false;             // this rank reduces it or receives the result
    std::uint32_t awaited = 0;         // before it can be finished: frames of peers, and its own encoding
    std::vector<core::Buffer> frames;  // contributions, by site; of this site only where it takes its own
    core::Buffer result;               // the owner's frame
    FeedbackReport report;             // of what this rank encoded: one task's alone, then report()'s
  };

  core::Status produce(std::size_t job) override;
  void start() override;
  core::Buffer& slot(const Message& message) override;
  core::Buffer room_for(const Message&, std::size_t bytes) override { return buffers().sized(bytes); }
  void delivered_locked(const Message& message) override { arrived_locked(message.chunk); }

  void arrived_locked(std::size_t chunk);
  core::Status follow_data();
  std::size_t data_end(std::size_t chunk) const;
  core::Status finish(std::size_t chunk);
  core::Status reduce_exactly(std::size_t c);
  core::Status reduce_decoded(std::size_t c);
  core::Status take_result(const PlannedChunk& chunk, const core::Buffer& frame);
  core::Status send_result(std::size_t c, std::span<const std::byte> elements, core::Buffer& frame);
  core::Status send_frame(std::size_t c, const std::vector<Target>& to, const core::Buffer& frame);
  core::Status flush_residual(std::size_t c);
  void use_own(std::size_t c);
  core::Result<core::Buffer> encode_contribution(std::size_t c);
  core::Result<core::Buffer> encode_with_residual(const codec::CodecSpec& codec, std::size_t c);
  core::Result<core::Buffer> encode_result(std::size_t c, std::span<const std::byte> elements);
  core::Result<core::Buffer> compressed(const codec::CodecSpec& codec, const PlannedChunk& chunk,
                                        core::DType dtype, std::span<const std::byte> elements,
                                        const codec::CompressOptions& options);
  void keep_residual(std::size_t c);
  void end_feedback(std::size_t c);
  bool divides_at_end(const PlannedChunk& chunk) const;

  std::span<std::byte> data_of(const PlannedChunk& chunk) const;
  FeedbackSpans feedback_of(const PlannedChunk& chunk) const;
  int divisor() const;

  std::vector<ChunkState> states_;      // per chunk; frames, result and awaited guarded by mutex_
  std::vector<std::size_t> producers_;  // job → chunk
  std::vector<std::size_t> ready_;      // chunks to finish that await nothing: the group has one site
  std::vector<std::size_t> own_;  // with a DataFlow: chunks that await this rank's data, which nobody sends
  std::vector<std::size_t> stripe_begins_;  // in bytes of all stripes
};

}  // namespace geocomm::collective
