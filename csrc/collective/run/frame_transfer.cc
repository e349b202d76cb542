#include "collective/run/frame_transfer.h"

#include <algorithm>
#include <map>
#include <new>
#include <tuple>
#include <utility>

#include "codec/frames/codec.h"
#include "codec/payload/expected_size.h"
#include "core/str.h"

namespace geocomm::collective {

using core::Buffer;
using core::DType;
using core::Result;
using core::Status;
using core::StatusCode;
using core::str;

namespace {

constexpr std::size_t kWritten = 256;  // that a device writes at once
constexpr std::size_t kRead = 16;      // as ArrivalRoom has it

std::size_t aligned(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// What frames take but for few: a little more than those of normal numbers.
std::size_t usual_bytes(const codec::CodecSpec& codec, DType dtype, std::size_t elements) {
  constexpr double kMargin = 1.03;
  const double expected = codec::expected_bytes_per_element(codec, dtype) * static_cast<double>(elements);
  return std::min(codec::compress_bound(codec, dtype, elements),
                  sizeof(codec::FrameHeader) + static_cast<std::size_t>(kMargin * expected));
}

// The rooms of all frames in one piece of memory, which is whole as long as somebody holds one of them. Of
// frames that come, with `on_arrival`, what they usually take, at its end.
void cut_slab(FramePlan& plan, DType dtype, bool on_arrival, core::BufferPool& memory) {
  std::size_t arrivals = 0;
  const auto for_each_room = [&](const auto& give) {
    const auto comes = [&](Buffer& frame, DType type, std::size_t elements) {
      if (on_arrival) {
        arrivals += aligned(usual_bytes(plan.codec, type, elements), kRead);
      } else {
        give(frame, type, elements);
      }
    };
    arrivals = 0;
    for (FrameChunk& chunk : plan.chunks) {
      const std::size_t elements = chunk.range.size();
      if (chunk.contributes) give(chunk.contribution, dtype, elements);
      for (std::size_t site = 0; site < chunk.frames.size(); ++site) {
        if (site != plan.own_site) comes(chunk.frames[site], dtype, elements);
      }
      if (chunk.owns) give(chunk.result, DType::Float32, elements);
      if (chunk.has_result && !chunk.owns) comes(chunk.result, DType::Float32, elements);
    }
  };
  const auto bound = [&](DType type, std::size_t elements) {
    return aligned(codec::compress_bound(plan.codec, type, elements), kWritten);
  };
  std::size_t bytes = 0;
  for_each_room([&](Buffer&, DType type, std::size_t elements) { bytes += bound(type, elements); });
  const Buffer slab = memory.sized(bytes + arrivals);
  std::size_t used = 0;
  for_each_room([&](Buffer& frame, DType type, std::size_t elements) {
    frame = slab.part(used, bound(type, elements));
    frame.resize(0);
    used += bound(type, elements);
  });
  if (on_arrival) plan.arrivals = std::make_shared<ArrivalRoom>(slab.part(used, arrivals), memory);
  // Everyone adds the same bytes of this rank, itself included.
  for (FrameChunk& chunk : plan.chunks) {
    if (chunk.reduces && chunk.contributes) chunk.frames[plan.own_site] = chunk.contribution;
  }
}

// Stripes have different peers: a group has a part of each, so that all links are busy.
void cut_groups(FramePlan& plan, std::size_t element_bytes, std::size_t group_bytes) {
  constexpr std::size_t kMostGroups = 8;
  std::map<std::size_t, std::size_t> ends;  // of the stripes
  for (const FrameChunk& chunk : plan.chunks) {
    ends[chunk.stripe] = std::max(ends[chunk.stripe], chunk.range.end);
  }
  std::size_t elements = 0;
  for (const auto& [stripe, end] : ends) elements += end;
  plan.groups = static_cast<std::uint32_t>(
      std::clamp<std::size_t>(elements * element_bytes / group_bytes, 1, kMostGroups));
  for (FrameChunk& chunk : plan.chunks) {
    chunk.group = static_cast<std::uint32_t>(chunk.range.begin * plan.groups / ends[chunk.stripe]);
  }
}

}  // namespace

Result<std::shared_ptr<FramePlan>> plan_frames(const ExchangeConfig& config, const OpContext& context,
                                               ReduceOp op, std::span<const StripeData> stripes,
                                               core::BufferPool& memory, const FrameOptions& options) {
  auto made = std::make_shared<FramePlan>();
  FramePlan& plan = *made;
  plan.codec = reduction_codec(config, context, op);
  if (plan.codec.is_exact()) {
    return Status(StatusCode::Unsupported, "an exact reduction has no frames to make: reduce host memory");
  }
  plan.divisor = op == ReduceOp::Avg ? config.topology.size() : 1;
  try {
    const int own_site = config.topology.site();
    plan.own_site = static_cast<std::size_t>(own_site);
    const auto sites = static_cast<std::size_t>(config.topology.site_count());
    for (const PlannedChunk& planned : plan_of(config, context, plan.codec, stripes).chunks) {
      const StripeData& stripe = stripes[planned.stripe];
      FrameChunk chunk;
      chunk.stripe = planned.stripe;
      chunk.range = planned.range;
      chunk.receives = stripe.receives[static_cast<std::size_t>(own_site)];
      chunk.reduces = planned.reducer < 0 ? chunk.receives : planned.reducer == own_site;
      chunk.owns = chunk.reduces && planned.flow == Flow::OwnerReduces;
      // Somebody else reduces.
      chunk.contributes = planned.reducer != own_site;
      if (chunk.contributes) {
        chunk.contribution_options =
            encode_options(config, context, stripe, planned, Message::Kind::Contribution);
      }
      if (chunk.reduces) chunk.frames.resize(sites);
      chunk.has_result = planned.flow == Flow::OwnerReduces && (chunk.owns || chunk.receives);
      if (chunk.has_result) {
        plan.has_results = true;
        chunk.result_options = encode_options(config, context, stripe, planned, Message::Kind::Result);
      }
      plan.chunks.push_back(std::move(chunk));
    }
    cut_groups(plan, core::size_of(context.dtype), options.group_bytes);
    cut_slab(plan, context.dtype, options.places_on_arrival, memory);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::Unsupported, "no memory is left for frames: reduce host memory");
  }
  return made;
}

FrameTransfer::FrameTransfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context, ReduceOp op,
                             std::span<const StripeData> stripes, std::shared_ptr<FramePlan> plan,
                             FrameMaker& maker)
    : PlannedReduction(std::move(shared), context, op, stripes),
      frames_(std::move(plan)),
      maker_(maker),
      groups_(frames_->groups) {
  std::size_t arrivals = 0;
  for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
    const Route& route = routes_[c];
    if (!route.contributions.empty()) jobs_.push_back({c, Message::Kind::Contribution});
    groups_[frames_->chunks[c].group].awaited_contributions += route.contributions_awaited;
    arrivals += route.contributions_awaited + route.results_awaited;
  }
  const std::size_t contributions = jobs_.size();
  for (std::size_t c = 0; c < plan_.chunks.size(); ++c) {
    if (!routes_[c].results.empty()) jobs_.push_back({c, Message::Kind::Result});
  }
  // Stripes have different peers: their chunks take turns, so that all links are busy.
  std::ranges::stable_sort(jobs_, {}, [&](const Job& job) {
    return std::tuple(job.kind == Message::Kind::Result, frames_->chunks[job.chunk].group,
                      job.kind == Message::Kind::Result ? 0 : plan_.chunks[job.chunk].index);
  });
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const auto is_within = [&](const Job& job) { return frames_->chunks[job.chunk].group <= g; };
    groups_[g].contributions_end = static_cast<std::size_t>(
        std::count_if(jobs_.begin(), jobs_.begin() + static_cast<std::ptrdiff_t>(contributions), is_within));
    groups_[g].results_end = contributions + static_cast<std::size_t>(std::count_if(
                                                 jobs_.begin() + static_cast<std::ptrdiff_t>(contributions),
                                                 jobs_.end(), is_within));
  }
  if (groups_.size() == 1) made_groups_ = 1;
  hold_producers_locked(made_groups_ == 1 ? contributions : 0);
  this->plan(make_peers(), jobs_.size(), arrivals + relayed_frames(), total_bytes(context),
             codec_.to_string());
}

// Contributions may have arrived by now, all of them even.
void FrameTransfer::start() {
  if (made_groups_ == 0) {
    std::lock_guard lock(mutex_);
    call_waiting_thread_locked([this] { return follow_contributions(); });
  }
  take_arrived_groups();
}

// Groups of which nothing is awaited any more, with all before them. `mutex_` is not held.
void FrameTransfer::take_arrived_groups() {
  std::uint32_t arrived = 0;
  {
    std::lock_guard lock(mutex_);
    const std::uint32_t before = arrived_groups_;
    while (arrived_groups_ < groups_.size() && groups_[arrived_groups_].awaited_contributions == 0) {
      ++arrived_groups_;
    }
    if (arrived_groups_ == before) return;
    arrived = arrived_groups_;
  }
  maker_.contributions_arrived(arrived);
  if (jobs_.size() == groups_.back().contributions_end) return;
  std::lock_guard lock(mutex_);
  call_waiting_thread_locked([this, arrived] { return follow_results(arrived); });
}

// Frames are sent group by group, as they are made.
Status FrameTransfer::follow_contributions() {
  while (made_groups_ < groups_.size()) {
    GEOCOMM_RETURN_IF_ERROR(maker_.wait_for_contributions(made_groups_ + 1, context().deadline));
    std::lock_guard lock(mutex_);
    release_producers_locked(groups_[made_groups_++].contributions_end);
  }
  return Status::ok();
}

Status FrameTransfer::follow_results(std::uint32_t groups) {
  GEOCOMM_RETURN_IF_ERROR(follow_contributions());  // which nobody else waits for
  GEOCOMM_RETURN_IF_ERROR(maker_.wait_for_results(groups, context().deadline));
  std::lock_guard lock(mutex_);
  results_released_ = std::max(results_released_, groups_[groups - 1].results_end);
  release_producers_locked(results_released_);
  return Status::ok();
}

Status FrameTransfer::produce(std::size_t index) {
  const Job& job = jobs_[index];
  FrameChunk& chunk = frames_->chunks[job.chunk];
  const bool contribution = job.kind == Message::Kind::Contribution;
  Buffer frame = contribution ? chunk.contribution : chunk.result;
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t bytes, codec::seal_frame(frame.room()));
  frame.resize(bytes);
  const Route& route = routes_[job.chunk];
  const std::vector<Target>& to = contribution ? route.contributions : route.results;
  GEOCOMM_RETURN_IF_ERROR(send(to, frame, raw_bytes(plan_.chunks[job.chunk])));
  std::lock_guard lock(mutex_);
  wire_bytes_ += to.size() * bytes;
  return Status::ok();
}

Buffer& FrameTransfer::slot(const Message& message) {
  FrameChunk& chunk = frames_->chunks[message.chunk];
  return message.kind == Message::Kind::Contribution ? chunk.frames[static_cast<std::size_t>(message.origin)]
                                                     : chunk.result;
}

Buffer FrameTransfer::room_for(const Message& message, std::size_t bytes) {
  if (frames_->arrivals) return frames_->arrivals->take(bytes);
  Buffer buffer = slot(message);
  buffer.resize(bytes);
  return buffer;
}

void FrameTransfer::delivered_locked(const Message& message) {
  submit_finish_locked([this, &message] { return check(message); });
}

Status FrameTransfer::check(const Message& message) {
  const bool contribution = message.kind == Message::Kind::Contribution;
  const PlannedChunk& chunk = plan_.chunks[message.chunk];
  const Buffer& frame = slot(message);
  GEOCOMM_ASSIGN_OR_RETURN(
      const codec::FrameView view,
      check_frame(frame.span(), contribution ? context().dtype : result_dtype(), chunk, message.origin));
  if (Status sound = codec::verify_payload(frame.span(), view); !sound.is_ok()) {
    return std::move(sound).with_peer(site_peer_name(chunk, message.origin));
  }
  if (contribution) {
    {
      std::lock_guard lock(mutex_);
      --groups_[frames_->chunks[message.chunk].group].awaited_contributions;
    }
    take_arrived_groups();
  }
  return Status::ok();
}

}  // namespace geocomm::collective
