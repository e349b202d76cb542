#include "collective/cuda/batched_reduction.h"

#include <algorithm>
#include <utility>

#include "codec/cuda/space_cutter.h"
#include "codec/cuda/verdict.h"
#include "core/str.h"

namespace geocomm::collective::cuda {

using codec::Accumulate;
using codec::cuda::Batch;
using codec::cuda::SpaceCutter;
using core::DType;
using core::Status;

namespace {

// A list for the device.
std::span<const SumPiece> listed(const std::vector<SumPiece>& pieces, bool has_memory, SpaceCutter& pinned) {
  SumPiece* const list = pinned.take<SumPiece>(pieces.size());
  if (has_memory) std::ranges::copy(pieces, list);
  return {list, pieces.size()};
}

std::span<std::byte> taken(std::size_t bytes, SpaceCutter& room) {
  return {room.take<std::byte>(bytes), bytes};
}

bool has_own_part(const FrameChunk& chunk) {
  return std::ranges::any_of(chunk.frames, [](const core::Buffer& frame) { return frame.data() == nullptr; });
}

}  // namespace

BatchedReduction::BatchedReduction(std::shared_ptr<const FramePlan> plan, DType dtype,
                                   std::vector<std::span<std::byte>> data_dev)
    : plan_(std::move(plan)), dtype_(dtype), data_dev_(std::move(data_dev)) {
  lay_out(nullptr, nullptr);
}

void BatchedReduction::take_memory(std::byte* device, std::byte* pinned) {
  lay_out(device, pinned);
  std::fill_n(words_, kWords, 0);
}

void BatchedReduction::lay_out(std::byte* device_memory, std::byte* pinned_memory) {
  SpaceCutter device(device_memory);
  SpaceCutter pinned(pinned_memory);
  const bool has_memory = pinned_memory != nullptr;
  words_dev_ = device.take<std::uint64_t>(kWords);
  words_ = pinned.take<std::uint64_t>(kWords);
  contributions_ = {plan_->codec, dtype_, {}};
  received_ = {plan_->codec, dtype_, {}};
  made_results_ = {plan_->codec, DType::Float32, {}};
  results_ = {plan_->codec, DType::Float32, {}};

  std::size_t sites = 0;
  std::vector<float*> sums(plan_->chunks.size());
  std::vector<SumPiece> to_finish;
  std::vector<SumPiece> to_round;
  for (std::size_t c = 0; c < plan_->chunks.size(); ++c) {
    const FrameChunk& chunk = plan_->chunks[c];
    std::byte* const data = data_dev_[c].data();
    const std::uint64_t count = chunk.range.size();
    const bool has_result = chunk.receives && chunk.result.data() != nullptr;
    // In the caller's data where that is float and no operand is read from there.
    const bool is_apart = (chunk.reduces && (dtype_ != DType::Float32 || has_own_part(chunk))) ||
                          (has_result && dtype_ != DType::Float32);
    sums[c] = is_apart ? device.take<float>(count) : reinterpret_cast<float*>(data);

    if (chunk.contributes) {
      contributions_.frames.push_back({data, count, chunk.contribution.room(),
                                       chunk.contribution_options.seed,
                                       chunk.contribution_options.first_element});
    }
    if (chunk.reduces) {
      sites = std::max(sites, chunk.frames.size());
      std::byte* const target = !chunk.owns && chunk.receives && is_apart ? data : nullptr;
      if (target != nullptr || plan_->divisor != 1) to_finish.push_back({sums[c], target, count});
    }
    if (chunk.owns) {
      made_results_.frames.push_back({reinterpret_cast<std::byte*>(sums[c]), count, chunk.result.room(),
                                      chunk.result_options.seed, chunk.result_options.first_element});
    }
    if (has_result) {
      results_.frames.push_back({reinterpret_cast<std::byte*>(dtype_ == DType::Float32 ? nullptr : sums[c]),
                                 count, chunk.result.room()});
      if (dtype_ == DType::Float32) {
        results_.frames.back().elements_dev = data;
      } else {
        to_round.push_back({sums[c], data, count});
      }
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
      if (frame.data() == nullptr) {
        own.push_back({sums[c], data_dev_[c].data(), chunk.range.size()});
      } else {
        received_.frames.push_back({reinterpret_cast<std::byte*>(sums[c]), chunk.range.size(), frame.room()});
      }
    }
    sites_[s].frames = received_.frames.size() - sites_[s].first;
    sites_[s].own = listed(own, has_memory, pinned);
  }
  sums_ = listed(to_finish, has_memory, pinned);
  decoded_results_ = listed(to_round, has_memory, pinned);

  // One workspace, used in order of the stream; the tables are read when their kernels begin.
  std::size_t workspace_bytes = 0;
  Batch* const batches[] = {&contributions_, &made_results_, &received_, &results_};
  for (Batch* const batch : batches) {
    if (batch->frames.empty()) continue;
    std::uint64_t largest = 0;
    for (const auto& frame : batch->frames) largest = std::max(largest, frame.elements);
    const bool is_received = batch == &received_ || batch == &results_;
    workspace_bytes =
        std::max(workspace_bytes, codec::cuda::batch_workspace_bytes(batch->spec, batch->dtype, largest,
                                                                     batch->frames.size(), is_received));
    batch->table = taken(codec::cuda::batch_table_bytes(batch->frames.size()), pinned);
  }
  const std::span<std::byte> workspace = taken(workspace_bytes, device);
  for (Batch* const batch : batches) batch->workspace_dev = workspace;
  device_bytes_ = device.bytes();
  pinned_bytes_ = pinned.bytes();
}

Status BatchedReduction::enqueue_contributions(Stream stream) const {
  if (contributions_.frames.empty()) return Status::ok();
  return codec::cuda::compress_batch(contributions_, {}, stream);
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
  GEOCOMM_RETURN_IF_ERROR(finish_sums(dtype_, sums_, plan_->divisor, stream));
  if (!made_results_.frames.empty()) {
    GEOCOMM_RETURN_IF_ERROR(codec::cuda::compress_batch(made_results_, {}, stream));
  }
  return has_frames ? publish(kOfContributions, stream) : Status::ok();
}

Status BatchedReduction::enqueue_results(Stream stream) const {
  if (results_.frames.empty()) return Status::ok();
  std::uint64_t* const word = words_dev_ + kOfResults;
  GEOCOMM_RETURN_IF_ERROR(codec::cuda::check_batch(results_, word, stream));
  GEOCOMM_RETURN_IF_ERROR(
      codec::cuda::put_batch(results_, 0, results_.frames.size(), codec::Sink::Float32, word, stream));
  GEOCOMM_RETURN_IF_ERROR(finish_sums(dtype_, decoded_results_, 1, stream));
  return publish(kOfResults, stream);
}

Status BatchedReduction::publish(Word word, Stream stream) const {
  return publish_words(words_dev_ + word, words_ + word, 1, stream);
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
