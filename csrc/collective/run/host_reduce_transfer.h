// A reduction over the sites whose frames the host makes and uses up, with its codecs, in tasks of the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collective/run/reduce_transfer.h"

namespace geocomm::collective {

class HostReduceTransfer final : public ReduceTransfer {
 public:
  HostReduceTransfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context, ReduceOp op,
                     std::span<const StripeData> stripes);

  // After a run() that succeeded.
  FeedbackReport report() const;

 private:
  core::Result<core::Buffer> make(std::size_t c, Kind kind) override;
  core::Status use(std::size_t c) override;
  void start() override;

  core::Status follow_data();
  std::size_t data_end(const FrameChunk& chunk) const;
  // The frame of the sum, where that is sent: of a chunk's owner, and of who adds up for it. Else the sum is
  // in the caller's data.
  core::Result<core::Buffer> sum(std::size_t c);
  core::Result<core::Buffer> sum_exactly(std::size_t c);
  core::Result<core::Buffer> sum_decoded(std::size_t c);
  core::Status reduce(std::size_t c);
  core::Status take_result(const FrameChunk& chunk);
  core::Status flush_residual(std::size_t c);
  void use_own(const FrameChunk& chunk);
  core::Result<core::Buffer> encode_contribution(std::size_t c);
  core::Result<core::Buffer> encode_with_residual(const codec::CodecSpec& codec, std::size_t c);
  core::Result<core::Buffer> encode_sum(std::size_t c, std::span<const std::byte> elements);
  core::Result<core::Buffer> compressed(const codec::CodecSpec& codec, core::DType dtype,
                                        std::span<const std::byte> elements,
                                        const codec::CompressOptions& options);
  void keep_residual(std::size_t c);
  void end_feedback(std::size_t c);
  bool divides_at_end(const FrameChunk& chunk) const;
  int divisor_of(const FrameChunk& chunk) const { return chunk.adds ? 1 : frames_->divisor; }
  // Of a chunk whose sum this rank makes.
  static bool sends_sum(const FrameChunk& chunk) { return chunk.owns || chunk.adds; }
  // Whether a site sends what it adds up for the owner.
  bool is_sum(const FrameChunk& chunk, int site) const;
  // Whose sum is made apart; 0 where no region's is.
  std::uint32_t region_of(std::size_t site) const;

  std::span<std::byte> data_of(const FrameChunk& chunk) const;
  FeedbackSpans feedback_of(const FrameChunk& chunk) const;

  std::vector<FeedbackReport>
      reports_;                   // per chunk, of what this rank encoded: one task's alone, then report()'s
  std::vector<std::size_t> own_;  // with a DataFlow: chunks that await this rank's data, which nobody sends
  std::vector<std::size_t> stripe_begins_;  // in bytes of all stripes
};

}  // namespace geocomm::collective
