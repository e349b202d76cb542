#include "collective/reduce_operation.h"

#include <algorithm>
#include <utility>

#include "codec/codec.h"
#include "collective/descriptor.h"
#include "collective/reduction.h"
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

codec::CodecSpec codec_for(const ExchangeConfig& config, const OpContext& context, ReduceOp op) {
  const bool sums = op == ReduceOp::Sum || op == ReduceOp::Avg;
  const bool large = context.elements * core::size_of(context.dtype) >= config.min_compress_bytes;
  const bool fits = core::is_compressible(context.dtype) && (sums || config.codec.is_exact());
  return large && fits ? config.codec : codec::CodecSpec{};
}

std::vector<PlannedLane> shapes_of(std::span<const LaneData> lanes) {
  std::vector<PlannedLane> shapes;
  for (const LaneData& lane : lanes) shapes.push_back({lane.lane, lane.receives});
  return shapes;
}

// A good hash of `value`, to be chained (the finalizer of splitmix64).
std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  std::uint64_t z = state + value + 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

std::span<float> as_floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace

ReduceOperation::ReduceOperation(std::shared_ptr<ExchangeShared> shared, const OpContext& context,
                                 ReduceOp op, std::span<const LaneData> lanes)
    : Operation(std::move(shared), context),
      op_(op),
      lanes_(lanes.begin(), lanes.end()),
      codec_(codec_for(config(), context, op)),
      plan_(plan_reduce(
          config().topology, shapes_of(lanes),
          {core::size_of(context.dtype), config().chunk_bytes, config().broadcast_all_below_bytes})),
      states_(plan_.chunks.size()) {
  const std::uint64_t descriptor =
      pack_descriptor({context.kind, context.dtype, op, codec_, context.elements});
  std::vector<Peer> peers;
  for (const PeerPlan& planned : plan_.peers) {
    Peer peer;
    peer.rank = planned.rank;
    peer.sends = static_cast<std::uint32_t>(planned.sends.size());
    peer.receives = static_cast<std::uint32_t>(planned.receives.size());
    peer.send_descriptor = peer.receive_descriptor = descriptor;
    for (std::uint32_t number = 0; number < peer.sends; ++number) {
      const Message& message = planned.sends[number];
      ChunkState& state = states_[message.chunk];
      (message.kind == Message::Kind::Contribution ? state.contributions : state.results)
          .push_back({peers.size(), number});
    }
    for (const Message& message : planned.receives) {
      ++states_[message.chunk].awaited;
      if (message.kind == Message::Kind::Contribution) ++peer.owed;
    }
    peers.push_back(std::move(peer));
  }
  std::size_t finishes = 0;
  for (std::size_t c = 0; c < states_.size(); ++c) {
    const PlannedChunk& chunk = plan_.chunks[c];
    ChunkState& state = states_[c];
    state.finishes = receives(chunk) || chunk.reducer == own_site();
    if (state.finishes) {
      ++finishes;
      state.frames.resize(lanes_[chunk.lane].lane.rank_of_site.size());
    }
    // The data is overwritten only once it has been encoded.
    if (!state.contributions.empty()) {
      ++state.awaited;
      producers_.push_back(c);
    }
    if (state.finishes && state.awaited == 0) ready_.push_back(c);
  }
  // Lanes have different peers: their chunks take turns, so that all links are busy.
  std::stable_sort(producers_.begin(), producers_.end(), [&](std::size_t a, std::size_t b) {
    return plan_.chunks[a].index < plan_.chunks[b].index;
  });
  plan(std::move(peers), producers_.size(), finishes);
}

void ReduceOperation::start() {
  std::lock_guard lock(mutex_);
  for (const std::size_t c : ready_) submit_finish_locked([this, c] { return finish(c); });
}

Status ReduceOperation::produce(std::size_t job) {
  const std::size_t c = producers_[job];
  const PlannedChunk& chunk = plan_.chunks[c];
  ChunkState& state = states_[c];
  GEOCOMM_ASSIGN_OR_RETURN(const Buffer frame,
                           encode(chunk, context().dtype, data_of(chunk), Message::Kind::Contribution));
  for (const Send& to : state.contributions) {
    GEOCOMM_RETURN_IF_ERROR(send(to.peer, to.number, frame, raw_bytes(chunk)));
  }
  std::lock_guard lock(mutex_);
  if (state.finishes && chunk.reducer < 0 && !codec_.is_exact()) {
    state.frames[static_cast<std::size_t>(own_site())] = frame;
  }
  arrived_locked(c);
  return Status::ok();
}

Result<std::span<std::byte>> ReduceOperation::place(std::size_t peer, std::uint32_t number,
                                                    std::size_t chunk_bytes) {
  const Message& message = plan_.peers[peer].receives[number];
  const PlannedChunk& chunk = plan_.chunks[message.chunk];
  const bool contribution = message.kind == Message::Kind::Contribution;
  const DType dtype = contribution ? context().dtype : result_dtype();
  const std::size_t bound = codec::compress_bound(codec_, dtype, chunk.range.size());
  if (chunk_bytes < sizeof(codec::FrameHeader) || chunk_bytes > bound) {
    return Status(StatusCode::CorruptData, str("chunk ", number, " from ", peer_name(peer), " has ",
                                               chunk_bytes, " bytes, but a frame of ", chunk.range.size(),
                                               " elements has ", sizeof(codec::FrameHeader), " to ", bound))
        .with_peer(peer_name(peer));
  }
  Buffer buffer = buffers().acquire(chunk_bytes);
  buffer.resize(chunk_bytes);
  std::lock_guard lock(mutex_);
  ChunkState& state = states_[message.chunk];
  const int site = config().topology.site_of(plan_.peers[peer].rank);
  Buffer& slot = contribution ? state.frames[static_cast<std::size_t>(site)] : state.result;
  if (slot.data() != nullptr) {
    return Status(StatusCode::CorruptData, str("chunk ", number, " from ", peer_name(peer), " came twice"))
        .with_peer(peer_name(peer));
  }
  slot = buffer;
  return buffer.span();
}

Operation::Arrival ReduceOperation::on_arrival(std::size_t peer, std::uint32_t number) {
  const Message& message = plan_.peers[peer].receives[number];
  const ChunkState& state = states_[message.chunk];
  const bool contribution = message.kind == Message::Kind::Contribution;
  const int site = config().topology.site_of(plan_.peers[peer].rank);
  const Buffer& frame = contribution ? state.frames[static_cast<std::size_t>(site)] : state.result;
  const Arrival arrival{contribution, raw_bytes(plan_.chunks[message.chunk]), frame.size()};
  arrived_locked(message.chunk);
  return arrival;
}

void ReduceOperation::arrived_locked(std::size_t c) {
  if (--states_[c].awaited == 0 && states_[c].finishes) {
    submit_finish_locked([this, c] { return finish(c); });
  }
}

Status ReduceOperation::finish(std::size_t c) {
  const PlannedChunk& chunk = plan_.chunks[c];
  ChunkState& state = states_[c];
  // Nothing else is awaited, so the frames are this task's alone from here on.
  Status status;
  if (chunk.reducer >= 0 && chunk.reducer != own_site()) {
    status = take_result(chunk, state.result);
  } else {
    status = codec_.is_exact() ? reduce_exactly(chunk, state) : reduce_decoded(chunk, state);
  }
  state.frames.clear();
  state.result = {};
  return status;
}

// The peers' elements are read where they came in (Lossless: where they are unpacked to), this rank's own
// where they are.
Status ReduceOperation::reduce_exactly(const PlannedChunk& chunk, ChunkState& state) {
  const std::span<std::byte> data = data_of(chunk);
  std::vector<const std::byte*> sources;
  std::vector<Buffer> unpacked;
  for (std::size_t site = 0; site < state.frames.size(); ++site) {
    if (static_cast<int>(site) == own_site()) {
      sources.push_back(data.data());
      continue;
    }
    GEOCOMM_ASSIGN_OR_RETURN(const codec::FrameView view,
                             check_frame(state.frames[site], context().dtype, chunk, static_cast<int>(site)));
    Status sound;
    if (view.spec.id == codec::CodecId::None) {
      sound = codec::verify_payload(state.frames[site].span(), view);
      sources.push_back(view.payload.data());
    } else {
      Buffer& elements = unpacked.emplace_back(buffers().acquire(data.size()));
      elements.resize(data.size());
      sound = codec::decompress(state.frames[site].span(), elements.span());
      sources.push_back(elements.data());
    }
    if (!sound.is_ok()) return std::move(sound).with_peer(site_peer_name(chunk, static_cast<int>(site)));
  }
  Buffer scratch;
  std::span<std::byte> sums = data;
  if (!receives(chunk)) {
    scratch = buffers().acquire(data.size());
    scratch.resize(data.size());
    sums = scratch.span();
  }
  reduce_elements(context().dtype, op_, sources, sums.data(), chunk.range.size(), divisor());
  Buffer frame;
  return send_result(chunk, state, sums, frame);
}

Status ReduceOperation::reduce_decoded(const PlannedChunk& chunk, ChunkState& state) {
  const std::span<std::byte> data = data_of(chunk);
  const DType dtype = context().dtype;
  // Straight into the caller's data where that is float and no operand is read from there.
  Buffer scratch;
  std::span<float> sums;
  if (dtype == DType::Float32 && chunk.reducer < 0) {
    sums = as_floats(data);
  } else {
    scratch = buffers().acquire(chunk.range.size() * sizeof(float));
    scratch.resize(chunk.range.size() * sizeof(float));
    sums = as_floats(scratch.span());
  }
  for (std::size_t site = 0; site < state.frames.size(); ++site) {
    const Accumulate mode = site == 0 ? Accumulate::Assign : Accumulate::Add;
    const Buffer& frame = state.frames[site];
    if (frame.data() == nullptr) {  // this rank's own part, exact
      accumulate_elements(dtype, data.data(), sums, mode);
      continue;
    }
    if (auto view = check_frame(frame, dtype, chunk, static_cast<int>(site)); !view.is_ok()) {
      return view.status();
    }
    if (Status decoded = codec::decompress_accumulate(frame.span(), sums, mode); !decoded.is_ok()) {
      return std::move(decoded).with_peer(site_peer_name(chunk, static_cast<int>(site)));
    }
  }
  divide(sums, divisor());
  if (chunk.flow == Flow::OwnerReduces) {
    Buffer frame;
    GEOCOMM_RETURN_IF_ERROR(send_result(chunk, state, std::as_bytes(sums), frame));
    return receives(chunk) ? take_result(chunk, frame) : Status::ok();
  }
  store_sums(dtype, sums, data.data());
  return Status::ok();
}

// Nothing to do but for an owner. `frame` becomes what the receivers get.
Status ReduceOperation::send_result(const PlannedChunk& chunk, const ChunkState& state,
                                    std::span<const std::byte> elements, Buffer& frame) {
  if (chunk.flow != Flow::OwnerReduces) return Status::ok();
  GEOCOMM_ASSIGN_OR_RETURN(frame, encode(chunk, result_dtype(), elements, Message::Kind::Result));
  for (const Send& to : state.results) {
    GEOCOMM_RETURN_IF_ERROR(send(to.peer, to.number, frame, raw_bytes(chunk)));
  }
  return Status::ok();
}

Status ReduceOperation::take_result(const PlannedChunk& chunk, const Buffer& frame) {
  const std::span<std::byte> data = data_of(chunk);
  if (auto view = check_frame(frame, result_dtype(), chunk, chunk.reducer); !view.is_ok()) {
    return view.status();
  }
  Status decoded;
  if (result_dtype() == context().dtype) {
    decoded = codec::decompress(frame.span(), data);
  } else {
    Buffer scratch = buffers().acquire(chunk.range.size() * sizeof(float));
    scratch.resize(chunk.range.size() * sizeof(float));
    const std::span<float> sums = as_floats(scratch.span());
    decoded = codec::decompress_accumulate(frame.span(), sums, Accumulate::Assign);
    if (decoded.is_ok()) store_sums(context().dtype, sums, data.data());
  }
  return decoded.is_ok() ? decoded : std::move(decoded).with_peer(site_peer_name(chunk, chunk.reducer));
}

Result<Buffer> ReduceOperation::encode(const PlannedChunk& chunk, DType dtype,
                                       std::span<const std::byte> elements, Message::Kind kind) {
  Buffer frame = buffers().acquire(codec::compress_bound(codec_, dtype, chunk.range.size()));
  codec::CompressOptions options;
  const auto rank = static_cast<std::uint64_t>(config().topology.rank());
  options.seed = mix(mix(mix(config().group, context().seq), rank), static_cast<std::uint64_t>(kind));
  options.first_element = lanes_[chunk.lane].lane.range.begin + chunk.range.begin;
  GEOCOMM_ASSIGN_OR_RETURN(const std::size_t bytes,
                           codec::compress(codec_, dtype, elements, frame.room(), options));
  frame.resize(bytes);
  return frame;
}

Result<codec::FrameView> ReduceOperation::check_frame(const Buffer& frame, DType dtype,
                                                      const PlannedChunk& chunk, int site) const {
  auto view = codec::parse_frame(frame.span());
  if (!view.is_ok()) return Status(view.status()).with_peer(site_peer_name(chunk, site));
  // Codecs may resort to None, but not to each other.
  const bool codec_fits =
      view->spec.id == codec::CodecId::None || codec::same_frames(view->spec, codec_);
  if (!codec_fits || view->dtype != dtype || view->elements != chunk.range.size() ||
      codec::frame_bytes(*view) != frame.size()) {
    return Status(StatusCode::CorruptData,
                  str("frame from ", site_peer_name(chunk, site), " holds ", view->elements, " elements of ",
                      core::to_string(view->dtype), " in ", view->spec.to_string(), " (", frame.size(),
                      " bytes), expected ", chunk.range.size(), " elements of ", core::to_string(dtype),
                      " in ", codec_.to_string()))
        .with_peer(site_peer_name(chunk, site));
  }
  return view;
}

std::span<std::byte> ReduceOperation::data_of(const PlannedChunk& chunk) const {
  const std::size_t size = core::size_of(context().dtype);
  return lanes_[chunk.lane].data.subspan(chunk.range.begin * size, chunk.range.size() * size);
}

std::uint64_t ReduceOperation::raw_bytes(const PlannedChunk& chunk) const {
  return chunk.range.size() * core::size_of(context().dtype);
}

bool ReduceOperation::receives(const PlannedChunk& chunk) const {
  return lanes_[chunk.lane].receives[static_cast<std::size_t>(own_site())];
}

DType ReduceOperation::result_dtype() const {
  return codec_.is_exact() ? context().dtype : DType::Float32;
}

int ReduceOperation::divisor() const {
  return op_ == ReduceOp::Avg ? config().topology.size() : 1;
}

std::string ReduceOperation::site_peer_name(const PlannedChunk& chunk, int site) const {
  const int rank = lanes_[chunk.lane].lane.rank_of_site[static_cast<std::size_t>(site)];
  for (std::size_t i = 0; i < peers().size(); ++i) {
    if (peers()[i].rank == rank) return peer_name(i);
  }
  return str("this rank (", rank, ")");
}

}  // namespace geocomm::collective
