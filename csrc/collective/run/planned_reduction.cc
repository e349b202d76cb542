#include "collective/run/planned_reduction.h"

#include <tuple>
#include <utility>

#include "collective/layout/descriptor.h"
#include "core/str.h"

namespace geocomm::collective {

using core::DType;
using core::Result;
using core::Status;
using core::str;

namespace {

// A good hash of `value`, to be chained (the finalizer of splitmix64).
std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  std::uint64_t z = state + value + 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

}  // namespace

codec::CodecSpec reduction_codec(const ExchangeConfig& config, const OpContext& context, ReduceOp op) {
  const std::uint64_t raw_bytes = context.elements * core::size_of(context.dtype);
  if (context.caller)
    return raw_bytes < config.min_compress_bytes ? codec::CodecSpec{} : context.caller->codec;
  const codec::CodecSpec& codec = context.policy->codec_for(raw_bytes);
  const bool sums = op == ReduceOp::Sum || op == ReduceOp::Avg;
  const bool fits = core::is_compressible(context.dtype) && (sums || codec.is_exact());
  return fits ? codec : codec::CodecSpec{};
}

DType result_dtype(const codec::CodecSpec& codec, DType dtype) {
  return codec.is_exact() ? dtype : DType::Float32;
}

ReducePlan plan_of(const ExchangeConfig& config, const OpContext& context, const codec::CodecSpec& codec,
                   std::span<const StripeData> stripes) {
  std::vector<PlannedStripe> shapes;
  for (const StripeData& stripe : stripes) shapes.push_back({stripe.stripe, stripe.receives});
  return plan_reduce(
      config.topology, shapes,
      {core::size_of(context.dtype), config.chunk_bytes,
       context.policy->scheme_for(codec, context.dtype, context.elements), context.policy->relays()});
}

PlannedReduction::PlannedReduction(std::shared_ptr<ExchangeShared> shared, const OpContext& context,
                                   ReduceOp op, std::span<const StripeData> stripes)
    : Transfer(std::move(shared), context),
      op_(op),
      stripes_(stripes.begin(), stripes.end()),
      codec_(reduction_codec(config(), context, op)),
      plan_(plan_of(config(), context, codec_, stripes)),
      routes_(plan_.chunks.size()) {
  std::map<std::tuple<std::size_t, Message::Kind, int>, std::vector<Target>> onward;
  for (std::size_t p = 0; p < plan_.peers.size(); ++p) {
    const PeerPlan& planned = plan_.peers[p];
    for (std::uint32_t number = 0; number < planned.sends.size(); ++number) {
      const Message& message = planned.sends[number];
      if (message.origin != own_site()) {
        onward[{message.chunk, message.kind, message.origin}].push_back({p, number});
        continue;
      }
      Route& route = routes_[message.chunk];
      (message.kind == Message::Kind::Contribution ? route.contributions : route.results)
          .push_back({p, number});
    }
  }
  for (std::size_t p = 0; p < plan_.peers.size(); ++p) {
    const PeerPlan& planned = plan_.peers[p];
    placed_.emplace_back(planned.receives.size(), false);
    for (std::uint32_t number = 0; number < planned.receives.size(); ++number) {
      const Message& message = planned.receives[number];
      const auto found = onward.find({message.chunk, message.kind, message.origin});
      if (found != onward.end()) relays_[{p, number}] = found->second;
      if (!message.delivers) continue;
      Route& route = routes_[message.chunk];
      ++(message.kind == Message::Kind::Contribution ? route.contributions_awaited : route.results_awaited);
    }
  }
}

Result<std::span<std::byte>> PlannedReduction::place(std::size_t peer, std::uint32_t number,
                                                     std::size_t bytes) {
  GEOCOMM_RETURN_IF_ERROR(check_size(peer, number, bytes));
  const Message& message = plan_.peers[peer].receives[number];
  const core::Buffer buffer = message.delivers ? room_for(message, bytes) : buffers().sized(bytes);
  std::lock_guard lock(mutex_);
  if (placed_[peer][number]) return came_twice(peer, number);
  placed_[peer][number] = true;
  (message.delivers ? slot(message) : relayed_[{peer, number}]) = buffer;
  return buffer.span();
}

Transfer::Arrival PlannedReduction::on_arrival(std::size_t peer, std::uint32_t number) {
  const Message& message = plan_.peers[peer].receives[number];
  const core::Buffer frame = message.delivers ? slot(message) : relayed_.extract({peer, number}).mapped();
  const std::uint64_t raw = raw_bytes(plan_.chunks[message.chunk]);
  const Arrival arrival{is_owed(message, peers()[peer].rank), raw, frame.size()};
  if (const auto found = relays_.find({peer, number}); found != relays_.end()) {
    submit_finish_locked([this, &to = found->second, frame, raw] { return relay(to, frame, raw); });
  }
  if (message.delivers) delivered_locked(message);
  return arrival;
}

std::vector<Transfer::Peer> PlannedReduction::make_peers() const {
  const std::uint64_t descriptor =
      pack_descriptor({context().kind, context().dtype, op_, codec_, context().elements});
  std::vector<Peer> peers;
  for (const PeerPlan& planned : plan_.peers) {
    Peer peer;
    peer.rank = planned.rank;
    peer.sends = static_cast<std::uint32_t>(planned.sends.size());
    peer.receives = static_cast<std::uint32_t>(planned.receives.size());
    peer.send_descriptor = peer.receive_descriptor = descriptor;
    for (const Message& message : planned.receives) {
      if (is_owed(message, planned.rank)) ++peer.owed;
    }
    peers.push_back(std::move(peer));
  }
  return peers;
}

Status PlannedReduction::check_size(std::size_t peer, std::uint32_t number, std::size_t bytes) const {
  const Message& message = plan_.peers[peer].receives[number];
  const std::uint64_t elements = plan_.chunks[message.chunk].range.size();
  const DType dtype = message.kind == Message::Kind::Contribution ? context().dtype : result_dtype();
  const std::size_t bound = codec::compress_bound(codec_, dtype, elements);
  if (bytes >= sizeof(codec::FrameHeader) && bytes <= bound) return Status::ok();
  return core::corrupt("chunk ", number, " from ", peer_name(peer), " has ", bytes, " bytes, but a frame of ",
                       elements, " elements has ", sizeof(codec::FrameHeader), " to ", bound)
      .with_peer(peer_name(peer));
}

// spec operations 5.3: "A receiver MUST refuse as CorruptData a frame that does not fill its chunk"
Result<codec::FrameView> PlannedReduction::check_frame(std::span<const std::byte> frame, DType dtype,
                                                       const PlannedChunk& chunk, int site) const {
  auto view = codec::parse_frame(frame);
  if (!view.is_ok()) return Status(view.status()).with_peer(site_peer_name(chunk, site));
  // Codecs may resort to None, but not to each other.
  const bool codec_fits = view->spec.id == codec::CodecId::None || codec::same_frames(view->spec, codec_);
  if (!codec_fits || view->dtype != dtype || view->elements != chunk.range.size() ||
      codec::frame_bytes(*view) != frame.size()) {
    return core::corrupt("frame from ", site_peer_name(chunk, site), " holds ", view->elements,
                         " elements of ", core::to_string(view->dtype), " in ", view->spec.to_string(), " (",
                         frame.size(), " bytes), expected ", chunk.range.size(), " elements of ",
                         core::to_string(dtype), " in ", codec_.to_string())
        .with_peer(site_peer_name(chunk, site));
  }
  return view;
}

std::uint64_t PlannedReduction::raw_bytes(const PlannedChunk& chunk) const {
  return chunk.range.size() * core::size_of(context().dtype);
}

codec::CompressOptions PlannedReduction::encode_options(const PlannedChunk& chunk, Message::Kind kind) const {
  return collective::encode_options(config(), context(), stripes_[chunk.stripe], chunk, kind);
}

codec::CompressOptions encode_options(const ExchangeConfig& config, const OpContext& context,
                                      const StripeData& stripe, const PlannedChunk& chunk,
                                      Message::Kind kind) {
  codec::CompressOptions options;
  const auto rank = static_cast<std::uint64_t>(config.topology.rank());
  options.seed = mix(mix(mix(config.group, context.seq), rank), static_cast<std::uint64_t>(kind));
  options.first_element = stripe.stripe.range.begin + chunk.range.begin;
  return options;
}

bool PlannedReduction::receives(const PlannedChunk& chunk) const {
  return stripes_[chunk.stripe].receives[static_cast<std::size_t>(own_site())];
}

std::string PlannedReduction::site_peer_name(const PlannedChunk& chunk, int site) const {
  const int rank = stripes_[chunk.stripe].stripe.rank_of_site[static_cast<std::size_t>(site)];
  for (std::size_t i = 0; i < peers().size(); ++i) {
    if (peers()[i].rank == rank) return peer_name(i);
  }
  const Topology& topology = config().topology;
  if (rank == topology.rank()) return str("this rank (", rank, ")");
  return str("rank ", rank, " (site ", topology.site_name(site), ")");  // heard over a relay alone
}

}  // namespace geocomm::collective
