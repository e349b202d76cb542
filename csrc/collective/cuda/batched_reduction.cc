#include "collective/cuda/batched_reduction.h"

#include <algorithm>
#include <utility>

#include "codec/cuda/payload_plan.h"
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

// Elements of this rank that no frame carries.
bool has_own_part(const FrameChunk& chunk) {
  return chunk.reduces && !chunk.contributes;
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

std::size_t workspace_of(const Batch& batch, bool is_received) {
  if (batch.frames.empty()) return 0;
  return codec::cuda::batch_workspace_bytes(batch.spec, batch.dtype, largest_of(batch), batch.frames.size(),
                                            is_received);
}

}  // namespace

std::uint32_t launches_of_group(const codec::CodecSpec& codec) {
  const bool has_stage = codec.entropy != codec::Entropy::None;
  switch (codec.id) {
    case codec::CodecId::Fp16:
    case codec::CodecId::Bf16:
      return has_stage ? 17 : 9;
    case codec::CodecId::Int8:
    case codec::CodecId::Int4:
    case codec::CodecId::Bit2:
    case codec::CodecId::Bit1:
      return has_stage ? 19 : 10;
    case codec::CodecId::DeadZone:
      return has_stage ? 22 : 15;
    case codec::CodecId::TopK:
      return 26;  // of tiny
    case codec::CodecId::Lossless:
      return 21;
    case codec::CodecId::Loco:
      return 18;
    case codec::CodecId::BitPlanes:
      return has_stage ? 30 : 20;
    case codec::CodecId::None:
      break;  // exact: never here
  }
  return 1;
}

std::size_t group_bytes(const codec::CodecSpec& codec) {
  constexpr std::size_t kBytesOfLaunch = std::size_t{4} << 20;
  return launches_of_group(codec) * kBytesOfLaunch;
}

BatchedReduction::BatchedReduction(std::shared_ptr<const FramePlan> plan, DType dtype,
                                   std::vector<std::span<std::byte>> data_dev,
                                   std::optional<DeviceFeedback> feedback)
    : plan_(std::move(plan)), dtype_(dtype), data_dev_(std::move(data_dev)), feedback_(std::move(feedback)) {
  lay_out(nullptr, nullptr);
}

Status BatchedReduction::take_memory(std::byte* device, std::byte* pinned) {
  lay_out(device, pinned);
  std::fill_n(verdicts_, words_, 0);
  if (feedback_) *totals_ = {};
  for (const Group& group : groups_) GEOCOMM_RETURN_IF_ERROR(codec::cuda::write_table(group.received));
  return codec::cuda::write_table(results_);
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

// Not in the caller's data, where that is not float or an operand is read from there.
bool BatchedReduction::has_sums_apart(const FrameChunk& chunk) const {
  const bool is_float = dtype_ == DType::Float32;
  return (chunk.reduces && (!is_float || has_own_part(chunk))) || (takes_result(chunk) && !is_float);
}

// Sums apart are floats of one group at a time, unless the end of the feedback reads them.
void BatchedReduction::place_sums(SpaceCutter& device) {
  std::vector<std::uint64_t> used(groups_.size(), 0);
  std::vector<std::size_t> shared;
  for (std::size_t c = 0; c < plan_->chunks.size(); ++c) {
    const FrameChunk& chunk = plan_->chunks[c];
    sums_[c] = reinterpret_cast<float*>(data_dev_[c].data());
    if (!has_sums_apart(chunk)) continue;
    if (feedback_ && !(takes_result(chunk) && dtype_ == DType::Float32)) {
      sums_[c] = device.take<float>(chunk.range.size());
    } else {
      shared.push_back(c);
      used[chunk.group] += SpaceCutter::aligned(chunk.range.size());
    }
  }
  float* const room = device.take<float>(std::ranges::max(used));
  std::ranges::fill(used, 0);
  for (const std::size_t c : shared) {
    const FrameChunk& chunk = plan_->chunks[c];
    sums_[c] = room + used[chunk.group];
    used[chunk.group] += SpaceCutter::aligned(chunk.range.size());
  }
}

// In the order of the groups.
void BatchedReduction::list_results() {
  result_chunks_.clear();
  for (std::size_t c = 0; c < plan_->chunks.size(); ++c) {
    if (takes_result(plan_->chunks[c])) result_chunks_.push_back(c);
  }
  std::ranges::stable_sort(result_chunks_, {}, [this](std::size_t c) { return plan_->chunks[c].group; });
}

void BatchedReduction::lay_out(std::byte* device_memory, std::byte* pinned_memory) {
  SpaceCutter device(device_memory);
  SpaceCutter pinned(pinned_memory);
  const bool has_memory = pinned_memory != nullptr;
  const bool is_float = dtype_ == DType::Float32;
  const std::size_t chunks = plan_->chunks.size();
  groups_.assign(
      plan_->groups,
      {{plan_->codec, dtype_, {}}, {plan_->codec, dtype_, {}}, {plan_->codec, DType::Float32, {}}, {}, {}});
  results_ = {plan_->codec, DType::Float32, {}};
  sums_.assign(chunks, nullptr);
  own_frames_.assign(chunks, {});
  place_sums(device);
  list_results();
  std::vector<std::vector<SumPiece>> to_finish(groups_.size());
  std::vector<FeedbackPiece> ends;
  std::vector<std::span<std::byte>> own_results(chunks);
  for (std::size_t c = 0; c < chunks; ++c) {
    const FrameChunk& chunk = plan_->chunks[c];
    Group& group = groups_[chunk.group];
    std::byte* const data = data_dev_[c].data();
    const std::uint64_t count = chunk.range.size();
    float* const sums = sums_[c];

    if (chunk.contributes) {
      own_frames_[c] = taken(codec::compress_bound(plan_->codec, dtype_, count), device);
      group.contributions.frames.push_back(made_frame(c, false, data, own_frames_[c]));
    }
    if (chunk.reduces) {
      const bool ends_later = feedback_ && !chunk.owns;
      std::byte* const target = !chunk.owns && chunk.receives && has_sums_apart(chunk) ? data : nullptr;
      if (!ends_later && (target != nullptr || plan_->divisor != 1)) {
        to_finish[chunk.group].push_back({sums, target, count});
      }
    }
    if (chunk.owns) {
      own_results[c] = taken(codec::compress_bound(plan_->codec, DType::Float32, count), device);
      group.made_results.frames.push_back(made_frame(c, true, bytes_of(sums), own_results[c]));
    }
    if (feedback_) {
      const bool is_in_place = takes_result(chunk) && is_float;
      ends.push_back(feedback_piece(c, is_in_place ? reinterpret_cast<float*>(data) : sums));
    }
  }
  const bool rounds = !is_float && !feedback_;
  result_parts_.assign(rounds ? groups_.size() : 1, {});
  std::vector<std::vector<SumPiece>> to_round(result_parts_.size());
  for (const std::size_t c : result_chunks_) {
    const FrameChunk& chunk = plan_->chunks[c];
    std::byte* const data = data_dev_[c].data();
    const std::uint64_t count = chunk.range.size();
    const std::size_t part = rounds ? chunk.group : 0;
    Results& results = result_parts_[part];
    if (results.frames++ == 0) results.first = results_.frames.size();
    results_.frames.push_back(
        {is_float ? data : bytes_of(sums_[c]), count, chunk.owns ? own_results[c] : chunk.result.room()});
    if (rounds) to_round[part].push_back({sums_[c], data, count});
  }
  words_ = 0;
  contribution_tiles_ = 0;
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    group.sites = sites_of(g, group.received, has_memory, pinned);
    group.sums = listed(to_finish[g], has_memory, pinned);
    group.word = words_;
    if (!group.received.frames.empty()) ++words_;
    group.contribution_tile = contribution_tiles_;
    contribution_tiles_ += tiles_of(group.contributions);
  }
  if (!results_.frames.empty()) ++words_;
  result_tiles_ = 0;
  for (Group& group : groups_) {
    group.result_tile = contribution_tiles_ + result_tiles_;
    result_tiles_ += tiles_of(group.made_results);
  }
  verdicts_dev_ = device.take<std::uint64_t>(words_);
  verdicts_ = pinned.take<std::uint64_t>(words_);
  for (std::size_t part = 0; part < result_parts_.size(); ++part) {
    result_parts_[part].to_round = listed(to_round[part], has_memory, pinned);
  }
  if (feedback_) {
    ends_ = listed(ends, has_memory, pinned);
    totals_ = pinned.take<FeedbackTotals>(1);
    input_squares_dev_ = device.take<double>(contribution_tiles_ + result_tiles_);
    squares_dev_ = device.take<double>(feedback_square_count(std::span<const FeedbackPiece>(ends)));
    turn_dev_ = device.take<std::uint32_t>(1);
  }

  // One workspace, used in order of the stream; the tables are read when their kernels begin.
  std::size_t workspace_bytes = 0;
  std::vector<Batch*> batches = {&results_};
  for (Group& group : groups_) {
    for (Batch* batch : {&group.contributions, &group.received, &group.made_results})
      batches.push_back(batch);
    workspace_bytes = std::max({workspace_bytes, workspace_of(group.contributions, false),
                                workspace_of(group.received, true), workspace_of(group.made_results, false)});
  }
  workspace_bytes = std::max(workspace_bytes, workspace_of(results_, true));
  const std::span<std::byte> workspace = taken(workspace_bytes, device);
  for (Batch* const batch : batches) {
    batch->workspace_dev = workspace;
    batch->table = taken(codec::cuda::batch_table_bytes(batch->frames.size()), pinned);
  }
  device_bytes_ = device.bytes();
  pinned_bytes_ = pinned.bytes();
}

bool BatchedReduction::is_own_part(const FrameChunk& chunk, std::size_t site) const {
  return site == plan_->own_site && has_own_part(chunk);
}

template <typename Take>
void BatchedReduction::for_each_reduced(std::uint32_t group, const Take& take) const {
  for (std::size_t c = 0; c < plan_->chunks.size(); ++c) {
    const FrameChunk& chunk = plan_->chunks[c];
    if (chunk.group == group && chunk.reduces) take(c, chunk);
  }
}

// Appends the frames of all sites to `received`.
std::vector<BatchedReduction::Site> BatchedReduction::sites_of(std::uint32_t group, Batch& received,
                                                               bool has_memory, SpaceCutter& pinned) const {
  std::size_t count = 0;
  for_each_reduced(group, [&](std::size_t, const FrameChunk& chunk) { count = chunk.frames.size(); });
  std::vector<Site> sites(count);
  for (std::size_t s = 0; s < sites.size(); ++s) {
    std::vector<SumPiece> own;
    sites[s].first = received.frames.size();
    for_each_reduced(group, [&](std::size_t c, const FrameChunk& chunk) {
      const std::uint64_t elements = chunk.range.size();
      if (is_own_part(chunk, s)) {
        const auto scale = feedback_ ? feedback_->chunks[c].scale : std::span<const float>{};
        own.push_back({sums_[c], data_dev_[c].data(), elements, scale.empty() ? nullptr : scale.data()});
      } else {
        const bool is_own = s == plan_->own_site;
        received.frames.push_back(
            {bytes_of(sums_[c]), elements, is_own ? own_frames_[c] : chunk.frames[s].room()});
      }
    });
    sites[s].frames = received.frames.size() - sites[s].first;
    sites[s].own = listed(own, has_memory, pinned);
  }
  return sites;
}

void BatchedReduction::arrived(std::uint32_t groups) {
  const std::lock_guard lock(arrived_mutex_);
  for (; arrived_ < groups; ++arrived_) {
    const Group& group = groups_[arrived_];
    std::size_t index = 0;
    for (std::size_t s = 0; s < group.sites.size(); ++s) {
      for_each_reduced(arrived_, [&](std::size_t, const FrameChunk& chunk) {
        if (is_own_part(chunk, s)) return;
        if (s != plan_->own_site) codec::cuda::place_frame(group.received, index, chunk.frames[s].room());
        ++index;
      });
    }
  }
}

codec::cuda::BatchFeedback BatchedReduction::batch_feedback(std::size_t tile, bool of_results) const {
  if (!feedback_) return {};
  const float unit = of_results ? static_cast<float>(plan_->divisor) : 1.0f;
  return {DType::Float32, feedback_->decay / unit, input_squares_dev_ + tile, !of_results, turn_dev_};
}

// Of words that a check has written.
Publication BatchedReduction::verdicts(std::uint32_t first, std::uint32_t count) const {
  return {verdicts_dev_ + first, verdicts_ + first, count};
}

Status BatchedReduction::enqueue_contributions(std::uint32_t index, Stream stream) const {
  const Group& group = groups_[index];
  if (group.contributions.frames.empty()) return Status::ok();
  return codec::cuda::compress_batch(group.contributions, batch_feedback(group.contribution_tile, false),
                                     stream);
}

Status BatchedReduction::enqueue_sums(std::uint32_t index, Stream stream) const {
  const Group& group = groups_[index];
  const Batch& received = group.received;
  std::uint64_t* const word = verdicts_dev_ + group.word;
  const bool has_frames = !received.frames.empty();
  if (has_frames) GEOCOMM_RETURN_IF_ERROR(codec::cuda::check_batch(received, word, stream));
  for (std::size_t s = 0; s < group.sites.size(); ++s) {
    const Site& site = group.sites[s];
    if (site.frames > 0) {
      GEOCOMM_RETURN_IF_ERROR(
          codec::cuda::put_batch(received, site.first, site.frames,
                                 s == 0 ? codec::Sink::Float32 : codec::Sink::AddToFloat32, word, stream));
    }
    GEOCOMM_RETURN_IF_ERROR(
        accumulate_elements(dtype_, site.own, s == 0 ? Accumulate::Assign : Accumulate::Add, stream));
  }
  GEOCOMM_RETURN_IF_ERROR(finish_sums(dtype_, group.sums, plan_->divisor,
                                      verdicts(group.word, has_frames && !feedback_ ? 1 : 0), stream));
  if (group.made_results.frames.empty()) return Status::ok();
  return codec::cuda::compress_batch(group.made_results, batch_feedback(group.result_tile, true), stream);
}

Status BatchedReduction::enqueue_results(Stream stream) const {
  const bool has_results = !results_.frames.empty();
  std::uint64_t* const word = verdicts_dev_ + words_ - 1;
  if (has_results) GEOCOMM_RETURN_IF_ERROR(codec::cuda::check_batch(results_, word, stream));
  for (const Results& part : result_parts_) {
    if (part.frames > 0) {
      GEOCOMM_RETURN_IF_ERROR(
          codec::cuda::put_batch(results_, part.first, part.frames, codec::Sink::Float32, word, stream));
    }
    if (feedback_) continue;
    const bool is_last = &part == &result_parts_.back();
    GEOCOMM_RETURN_IF_ERROR(
        finish_sums(dtype_, part.to_round, 1, verdicts(words_ - 1, has_results && is_last ? 1 : 0), stream));
  }
  return feedback_ ? enqueue_end_of_feedback(stream) : Status::ok();
}

Status BatchedReduction::enqueue_end_of_feedback(Stream stream) const {
  const double unit = plan_->divisor;
  GEOCOMM_RETURN_IF_ERROR(
      end_feedback(dtype_, ends_,
                   {verdicts(0, words_), input_squares_dev_, static_cast<std::uint32_t>(contribution_tiles_),
                    static_cast<std::uint32_t>(result_tiles_), unit * unit, squares_dev_, turn_dev_, totals_,
                    !feedback_->replaces},
                   stream));
  return feedback_->replaces ? replace_residuals(ends_, turn_dev_, stream) : Status::ok();
}

void BatchedReduction::exchanged() {
  for (std::size_t index = 0; index < result_chunks_.size(); ++index) {
    const FrameChunk& chunk = plan_->chunks[result_chunks_[index]];
    if (!chunk.owns) codec::cuda::place_frame(results_, index, chunk.result.room());
  }
  if (feedback_) totals_->succeeded = 1;
}

FeedbackReport BatchedReduction::report() const {
  if (!feedback_) return {};
  return {totals_->input_square, totals_->residual_square, totals_->scaled_square, totals_->result_square, 0};
}

Status BatchedReduction::verdict() const {
  for (const Group& group : groups_) {
    if (group.received.frames.empty()) continue;
    const std::uint64_t verdict = verdicts_[group.word];
    const Status status = codec::cuda::to_status(verdict);
    if (status.is_ok()) continue;
    const std::uint32_t frame = codec::cuda::frame_of(verdict);
    for (std::size_t s = 0; s < group.sites.size(); ++s) {
      if (frame - group.sites[s].first >= group.sites[s].frames) continue;
      return {status.code(), core::str("what site ", s, " sent: ", status.message())};
    }
    return status;
  }
  return results_.frames.empty() ? Status::ok() : codec::cuda::to_status(verdicts_[words_ - 1]);
}

}  // namespace geocomm::collective::cuda
