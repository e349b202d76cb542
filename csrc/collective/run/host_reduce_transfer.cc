#include "collective/run/host_reduce_transfer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "codec/frames/codec.h"
#include "collective/sums/reduction.h"
#include "core/str.h"

namespace geocomm::collective {

using codec::Accumulate;
using core::Buffer;
using core::DType;
using core::Result;
using core::Status;
using core::StatusCode;
using core::str;

namespace {

std::span<float> as_floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

codec::ErrorFeedback in_place(std::span<float> residual, float decay) {
  return {std::as_writable_bytes(residual).data(), DType::Float32, residual.size(), decay};
}

}  // namespace

HostReduceTransfer::HostReduceTransfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context,
                                       ReduceOp op, std::span<const StripeData> stripes)
    : ReduceTransfer(std::move(shared), context, op, stripes), reports_(frames_->chunks.size()) {
  std::size_t bytes = 0;
  for (const StripeData& stripe : stripes_) {
    stripe_begins_.push_back(bytes);
    bytes += stripe.data.size();
  }
  for (std::size_t c = 0; c < reports_.size(); ++c) {
    const FrameChunk& chunk = frames_->chunks[c];
    // The data is overwritten only once it has been encoded.
    if (chunk.contributes) {
      ++awaited_[c];
    } else if (context.flow != nullptr && (chunk.reduces || chunk.adds)) {
      ++operands_awaited(c);
      own_.push_back(c);
    }
  }
  if (context.flow != nullptr) hold_producers_locked(0);
  plan_jobs(false);
}

void HostReduceTransfer::start() {
  ReduceTransfer::start();
  std::lock_guard lock(mutex_);
  if (context().flow != nullptr) call_waiting_thread_locked([this] { return follow_data(); });
}

// Chunks begin as their data comes.
Status HostReduceTransfer::follow_data() {
  const auto end_of = [&](std::size_t c) { return data_end(frames_->chunks[c]); };
  std::size_t job = 0;
  std::size_t own = 0;
  while (job < jobs_.size() || own < own_.size()) {
    std::size_t next = ~std::size_t{0};
    if (job < jobs_.size()) next = end_of(jobs_[job].chunk);
    if (own < own_.size()) next = std::min(next, end_of(own_[own]));
    GEOCOMM_ASSIGN_OR_RETURN(const std::size_t there, context().flow->wait_for(next, context().deadline));
    std::lock_guard lock(mutex_);
    while (job < jobs_.size() && end_of(jobs_[job].chunk) <= there) ++job;
    while (own < own_.size() && end_of(own_[own]) <= there) operand_arrived_locked(own_[own++]);
    release_producers_locked(job);
  }
  return Status::ok();
}

std::size_t HostReduceTransfer::data_end(const FrameChunk& chunk) const {
  return stripe_begins_[chunk.stripe] + chunk.range.end * core::size_of(context().dtype);
}

Result<Buffer> HostReduceTransfer::make(std::size_t c, Kind kind) {
  FrameChunk& chunk = frames_->chunks[c];
  if (kind == Kind::Sum) {
    Result<Buffer> frame = sum(c);
    chunk.frames.clear();
    return frame;
  }
  GEOCOMM_RETURN_IF_ERROR(flush_residual(c));
  GEOCOMM_ASSIGN_OR_RETURN(Buffer frame, encode_contribution(c));
  std::lock_guard lock(mutex_);
  if (chunk.reduces && !codec().is_exact()) chunk.frames[frames_->own_site] = frame;
  arrived_locked(c);
  return frame;
}

// Nothing else is awaited, so the frames are this task's alone from here on.
Status HostReduceTransfer::use(std::size_t c) {
  FrameChunk& chunk = frames_->chunks[c];
  Status status;
  if (chunk.reduces) status = reduce(c);
  // Of an exact codec the owner has it.
  if (status.is_ok() && chunk.receives && chunk.has_result && !(chunk.owns && codec().is_exact())) {
    status = take_result(chunk);
  }
  if (status.is_ok() && chunk.receives) {
    end_feedback(c);
    if (context().flow != nullptr) {
      context().flow->done(data_end(chunk) - data_of(chunk).size(), data_end(chunk));
    }
  }
  chunk.frames.clear();
  chunk.result = {};
  return status;
}

Status HostReduceTransfer::reduce(std::size_t c) {
  FrameChunk& chunk = frames_->chunks[c];
  GEOCOMM_ASSIGN_OR_RETURN(chunk.result, sum(c));
  return chunk.owns ? send_frame(c, Kind::Result, chunk.result) : Status::ok();
}

Result<Buffer> HostReduceTransfer::sum(std::size_t c) {
  return codec().is_exact() ? sum_exactly(c) : sum_decoded(c);
}

// The peers' elements are read where they came in (Lossless: where they are unpacked to), this rank's own
// where they are.
Result<Buffer> HostReduceTransfer::sum_exactly(std::size_t c) {
  const FrameChunk& chunk = frames_->chunks[c];
  const std::span<std::byte> data = data_of(chunk);
  if (!chunk.contributes) GEOCOMM_RETURN_IF_ERROR(flush_residual(c));
  std::map<std::uint32_t, std::vector<const std::byte*>> by_region;  // of an owner several, else one
  std::vector<Buffer> unpacked;
  for (std::size_t site = 0; site < chunk.frames.size(); ++site) {
    const Buffer& frame = chunk.frames[site];
    if (site == frames_->own_site) {
      by_region[region_of(site)].push_back(data.data());
      continue;
    }
    if (frame.data() == nullptr) continue;  // in the sum of its region
    GEOCOMM_ASSIGN_OR_RETURN(const codec::FrameView view,
                             check_frame(frame.span(), context().dtype, chunk, static_cast<int>(site)));
    Status sound;
    if (view.spec.id == codec::CodecId::None) {
      sound = codec::verify_payload(frame.span(), view);
      by_region[region_of(site)].push_back(view.payload.data());
    } else {
      const Buffer& elements = unpacked.emplace_back(buffers().sized(data.size()));
      sound = codec::decompress(frame.span(), elements.span());
      by_region[region_of(site)].push_back(elements.data());
    }
    if (!sound.is_ok()) return std::move(sound).with_peer(site_peer_name(chunk, static_cast<int>(site)));
  }
  std::vector<const std::byte*> sources;
  if (by_region.size() == 1) {
    sources = std::move(by_region.begin()->second);
  } else {
    // The same order whoever owns the chunk.
    for (const auto& [region, elements] : by_region) {
      sources.push_back(elements.front());
      if (elements.size() == 1) continue;
      const Buffer& added = unpacked.emplace_back(buffers().sized(data.size()));
      reduce_elements(context().dtype, op_, elements, added.data(), chunk.range.size(), 1);
      sources.back() = added.data();
    }
  }
  Buffer scratch;
  std::span<std::byte> sums = data;
  if (!chunk.receives) {
    scratch = buffers().sized(data.size());
    sums = scratch.span();
  }
  reduce_elements(context().dtype, op_, sources, sums.data(), chunk.range.size(), divisor_of(chunk));
  return sends_sum(chunk) ? encode_sum(c, sums) : Buffer();
}

Result<Buffer> HostReduceTransfer::sum_decoded(std::size_t c) {
  const FrameChunk& chunk = frames_->chunks[c];
  const std::span<std::byte> data = data_of(chunk);
  const DType dtype = context().dtype;
  if (!chunk.contributes) use_own(chunk);
  // Straight into the caller's data where that is float and no operand is read from there.
  Buffer scratch;
  std::span<float> sums;
  if (dtype == DType::Float32 && chunk.contributes) {
    sums = as_floats(data);
  } else {
    scratch = buffers().sized(chunk.range.size() * sizeof(float));
    sums = as_floats(scratch.span());
  }
  // spec operations 5.1: "All receivers MUST end with the same bits."
  Accumulate next = Accumulate::Assign;
  for (std::size_t s = 0; s < chunk.frames.size(); ++s) {
    const int site = static_cast<int>(s);
    const Buffer& frame = chunk.frames[s];
    const bool is_own_part = frame.data() == nullptr && s == frames_->own_site;  // exact
    if (frame.data() == nullptr && !is_own_part) continue;                       // in the sum of its region
    const Accumulate mode = std::exchange(next, Accumulate::Add);
    if (is_own_part) {
      accumulate_elements(dtype, data.data(), sums, mode);
      continue;
    }
    const DType sent = is_sum(chunk, site) ? result_dtype() : dtype;
    if (auto view = check_frame(frame.span(), sent, chunk, site); !view.is_ok()) return view.status();
    if (Status decoded = codec::decompress_accumulate(frame.span(), sums, mode); !decoded.is_ok()) {
      return std::move(decoded).with_peer(site_peer_name(chunk, site));
    }
  }
  if (sends_sum(chunk) || !divides_at_end(chunk)) divide(sums, divisor_of(chunk));
  if (sends_sum(chunk)) return encode_sum(c, std::as_bytes(sums));
  store_sums(dtype, sums, data.data());
  return Buffer();
}

Status HostReduceTransfer::take_result(const FrameChunk& chunk) {
  const Buffer& frame = chunk.result;
  const std::span<std::byte> data = data_of(chunk);
  if (auto view = check_frame(frame.span(), result_dtype(), chunk, chunk.reducer); !view.is_ok()) {
    return view.status();
  }
  Status decoded;
  if (result_dtype() == context().dtype) {
    decoded = codec::decompress(frame.span(), data);
  } else {
    const Buffer scratch = buffers().sized(chunk.range.size() * sizeof(float));
    const std::span<float> sums = as_floats(scratch.span());
    decoded = codec::decompress_accumulate(frame.span(), sums, Accumulate::Assign);
    if (decoded.is_ok()) store_sums(context().dtype, sums, data.data());
  }
  return decoded.is_ok() ? decoded : std::move(decoded).with_peer(site_peer_name(chunk, chunk.reducer));
}

// Before an exact codec sends this rank's elements, or uses them as they are.
Status HostReduceTransfer::flush_residual(std::size_t c) {
  const FrameChunk& chunk = frames_->chunks[c];
  if (!codec().is_exact() || feedback_of(chunk).residual.empty()) return Status::ok();
  const std::span<std::byte> data = data_of(chunk);
  GEOCOMM_ASSIGN_OR_RETURN(const Buffer frame, encode_with_residual({}, c));
  return codec::decompress(frame.span(), data);
}

// Elements of this rank that no frame carries: of a chunk that it reduces itself.
void HostReduceTransfer::use_own(const FrameChunk& chunk) {
  const FeedbackSpans feedback = feedback_of(chunk);
  divide_by_scale(context().dtype, data_of(chunk), feedback.scale);
  // Where no result is encoded either, nothing is lost.
  if (!sends_sum(chunk)) std::ranges::copy(feedback.residual, feedback.next.begin());
}

Result<Buffer> HostReduceTransfer::encode_contribution(std::size_t c) {
  const FrameChunk& chunk = frames_->chunks[c];
  if (!codec().is_exact() && !feedback_of(chunk).residual.empty()) return encode_with_residual(codec(), c);
  return compressed(codec(), context().dtype, data_of(chunk), chunk.contribution_options);
}

Result<Buffer> HostReduceTransfer::encode_with_residual(const codec::CodecSpec& codec, std::size_t c) {
  const FrameChunk& chunk = frames_->chunks[c];
  const FeedbackSpans feedback = feedback_of(chunk);
  const std::span<std::byte> data = data_of(chunk);
  const float decay = context().caller->decay;
  reports_[c].input_square = enter_scales(context().dtype, data, feedback, decay);
  codec::CompressOptions options = chunk.contribution_options;
  options.feedback = in_place(feedback.next, decay);
  Result<Buffer> frame = compressed(codec, context().dtype, data, options);
  if (frame.is_ok()) keep_residual(c);
  return frame;
}

// Of the sum that this rank owns, or that of its region, in units of the scales already.
Result<Buffer> HostReduceTransfer::encode_sum(std::size_t c, std::span<const std::byte> elements) {
  const FrameChunk& chunk = frames_->chunks[c];
  const FeedbackSpans feedback = feedback_of(chunk);
  codec::CompressOptions options = chunk.result_options;
  if (codec().is_exact() || feedback.residual.empty()) {
    return compressed(codec(), result_dtype(), elements, options);
  }
  // A residual is in units of the sum, what an owner sends in those of the result.
  const int unit = divisor_of(chunk);
  options.feedback = in_place(feedback.next, context().caller->decay / static_cast<float>(unit));
  reports_[c].input_square = enter_scales(elements, feedback, options.feedback.decay) * unit * unit;
  Result<Buffer> frame = compressed(codec(), result_dtype(), elements, options);
  if (!frame.is_ok()) return frame;
  if (unit != 1) {
    for (float& lost : feedback.next) lost *= static_cast<float>(unit);
  }
  keep_residual(c);
  return frame;
}

Result<Buffer> HostReduceTransfer::compressed(const codec::CodecSpec& codec, DType dtype,
                                              std::span<const std::byte> elements,
                                              const codec::CompressOptions& options) {
  Buffer frame =
      buffers().acquire(codec::compress_bound(codec, dtype, elements.size() / core::size_of(dtype)));
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t bytes,
                           codec::compress(codec, dtype, elements, frame.room(), options));
  frame.resize(bytes);
  return buffers().fitted(std::move(frame));  // the channel keeps it until it was acknowledged
}

// What the codec left in the new residual, in units of the scales, as the caller keeps it.
void HostReduceTransfer::keep_residual(std::size_t c) {
  const FeedbackSpans feedback = feedback_of(frames_->chunks[c]);
  reports_[c].residual_square =
      feedback.scale.empty()
          ? square_of(feedback.next)
          : leave_scales(DType::Float32, std::as_writable_bytes(feedback.next), 1, feedback.scale).scaled;
}

// The chunk's result is in the caller's data.
void HostReduceTransfer::end_feedback(std::size_t c) {
  const FrameChunk& chunk = frames_->chunks[c];
  FeedbackReport& report = reports_[c];
  const std::span<const float> scale = feedback_of(chunk).scale;
  if (!scale.empty()) {
    const auto squares =
        leave_scales(context().dtype, data_of(chunk), divides_at_end(chunk) ? frames_->divisor : 1, scale);
    report.scaled_square = squares.scaled;
    report.result_square = squares.plain;
  } else if (context().caller) {
    report.result_square = square_of(context().dtype, data_of(chunk));
  }
}

// Whether end_feedback() divides by divisor() as well: one pass less.
bool HostReduceTransfer::divides_at_end(const FrameChunk& chunk) const {
  return chunk.flow == Flow::BroadcastAll && !codec().is_exact() && context().dtype == DType::Float32 &&
         !feedback_of(chunk).scale.empty();
}

bool HostReduceTransfer::is_sum(const FrameChunk& chunk, int site) const {
  return scheme_ != nullptr && chunk.reducer >= 0 &&
         scheme_->relays.at(chunk.turn)
             .is_adder(static_cast<std::size_t>(chunk.reducer), static_cast<std::size_t>(site));
}

std::uint32_t HostReduceTransfer::region_of(std::size_t site) const {
  const bool are_apart = scheme_ != nullptr && scheme_->has_two_levels();
  return are_apart ? scheme_->relays.at(0).regions[site] : 0;
}

FeedbackReport HostReduceTransfer::report() const {
  FeedbackReport total;
  for (const FeedbackReport& report : reports_) {
    total.input_square += report.input_square;
    total.residual_square += report.residual_square;
    total.scaled_square += report.scaled_square;
    total.result_square += report.result_square;
  }
  total.wire_bytes = wire_bytes();
  return total;
}

std::span<std::byte> HostReduceTransfer::data_of(const FrameChunk& chunk) const {
  const std::size_t size = core::size_of(context().dtype);
  return stripes_[chunk.stripe].data.subspan(chunk.range.begin * size, chunk.range.size() * size);
}

FeedbackSpans HostReduceTransfer::feedback_of(const FrameChunk& chunk) const {
  return stripes_[chunk.stripe].feedback.part(chunk.range.begin, chunk.range.size());
}

}  // namespace geocomm::collective
