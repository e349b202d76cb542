// A lossy reduction whose frames are made, decoded and summed on a device, all chunks of a group at once:
// what is enqueued does not grow with the chunks. What it does is that of host_reduce_transfer.h, bit for
// bit.
//
// Frames cross between the device and the host once each: those of this rank are made in the device's memory,
// where it reads them again, and copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "codec/cuda/cuda_codec.h"
#include "codec/cuda/payload_plan.h"
#include "collective/cuda/device_feedback.h"
#include "collective/cuda/device_sums.h"
#include "collective/run/frame_plan.h"
#include "collective/sums/feedback.h"
#include "core/dtype.h"
#include "core/status.h"

namespace geocomm::collective::cuda {

// Error feedback of an operation, on the device (CallerCodec).
struct DeviceFeedback {
  float decay = 1.0f;
  std::vector<FeedbackSpans> chunks;  // in the device's memory; `next` is not `residual`
  // `next` is not the caller's: where the operation commits, the residual itself becomes the new one. Else
  // the caller's `next` does, and where it does not commit that becomes the residual as it was.
  bool replaces = false;
};

// Launches of a group of two sites, where every rank reduces for itself.
std::uint32_t launches_of_group(const codec::CodecSpec& codec);
// Of a rank's elements that a group should have, in bytes: its launches should cost less than what they do,
// at a megabyte in 1 us and a launch in 4 us. Smaller groups are sooner on their way, and take less memory.
std::size_t group_bytes(const codec::CodecSpec& codec);

class BatchedReduction {
 public:
  // `plan` as Exchange::plan_frames() made it, in memory that the device reaches; `data_dev` has each chunk's
  // elements, on the device. Its codec is_supported(), of `dtype` and of Float32.
  BatchedReduction(std::shared_ptr<const FramePlan> plan, core::DType dtype,
                   std::vector<std::span<std::byte>> data_dev,
                   std::optional<DeviceFeedback> feedback = std::nullopt);

  // Memory that it works in, aligned to 16, until the stream has passed all that was enqueued: on the device,
  // and pinned.
  std::size_t device_bytes() const { return device_bytes_; }
  std::size_t pinned_bytes() const { return pinned_bytes_; }
  core::Status take_memory(std::byte* device, std::byte* pinned);

  // The steps of FrameChunk, in this order: 1 of the groups in their order; 3 and 4 likewise; 5, of all
  // results that come, and the end of the feedback.
  core::Status enqueue_contributions(std::uint32_t group, Stream stream) const;
  core::Status enqueue_sums(std::uint32_t group, Stream stream) const;
  core::Status enqueue_results(Stream stream) const;
  // By the host, before the stream comes to enqueue_sums() of these groups: the plan has their frames.
  // Thread-safe.
  void arrived(std::uint32_t groups);
  // Before it comes to enqueue_results(): the exchange has succeeded, without which the new residual is not
  // kept, and the plan has the results.
  void exchanged();
  // Once the stream has passed: whether all that was received decoded; what became of the residual.
  core::Status verdict() const;
  FeedbackReport report() const;  // without wire_bytes
  // Which kernels it takes.
  const char* name_of_feedback() const {
    return !feedback_ ? "" : feedback_->replaces ? " feedback, replaced" : " feedback";
  }
  bool committed() const { return totals_ != nullptr && totals_->committed != 0; }

 private:
  // What a site brings to the sums.
  struct Site {
    std::size_t first = 0;  // of its frames in `received`
    std::size_t frames = 0;
    std::span<const SumPiece> own = {};  // elements of this rank as they are
  };
  // Batches are of no frames where there are none.
  struct Group {
    codec::cuda::Batch contributions;
    codec::cuda::Batch received;  // those of the first site, then those of the next
    codec::cuda::Batch made_results;
    std::vector<Site> sites;
    std::span<const SumPiece> sums;  // to be divided, and rounded where this rank receives them
    // With feedback: where their squares are.
    std::size_t contribution_tile = 0;
    std::size_t result_tile = 0;
    std::uint32_t word = 0;  // that says what was found in `received`
  };

  // Results that come, or that this rank made: of all groups, or of one where they are rounded.
  struct Results {
    std::size_t first = 0;  // of its frames in `results_`
    std::size_t frames = 0;
    std::span<const SumPiece> to_round = {};
  };

  bool takes_result(const FrameChunk& chunk) const { return chunk.receives && chunk.has_result; }
  bool has_sums_apart(const FrameChunk& chunk) const;
  void place_sums(codec::cuda::SpaceCutter& device);
  void list_results();
  // Where all is in that memory; nullptr: how much it takes.
  void lay_out(std::byte* device, std::byte* pinned);
  Publication verdicts(std::uint32_t first, std::uint32_t count) const;
  core::Status enqueue_end_of_feedback(Stream stream) const;
  codec::cuda::BatchFeedback batch_feedback(std::size_t tile, bool of_results) const;
  // take(index, chunk) for those of the group that this rank reduces.
  template <typename Take>
  void for_each_reduced(std::uint32_t group, const Take& take) const;
  bool is_own_part(const FrameChunk& chunk, std::size_t site) const;
  std::vector<Site> sites_of(std::uint32_t group, codec::cuda::Batch& received, bool has_memory,
                             codec::cuda::SpaceCutter& pinned) const;
  codec::cuda::BatchFrame made_frame(std::size_t chunk, bool is_result, std::byte* elements,
                                     std::span<std::byte> frame) const;
  FeedbackPiece feedback_piece(std::size_t chunk, float* sums) const;

  const std::shared_ptr<const FramePlan> plan_;
  const core::DType dtype_;
  const std::vector<std::span<std::byte>> data_dev_;
  const std::optional<DeviceFeedback> feedback_;
  std::vector<Group> groups_;
  codec::cuda::Batch results_;
  std::vector<std::size_t> result_chunks_;  // of its frames
  std::vector<Results> result_parts_;       // one at least
  // Of chunks.
  std::vector<float*> sums_;
  std::vector<std::span<std::byte>> own_frames_;
  std::mutex arrived_mutex_;   // guards arrived_
  std::uint32_t arrived_ = 0;  // groups
  std::uint32_t words_ = 0;    // verdicts: of groups that receive, then of results
  std::uint64_t* verdicts_dev_ = nullptr;
  std::uint64_t* verdicts_ = nullptr;
  // With feedback.
  std::span<const FeedbackPiece> ends_ = {};
  std::size_t contribution_tiles_ = 0;
  std::size_t result_tiles_ = 0;
  double* input_squares_dev_ = nullptr;  // of contributions, then of results
  double* squares_dev_ = nullptr;
  std::uint32_t* turn_dev_ = nullptr;
  FeedbackTotals* totals_ = nullptr;
  std::size_t device_bytes_ = 0;
  std::size_t pinned_bytes_ = 0;
};

}  // namespace geocomm::collective::cuda
