#include "collective/cuda/batched_reduction.h"

#include <algorithm>
#include <utility>

#include "codec/cuda/space_cutter.h"
#include "codec/cuda/verdict.h"
#include "core/str.h"

namespace geocomm::collective::cuda {

using codec::Accumulate;
using codec::cuda::Batch;
using codec::cuda::BatchFrame;
using codec::cuda::SpaceCutter;
using core::DType;
using core::Status;

namespace {

// A list for the device.
template <typename Piece>
std::span<const Piece> listed(const std::vector<Piece>& pieces, bool has_memory, SpaceCutter& pinned) {
  Piece* const list = pinned.take<Piece>(pieces.size());
  if (has_memory) std::ranges::copy(pieces, list);
  return {list, pieces.size()};
}

std::span<std::byte> taken(std::size_t bytes, SpaceCutter& room) {
  return {room.take<std::byte>(bytes), bytes};
}

bool has_own_part(const FrameChunk& chunk) {
  return std::ranges::any_of(chunk.frames, [](const core::Buffer& frame) { return frame.data() == nullptr; });
}

std::byte* bytes_of(float* floats) {
  return reinterpret_cast<std::byte*>(floats);
}

const std::byte* bytes_of(std::span<const float> floats) {
  return reinterpret_cast<const std::byte*>(floats.data());
}

std::uint64_t largest_of(const Batch& batch) {
  std::uint64_t largest = 0;
  for (const BatchFrame& frame : batch.frames) largest = std::max(largest, frame.elements);
  return largest;
}

std::size_t tiles_of(const Batch& batch) {
  return codec::cuda::batch_tiles(largest_of(batch), batch.frames.size());
}

}  // namespace

BatchedReduction::BatchedReduction(std::shared_ptr<const FramePlan> plan, DType dtype,
                                   std::vector<std::span<std::byte>> data_dev,
                                   std::optional<DeviceFeedback> feedback)
    : plan_(std::move(plan)), dtype_(dtype), data_dev_(std::move(data_dev)), feedback_(std::move(feedback)) {
  lay_out(nullptr, nullptr);
}

void BatchedReduction::take_memory(std::byte* device, std::byte* pinned) {
  lay_out(device, pinned);
  std::fill_n(words_, kWords, 0);
  if (feedback_) *totals_ = {};
}

// Of a chunk's contribution, or of its result.
BatchFrame BatchedReduction::made_frame(std::size_t c, bool is_result, std::byte* elements,
                                        std::span<std::byte> frame) const {
  const FrameChunk& chunk = plan_->chunks[c];
  const auto& options = is_result ? chunk.result_options : chunk.contribution_options;
  BatchFrame made{elements, chunk.range.size(), frame, options.seed, options.first_element};
  made.outside = (is_result ? chunk.result : chunk.contribution).data();
  if (feedback_) {
    const FeedbackSpans& spans = feedback_->chunks[c];
    made.residual_dev = reinterpret_cast<std::byte*>(spans.next.data());
    made.previous_dev = bytes_of(spans.residual);
    made.scale_dev = bytes_of(spans.scale);
  }
  return made;
}

// An owner's residual is in units of the sum, what it encodes in those of the result.
FeedbackPiece BatchedReduction::feedback_piece(std::size_t c, float* sums) const {
  const FrameChunk& chunk = plan_->chunks[c];
  const FeedbackSpans& spans = feedback_->chunks[c];
  const auto divisor = static_cast<float>(plan_->divisor);
  return {sums,
          data_dev_[c].data(),
          spans.residual.data(),
          spans.next.data(),
          spans.scale.empty() ? nullptr : spans.scale.data(),
          chunk.range.size(),
          chunk.has_result ? 1.0f : divisor,
          chunk.owns ? divisor : 1.0f};
}

void BatchedReduction::lay_out(std::byte* device_memory, std::byte* pinned_memory) {
  SpaceCutter device(device_memory);
  SpaceCutter pinned(pinned_memory);
  const bool has_memory = pinned_memory != nullptr;
  const bool is_float = dtype_ == DType::Float32;
  words_dev_ = device.take<std::uint64_t>(kWords);
  words_ = pinned.take<std::uint64_t>(kWords);
  contributions_ = {plan_->codec, dtype_, {}};
  received_ = {plan_->codec, dtype_, {}};
  made_results_ = {plan_->codec, DType::Float32, {}};
  results_ = {plan_->codec, DType::Float32, {}};

  std::size_t sites = 0;
  std::vector<float*> sums(plan_->chunks.size());
  std::vector<std::span<std::byte>> own_frames(plan_->chunks.size());
  std::vector<SumPiece> to_finish;
  std::vector<SumPiece> to_round;
  std::vector<FeedbackPiece> ends;
  for (std::size_t c = 0; c < plan_->chunks.size(); ++c) {
    const FrameChunk& chunk = plan_->chunks[c];
    std::byte* const data = data_dev_[c].data();
    const std::uint64_t count = chunk.range.size();
    const bool takes_result = chunk.receives && chunk.has_result;
    // In the caller's data where that is float and no operand is read from there.
    const bool is_apart =
        (chunk.reduces && (!is_float || has_own_part(chunk))) || (takes_result && !is_float);
    sums[c] = is_apart ? device.take<float>(count) : reinterpret_cast<float*>(data);

    if (chunk.contributes) {
      own_frames[c] = taken(codec::compress_bound(plan_->codec, dtype_, count), device);
      contributions_.frames.push_back(made_frame(c, false, data, own_frames[c]));
    }
    if (chunk.reduces) {
      sites = std::max(sites, chunk.frames.size());
      const bool ends_later = feedback_ && !chunk.owns;
      std::byte* const target = !chunk.owns && chunk.receives && is_apart ? data : nullptr;
      if (!ends_later && (target != nullptr || plan_->divisor != 1)) {
        to_finish.push_back({sums[c], target, count});
      }
    }
    std::span<std::byte> result = chunk.result.room();
    if (chunk.owns) {
      result = taken(codec::compress_bound(plan_->codec, DType::Float32, count), device);
      made_results_.frames.push_back(made_frame(c, true, bytes_of(sums[c]), result));
    }
    if (takes_result) {
      results_.frames.push_back({is_float ? data : bytes_of(sums[c]), count, result});
      if (!is_float && !feedback_) to_round.push_back({sums[c], data, count});
    }
    if (feedback_) {
      ends.push_back(feedback_piece(c, takes_result && is_float ? reinterpret_cast<float*>(data) : sums[c]));
    }
  }
  sites_.assign(sites, {});
  for (std::size_t s = 0; s < sites; ++s) {
    std::vector<SumPiece> own;
    sites_[s].first = received_.frames.size();
    for (std::size_t c = 0; c < plan_->chunks.size(); ++c) {
      const FrameChunk& chunk = plan_->chunks[c];
      if (!chunk.reduces) continue;
      const core::Buffer& frame = chunk.frames[s];
      const std::uint64_t count = chunk.range.size();
      if (frame.data() == nullptr) {
        const auto scale = feedback_ ? feedback_->chunks[c].scale : std::span<const float>{};
        own.push_back({sums[c], data_dev_[c].data(), count, scale.empty() ? nullptr : scale.data()});
      } else {
        const bool is_own = chunk.contributes && frame.data() == chunk.contribution.data();
        received_.frames.push_back({bytes_of(sums[c]), count, is_own ? own_frames[c] : frame.room()});
      }
    }
    sites_[s].frames = received_.frames.size() - sites_[s].first;
    sites_[s].own = listed(own, has_memory, pinned);
  }
  sums_ = listed(to_finish, has_memory, pinned);
  decoded_results_ = listed(to_round, has_memory, pinned);
  if (feedback_) {
    ends_ = listed(ends, has_memory, pinned);
    totals_ = pinned.take<FeedbackTotals>(1);
    input_squares_dev_ = device.take<double>(tiles_of(contributions_) + tiles_of(made_results_));
    squares_dev_ = device.take<double>(feedback_square_count(std::span<const FeedbackPiece>(ends)));
    turn_dev_ = device.take<std::uint32_t>(1);
  }

  // One workspace, used in order of the stream; the tables are read when their kernels begin.
  std::size_t workspace_bytes = 0;
  Batch* const batches[] = {&contributions_, &made_results_, &received_, &results_};
  for (Batch* const batch : batches) {
    if (batch->frames.empty()) continue;
    const bool is_received = batch == &received_ || batch == &results_;
    workspace_bytes = std::max(
        workspace_bytes, codec::cuda::batch_workspace_bytes(batch->spec, batch->dtype, largest_of(*batch),
                                                            batch->frames.size(), is_received));
    batch->table = taken(codec::cuda::batch_table_bytes(batch->frames.size()), pinned);
  }
  const std::span<std::byte> workspace = taken(workspace_bytes, device);
  for (Batch* const batch : batches) batch->workspace_dev = workspace;
  device_bytes_ = device.bytes();
  pinned_bytes_ = pinned.bytes();
}

codec::cuda::BatchFeedback BatchedReduction::batch_feedback(bool of_results) const {
  if (!feedback_) return {};
  const float unit = of_results ? static_cast<float>(plan_->divisor) : 1.0f;
  return {DType::Float32, feedback_->decay / unit,
          input_squares_dev_ + (of_results ? tiles_of(contributions_) : 0), !of_results, turn_dev_};
}

// Of words that a check has written: [first, end).
Publication BatchedReduction::verdicts(Word first, Word end) const {
  return {words_dev_ + first, words_ + first, static_cast<std::uint32_t>(end - first)};
}

Status BatchedReduction::enqueue_contributions(Stream stream) const {
  if (contributions_.frames.empty()) return Status::ok();
  return codec::cuda::compress_batch(contributions_, batch_feedback(false), stream);
}

Status BatchedReduction::enqueue_sums(Stream stream) const {
  std::uint64_t* const word = words_dev_ + kOfContributions;
  const bool has_frames = !received_.frames.empty();
  if (has_frames) GEOCOMM_RETURN_IF_ERROR(codec::cuda::check_batch(received_, word, stream));
  for (std::size_t s = 0; s < sites_.size(); ++s) {
    const Site& site = sites_[s];
    if (site.frames > 0) {
      GEOCOMM_RETURN_IF_ERROR(
          codec::cuda::put_batch(received_, site.first, site.frames,
                                 s == 0 ? codec::Sink::Float32 : codec::Sink::AddToFloat32, word, stream));
    }
    GEOCOMM_RETURN_IF_ERROR(
        accumulate_elements(dtype_, site.own, s == 0 ? Accumulate::Assign : Accumulate::Add, stream));
  }
  const bool is_told = has_frames && !feedback_;
  GEOCOMM_RETURN_IF_ERROR(finish_sums(dtype_, sums_, plan_->divisor,
                                      is_told ? verdicts(kOfContributions, kOfResults) : Publication{},
                                      stream));
  if (made_results_.frames.empty()) return Status::ok();
  return codec::cuda::compress_batch(made_results_, batch_feedback(true), stream);
}

Status BatchedReduction::enqueue_results(Stream stream) const {
  const bool has_results = !results_.frames.empty();
  if (has_results) {
    std::uint64_t* const word = words_dev_ + kOfResults;
    GEOCOMM_RETURN_IF_ERROR(codec::cuda::check_batch(results_, word, stream));
    GEOCOMM_RETURN_IF_ERROR(
        codec::cuda::put_batch(results_, 0, results_.frames.size(), codec::Sink::Float32, word, stream));
  }
  if (feedback_) return enqueue_end_of_feedback(stream);
  return finish_sums(dtype_, decoded_results_, 1, has_results ? verdicts(kOfResults, kWords) : Publication{},
                     stream);
}

Status BatchedReduction::enqueue_end_of_feedback(Stream stream) const {
  const Word first = received_.frames.empty() ? kOfResults : kOfContributions;
  const Word last = results_.frames.empty() ? kOfResults : kWords;
  const double unit = plan_->divisor;
  GEOCOMM_RETURN_IF_ERROR(end_feedback(
      dtype_, ends_,
      {verdicts(first, last), input_squares_dev_, static_cast<std::uint32_t>(tiles_of(contributions_)),
       static_cast<std::uint32_t>(tiles_of(made_results_)), unit * unit, squares_dev_, turn_dev_, totals_,
       !feedback_->replaces},
      stream));
  return feedback_->replaces ? replace_residuals(ends_, turn_dev_, stream) : Status::ok();
}

void BatchedReduction::exchanged() {
  if (feedback_) totals_->succeeded = 1;
}

FeedbackReport BatchedReduction::report() const {
  if (!feedback_) return {};
  return {totals_->input_square, totals_->residual_square, totals_->scaled_square, totals_->result_square, 0};
}

Status BatchedReduction::verdict() const {
  if (Status status = codec::cuda::to_status(words_[kOfContributions]); !status.is_ok()) {
    const std::uint32_t frame = codec::cuda::frame_of(words_[kOfContributions]);
    for (std::size_t s = 0; s < sites_.size(); ++s) {
      if (frame - sites_[s].first >= sites_[s].frames) continue;
      return {status.code(), core::str("what site ", s, " sent: ", status.message())};
    }
    return status;
  }
  return codec::cuda::to_status(words_[kOfResults]);
}

}  // namespace geocomm::collective::cuda
