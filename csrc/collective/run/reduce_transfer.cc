#include "collective/run/reduce_transfer.h"

#include <algorithm>
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

ReduceTransfer::ReduceTransfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context, ReduceOp op,
                               std::span<const StripeData> stripes)
    : PlannedReduction(std::move(shared), context, op, stripes), states_(plan_.chunks.size()) {
  std::size_t finishes = 0;
  std::size_t bytes = 0;
  for (const StripeData& stripe : stripes_) {
    stripe_begins_.push_back(bytes);
    bytes += stripe.data.size();
  }
  for (std::size_t c = 0; c < states_.size(); ++c) {
    const PlannedChunk& chunk = plan_.chunks[c];
    ChunkState& state = states_[c];
    const Route& route = routes_[c];
    state.finishes = receives(chunk) || chunk.reducer == own_site();
    state.awaited = route.contributions_awaited + route.results_awaited;
    if (state.finishes) {
      ++finishes;
      state.frames.resize(stripes_[chunk.stripe].stripe.rank_of_site.size());
    }
    // The data is overwritten only once it has been encoded.
    if (!route.contributions.empty()) {
      ++state.awaited;
      producers_.push_back(c);
    } else if (context.flow != nullptr && state.finishes) {
      ++state.awaited;
      own_.push_back(c);
    }
    if (state.finishes && state.awaited == 0) ready_.push_back(c);
  }
  // Stripes have different peers: their chunks take turns, so that all links are busy.
  std::stable_sort(producers_.begin(), producers_.end(), [&](std::size_t a, std::size_t b) {
    return plan_.chunks[a].index < plan_.chunks[b].index;
  });
  if (context.flow != nullptr) hold_producers_locked(0);
  plan(make_peers(), producers_.size(), finishes + relayed_frames(), total_bytes(context),
       codec_.to_string());
}

void ReduceTransfer::start() {
  std::lock_guard lock(mutex_);
  for (const std::size_t c : ready_) submit_finish_locked([this, c] { return finish(c); });
  if (context().flow != nullptr) call_waiting_thread_locked([this] { return follow_data(); });
}

// Chunks begin as their data comes.
Status ReduceTransfer::follow_data() {
  std::size_t job = 0;
  std::size_t own = 0;
  while (job < producers_.size() || own < own_.size()) {
    std::size_t next = ~std::size_t{0};
    if (job < producers_.size()) next = data_end(producers_[job]);
    if (own < own_.size()) next = std::min(next, data_end(own_[own]));
    GEOCOMM_ASSIGN_OR_RETURN(const std::size_t there, context().flow->wait_for(next, context().deadline));
    std::lock_guard lock(mutex_);
    while (job < producers_.size() && data_end(producers_[job]) <= there) ++job;
    while (own < own_.size() && data_end(own_[own]) <= there) arrived_locked(own_[own++]);
    release_producers_locked(job);
  }
  return Status::ok();
}

std::size_t ReduceTransfer::data_end(std::size_t c) const {
  const PlannedChunk& chunk = plan_.chunks[c];
  return stripe_begins_[chunk.stripe] + chunk.range.end * core::size_of(context().dtype);
}

Status ReduceTransfer::produce(std::size_t job) {
  const std::size_t c = producers_[job];
  const PlannedChunk& chunk = plan_.chunks[c];
  ChunkState& state = states_[c];
  GEOCOMM_RETURN_IF_ERROR(flush_residual(c));
  GEOCOMM_ASSIGN_OR_RETURN(const Buffer frame, encode_contribution(c));
  GEOCOMM_RETURN_IF_ERROR(send_frame(c, routes_[c].contributions, frame));
  std::lock_guard lock(mutex_);
  if (state.finishes && chunk.reducer < 0 && !codec_.is_exact()) {
    state.frames[static_cast<std::size_t>(own_site())] = frame;
  }
  arrived_locked(c);
  return Status::ok();
}

Buffer& ReduceTransfer::slot(const Message& message) {
  ChunkState& state = states_[message.chunk];
  return message.kind == Message::Kind::Contribution ? state.frames[static_cast<std::size_t>(message.origin)]
                                                     : state.result;
}

void ReduceTransfer::arrived_locked(std::size_t c) {
  if (--states_[c].awaited == 0 && states_[c].finishes) {
    submit_finish_locked([this, c] { return finish(c); });
  }
}

Status ReduceTransfer::finish(std::size_t c) {
  const PlannedChunk& chunk = plan_.chunks[c];
  ChunkState& state = states_[c];
  // Nothing else is awaited, so the frames are this task's alone from here on.
  Status status;
  if (chunk.reducer >= 0 && chunk.reducer != own_site()) {
    status = take_result(chunk, state.result);
  } else {
    status = codec_.is_exact() ? reduce_exactly(c) : reduce_decoded(c);
  }
  if (status.is_ok() && receives(chunk)) {
    end_feedback(c);
    if (context().flow != nullptr) context().flow->done(data_end(c) - data_of(chunk).size(), data_end(c));
  }
  state.frames.clear();
  state.result = {};
  return status;
}

// The peers' elements are read where they came in (Lossless: where they are unpacked to), this rank's own
// where they are.
Status ReduceTransfer::reduce_exactly(std::size_t c) {
  const PlannedChunk& chunk = plan_.chunks[c];
  ChunkState& state = states_[c];
  const std::span<std::byte> data = data_of(chunk);
  if (routes_[c].contributions.empty()) GEOCOMM_RETURN_IF_ERROR(flush_residual(c));
  std::vector<const std::byte*> sources;
  std::vector<Buffer> unpacked;
  for (std::size_t site = 0; site < state.frames.size(); ++site) {
    if (static_cast<int>(site) == own_site()) {
      sources.push_back(data.data());
      continue;
    }
    GEOCOMM_ASSIGN_OR_RETURN(
        const codec::FrameView view,
        check_frame(state.frames[site].span(), context().dtype, chunk, static_cast<int>(site)));
    Status sound;
    if (view.spec.id == codec::CodecId::None) {
      sound = codec::verify_payload(state.frames[site].span(), view);
      sources.push_back(view.payload.data());
    } else {
      const Buffer& elements = unpacked.emplace_back(buffers().sized(data.size()));
      sound = codec::decompress(state.frames[site].span(), elements.span());
      sources.push_back(elements.data());
    }
    if (!sound.is_ok()) return std::move(sound).with_peer(site_peer_name(chunk, static_cast<int>(site)));
  }
  Buffer scratch;
  std::span<std::byte> sums = data;
  if (!receives(chunk)) {
    scratch = buffers().sized(data.size());
    sums = scratch.span();
  }
  reduce_elements(context().dtype, op_, sources, sums.data(), chunk.range.size(), divisor());
  Buffer frame;
  return send_result(c, sums, frame);
}

Status ReduceTransfer::reduce_decoded(std::size_t c) {
  const PlannedChunk& chunk = plan_.chunks[c];
  ChunkState& state = states_[c];
  const std::span<std::byte> data = data_of(chunk);
  const DType dtype = context().dtype;
  const bool owns = chunk.flow == Flow::OwnerReduces;
  if (routes_[c].contributions.empty()) use_own(c);
  // Straight into the caller's data where that is float and no operand is read from there.
  Buffer scratch;
  std::span<float> sums;
  if (dtype == DType::Float32 && chunk.reducer < 0) {
    sums = as_floats(data);
  } else {
    scratch = buffers().sized(chunk.range.size() * sizeof(float));
    sums = as_floats(scratch.span());
  }
  for (std::size_t site = 0; site < state.frames.size(); ++site) {
    // spec operations 5.1: "All receivers MUST end with the same bits."
    const Accumulate mode = site == 0 ? Accumulate::Assign : Accumulate::Add;
    const Buffer& frame = state.frames[site];
    if (frame.data() == nullptr) {  // this rank's own part, exact
      accumulate_elements(dtype, data.data(), sums, mode);
      continue;
    }
    if (auto view = check_frame(frame.span(), dtype, chunk, static_cast<int>(site)); !view.is_ok()) {
      return view.status();
    }
    if (Status decoded = codec::decompress_accumulate(frame.span(), sums, mode); !decoded.is_ok()) {
      return std::move(decoded).with_peer(site_peer_name(chunk, static_cast<int>(site)));
    }
  }
  if (owns || !divides_at_end(chunk)) divide(sums, divisor());
  if (owns) {
    Buffer frame;
    GEOCOMM_RETURN_IF_ERROR(send_result(c, std::as_bytes(sums), frame));
    return receives(chunk) ? take_result(chunk, frame) : Status::ok();
  }
  store_sums(dtype, sums, data.data());
  return Status::ok();
}

// Nothing to do but for an owner. `frame` becomes what the receivers get.
Status ReduceTransfer::send_result(std::size_t c, std::span<const std::byte> elements, Buffer& frame) {
  const PlannedChunk& chunk = plan_.chunks[c];
  if (chunk.flow != Flow::OwnerReduces) return Status::ok();
  GEOCOMM_ASSIGN_OR_RETURN(frame, encode_result(c, elements));
  return send_frame(c, routes_[c].results, frame);
}

Status ReduceTransfer::send_frame(std::size_t c, const std::vector<Target>& to, const Buffer& frame) {
  GEOCOMM_RETURN_IF_ERROR(send(to, frame, raw_bytes(plan_.chunks[c])));
  states_[c].report.wire_bytes = to.size() * frame.size();
  return Status::ok();
}

Status ReduceTransfer::take_result(const PlannedChunk& chunk, const Buffer& frame) {
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
Status ReduceTransfer::flush_residual(std::size_t c) {
  const PlannedChunk& chunk = plan_.chunks[c];
  if (!codec_.is_exact() || feedback_of(chunk).residual.empty()) return Status::ok();
  const std::span<std::byte> data = data_of(chunk);
  GEOCOMM_ASSIGN_OR_RETURN(const Buffer frame, encode_with_residual({}, c));
  return codec::decompress(frame.span(), data);
}

// Elements of this rank that no frame carries: of a chunk that it reduces itself.
void ReduceTransfer::use_own(std::size_t c) {
  const PlannedChunk& chunk = plan_.chunks[c];
  const FeedbackSpans feedback = feedback_of(chunk);
  divide_by_scale(context().dtype, data_of(chunk), feedback.scale);
  // Where no result is encoded either, nothing is lost.
  if (chunk.flow != Flow::OwnerReduces) std::ranges::copy(feedback.residual, feedback.next.begin());
}

Result<Buffer> ReduceTransfer::encode_contribution(std::size_t c) {
  const PlannedChunk& chunk = plan_.chunks[c];
  if (!codec_.is_exact() && !feedback_of(chunk).residual.empty()) return encode_with_residual(codec_, c);
  return compressed(codec_, chunk, context().dtype, data_of(chunk),
                    encode_options(chunk, Message::Kind::Contribution));
}

Result<Buffer> ReduceTransfer::encode_with_residual(const codec::CodecSpec& codec, std::size_t c) {
  const PlannedChunk& chunk = plan_.chunks[c];
  const FeedbackSpans feedback = feedback_of(chunk);
  const std::span<std::byte> data = data_of(chunk);
  const float decay = context().caller->decay;
  states_[c].report.input_square = enter_scales(context().dtype, data, feedback, decay);
  codec::CompressOptions options = encode_options(chunk, Message::Kind::Contribution);
  options.feedback = in_place(feedback.next, decay);
  Result<Buffer> frame = compressed(codec, chunk, context().dtype, data, options);
  if (frame.is_ok()) keep_residual(c);
  return frame;
}

// Of the sum that this rank owns, in units of the scales already.
Result<Buffer> ReduceTransfer::encode_result(std::size_t c, std::span<const std::byte> elements) {
  const PlannedChunk& chunk = plan_.chunks[c];
  const FeedbackSpans feedback = feedback_of(chunk);
  codec::CompressOptions options = encode_options(chunk, Message::Kind::Result);
  if (codec_.is_exact() || feedback.residual.empty()) {
    return compressed(codec_, chunk, result_dtype(), elements, options);
  }
  // A residual is in units of the sum, what an owner sends in those of the result.
  const int unit = divisor();
  options.feedback = in_place(feedback.next, context().caller->decay / static_cast<float>(unit));
  states_[c].report.input_square = enter_scales(elements, feedback, options.feedback.decay) * unit * unit;
  Result<Buffer> frame = compressed(codec_, chunk, result_dtype(), elements, options);
  if (!frame.is_ok()) return frame;
  if (unit != 1) {
    for (float& lost : feedback.next) lost *= static_cast<float>(unit);
  }
  keep_residual(c);
  return frame;
}

Result<Buffer> ReduceTransfer::compressed(const codec::CodecSpec& codec, const PlannedChunk& chunk,
                                          DType dtype, std::span<const std::byte> elements,
                                          const codec::CompressOptions& options) {
  Buffer frame = buffers().acquire(codec::compress_bound(codec, dtype, chunk.range.size()));
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t bytes,
                           codec::compress(codec, dtype, elements, frame.room(), options));
  frame.resize(bytes);
  return buffers().fitted(std::move(frame));  // the channel keeps it until it was acknowledged
}

// What the codec left in the new residual, in units of the scales, as the caller keeps it.
void ReduceTransfer::keep_residual(std::size_t c) {
  const FeedbackSpans feedback = feedback_of(plan_.chunks[c]);
  states_[c].report.residual_square =
      feedback.scale.empty()
          ? square_of(feedback.next)
          : leave_scales(DType::Float32, std::as_writable_bytes(feedback.next), 1, feedback.scale).scaled;
}

// The chunk's result is in the caller's data.
void ReduceTransfer::end_feedback(std::size_t c) {
  const PlannedChunk& chunk = plan_.chunks[c];
  FeedbackReport& report = states_[c].report;
  const std::span<const float> scale = feedback_of(chunk).scale;
  if (!scale.empty()) {
    const auto squares =
        leave_scales(context().dtype, data_of(chunk), divides_at_end(chunk) ? divisor() : 1, scale);
    report.scaled_square = squares.scaled;
    report.result_square = squares.plain;
  } else if (context().caller) {
    report.result_square = square_of(context().dtype, data_of(chunk));
  }
}

// Whether end_feedback() divides by divisor() as well: one pass less.
bool ReduceTransfer::divides_at_end(const PlannedChunk& chunk) const {
  return chunk.flow == Flow::BroadcastAll && !codec_.is_exact() && context().dtype == DType::Float32 &&
         !feedback_of(chunk).scale.empty();
}

FeedbackReport ReduceTransfer::report() const {
  FeedbackReport total;
  for (const ChunkState& state : states_) {
    total.input_square += state.report.input_square;
    total.residual_square += state.report.residual_square;
    total.scaled_square += state.report.scaled_square;
    total.result_square += state.report.result_square;
    total.wire_bytes += state.report.wire_bytes;
  }
  return total;
}

std::span<std::byte> ReduceTransfer::data_of(const PlannedChunk& chunk) const {
  const std::size_t size = core::size_of(context().dtype);
  return stripes_[chunk.stripe].data.subspan(chunk.range.begin * size, chunk.range.size() * size);
}

FeedbackSpans ReduceTransfer::feedback_of(const PlannedChunk& chunk) const {
  return stripes_[chunk.stripe].feedback.part(chunk.range.begin, chunk.range.size());
}

int ReduceTransfer::divisor() const {
  return op_ == ReduceOp::Avg ? config().topology.size() : 1;
}

}  // namespace geocomm::collective
