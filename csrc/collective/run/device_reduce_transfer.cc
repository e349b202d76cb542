#include "collective/run/device_reduce_transfer.h"

#include <algorithm>
#include <new>
#include <utility>

#include "codec/frames/codec.h"

namespace geocomm::collective {

using core::Buffer;
using core::Result;
using core::Status;
using core::StatusCode;

Status DeviceReduceTransfer::take_rooms(const FrameOptions& options, core::BufferPool& memory) {
  if (scheme_ != nullptr && scheme_->has_two_levels()) {
    return {StatusCode::Unsupported, "sums of regions are made on the host: reduce host memory"};
  }
  try {
    cut_groups_and_rooms(*frames_, context().dtype, options, memory);
  } catch (const std::bad_alloc&) {
    return {StatusCode::Unsupported, "no memory is left for frames: reduce host memory"};
  }
  plan_jobs(true);
  groups_.resize(frames_->groups);
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const auto end = [&](Kind kind) {
      return static_cast<std::size_t>(std::ranges::count_if(jobs_, [&](const Job& job) {
        return std::pair(job.kind, frames_->chunks[job.chunk].group) <= std::pair(kind, g);
      }));
    };
    groups_[g] = {end(Kind::Contribution), end(Kind::Result)};
  }
  for (const FrameChunk& chunk : frames_->chunks) {
    if (chunk.reduces) ++groups_[chunk.group].awaited;
  }
  if (groups_.size() == 1) made_groups_ = 1;
  hold_producers_locked(made_groups_ == 1 ? groups_[0].contributions_end : 0);
  return Status::ok();
}

// Contributions may have arrived by now, all of them even.
void DeviceReduceTransfer::start() {
  ReduceTransfer::start();
  if (made_groups_ == 0) {
    std::lock_guard lock(mutex_);
    call_waiting_thread_locked([this] { return follow_contributions(); });
  }
  take_arrived_groups();
}

// Groups of which nothing is awaited any more, with all before them. `mutex_` is not held.
void DeviceReduceTransfer::take_arrived_groups() {
  std::uint32_t arrived = 0;
  {
    std::lock_guard lock(mutex_);
    const std::uint32_t before = arrived_groups_;
    while (arrived_groups_ < groups_.size() && groups_[arrived_groups_].awaited == 0) ++arrived_groups_;
    if (arrived_groups_ == before) return;
    arrived = arrived_groups_;
  }
  maker_->contributions_arrived(arrived);
  if (groups_.back().results_end == groups_.back().contributions_end) return;
  std::lock_guard lock(mutex_);
  call_waiting_thread_locked([this, arrived] { return follow_results(arrived); });
}

// Frames are sent group by group, as they are made.
Status DeviceReduceTransfer::follow_contributions() {
  while (made_groups_ < groups_.size()) {
    GEOCOMM_RETURN_IF_ERROR(maker_->wait_for_contributions(made_groups_ + 1, context().deadline));
    std::lock_guard lock(mutex_);
    release_producers_locked(groups_[made_groups_++].contributions_end);
  }
  return Status::ok();
}

Status DeviceReduceTransfer::follow_results(std::uint32_t groups) {
  GEOCOMM_RETURN_IF_ERROR(follow_contributions());  // which nobody else waits for
  GEOCOMM_RETURN_IF_ERROR(maker_->wait_for_results(groups, context().deadline));
  std::lock_guard lock(mutex_);
  results_released_ = std::max(results_released_, groups_[groups - 1].results_end);
  release_producers_locked(results_released_);
  return Status::ok();
}

// It lies in its room.
Result<Buffer> DeviceReduceTransfer::make(std::size_t c, Kind kind) {
  const FrameChunk& chunk = frames_->chunks[c];
  Buffer frame = kind == Kind::Contribution ? chunk.contribution : chunk.result;
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t bytes, codec::seal_frame(frame.room()));
  frame.resize(bytes);
  return frame;
}

Status DeviceReduceTransfer::use(std::size_t c) {
  const FrameChunk& chunk = frames_->chunks[c];
  if (!chunk.reduces) return check(chunk.result, result_dtype(), chunk, chunk.reducer);
  for (std::size_t site = 0; site < chunk.frames.size(); ++site) {
    if (site == frames_->own_site) continue;
    GEOCOMM_RETURN_IF_ERROR(check(chunk.frames[site], context().dtype, chunk, static_cast<int>(site)));
  }
  {
    std::lock_guard lock(mutex_);
    --groups_[chunk.group].awaited;
  }
  take_arrived_groups();
  return Status::ok();
}

Status DeviceReduceTransfer::check(const Buffer& frame, core::DType dtype, const FrameChunk& chunk,
                                   int site) const {
  GEOCOMM_ASSIGN_OR_RETURN(const codec::FrameView view, check_frame(frame.span(), dtype, chunk, site));
  Status sound = codec::verify_payload(frame.span(), view);
  return sound.is_ok() ? sound : std::move(sound).with_peer(site_peer_name(chunk, site));
}

}  // namespace geocomm::collective
