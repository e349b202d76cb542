#include "collective/run/reduce_transfer.h"

#include <algorithm>
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

// Whether it is to be reduced, or received.
bool is_used(const FrameChunk& chunk) {
  return chunk.reduces || chunk.receives;
}

// Their data is not looked at.
ReducePlan plan_of(const ExchangeConfig& config, const OpContext& context, const ReduceScheme* scheme,
                   std::span<const StripeData> stripes) {
  std::vector<PlannedStripe> shapes;
  for (const StripeData& stripe : stripes) shapes.push_back({stripe.stripe, stripe.receives});
  return plan_reduce(config.topology, shapes, {core::size_of(context.dtype), config.chunk_bytes, scheme});
}

// Null: there is one site.
const ReduceScheme* scheme_of(const ExchangeConfig& config, const OpContext& context,
                              const codec::CodecSpec& codec) {
  if (context.kind == OpKind::AllReduce) {
    return context.policy->scheme_for(Pattern::AllReduce, codec, context.dtype, context.elements);
  }
  // One site wants of a reduce what each wants of a reduce-scatter of so many times the elements.
  const std::uint64_t times =
      context.kind == OpKind::Reduce ? static_cast<std::uint64_t>(config.topology.site_count()) : 1;
  return context.policy->scheme_for(Pattern::ReduceScatter, codec, context.dtype, times * context.elements);
}

}  // namespace

codec::CodecSpec reduction_codec(const ExchangeConfig& config, const OpContext& context, ReduceOp op) {
  const std::uint64_t raw_bytes = total_bytes(context);
  if (context.caller)
    return raw_bytes < config.min_compress_bytes ? codec::CodecSpec{} : context.caller->codec;
  const codec::CodecSpec& codec = context.policy->codec_for(raw_bytes);
  const bool sums = op == ReduceOp::Sum || op == ReduceOp::Avg;
  const bool fits = core::is_compressible(context.dtype) && (sums || codec.is_exact());
  return fits ? codec : codec::CodecSpec{};
}

ReduceTransfer::ReduceTransfer(std::shared_ptr<ExchangeShared> shared, const OpContext& context, ReduceOp op,
                               std::span<const StripeData> stripes)
    : Transfer(std::move(shared), context), op_(op), stripes_(stripes.begin(), stripes.end()) {
  const Topology& topology = config().topology;
  frames_->codec = reduction_codec(config(), context, op);
  frames_->divisor = op == ReduceOp::Avg ? topology.size() : 1;
  frames_->own_site = static_cast<std::size_t>(topology.site());
  frames_->arrivals = std::make_shared<ArrivalRoom>(core::Buffer(), buffers());
  scheme_ = scheme_of(config(), context, codec());
  ReducePlan plan = plan_of(config(), context, scheme_, stripes);
  messages_ = std::move(plan.peers);
  routes_.resize(plan.chunks.size());
  awaited_.resize(plan.chunks.size());
  to_add_.resize(plan.chunks.size());
  plan_routes();
  for (std::size_t c = 0; c < plan.chunks.size(); ++c) plan_chunk(plan.chunks[c], routes_[c]);
  count_awaited();
}

void ReduceTransfer::plan_routes() {
  std::map<std::tuple<std::size_t, Kind, int>, std::vector<Target>> onward;
  for (std::size_t p = 0; p < messages_.size(); ++p) {
    for (std::uint32_t number = 0; number < messages_[p].sends.size(); ++number) {
      const Message& message = messages_[p].sends[number];
      if (message.origin != config().topology.site()) {
        onward[{message.chunk, message.kind, message.origin}].push_back({p, number});
      } else {
        routes_[message.chunk].of(message.kind).push_back({p, number});
      }
    }
  }
  for (std::size_t p = 0; p < messages_.size(); ++p) {
    const std::vector<Message>& receives = messages_[p].receives;
    placed_.emplace_back(receives.size(), false);
    for (std::uint32_t number = 0; number < receives.size(); ++number) {
      const Message& message = receives[number];
      const auto found = onward.find({message.chunk, message.kind, message.origin});
      if (found != onward.end()) relays_[{p, number}] = found->second;
    }
  }
}

void ReduceTransfer::plan_chunk(const PlannedChunk& planned, const Route& route) {
  const StripeData& stripe = stripes_[planned.stripe];
  const std::size_t own_site = frames_->own_site;
  const bool has_owner = planned.flow == Flow::OwnerReduces;
  FrameChunk& chunk = frames_->chunks.emplace_back();
  static_cast<PlannedChunk&>(chunk) = planned;
  chunk.contributes = !route.contributions.empty();
  chunk.receives = stripe.receives[own_site];
  chunk.reduces = planned.reducer < 0 ? chunk.receives : planned.reducer == static_cast<int>(own_site);
  chunk.adds = !route.sums.empty();
  chunk.owns = chunk.reduces && has_owner;
  chunk.has_result = has_owner && (chunk.owns || chunk.receives);
  if (chunk.reduces || chunk.adds) chunk.frames.resize(stripe.receives.size());
  // Seeds differ between ranks, operations and kinds.
  const auto options = [&](Kind kind) {
    codec::CompressOptions options;
    const auto rank = static_cast<std::uint64_t>(config().topology.rank());
    options.seed = mix(mix(mix(config().group, context().seq), rank), static_cast<std::uint64_t>(kind));
    options.first_element = stripe.stripe.range.begin + planned.range.begin;
    return options;
  };
  chunk.contribution_options = options(Kind::Contribution);
  chunk.result_options = options(Kind::Result);
}

void ReduceTransfer::count_awaited() {
  for (const PeerPlan& peer : messages_) {
    for (const Message& message : peer.receives) {
      if (!message.delivers) continue;
      ++(message.kind == Kind::Result ? awaited_[message.chunk] : operands_awaited(message.chunk));
    }
  }
  // A region's sum is made before the result comes.
  for (std::size_t c = 0; c < awaited_.size(); ++c) awaited_[c] += frames_->chunks[c].adds ? 1 : 0;
}

void ReduceTransfer::plan_jobs(bool with_results) {
  std::size_t finishes = relays_.size();
  for (std::size_t c = 0; c < routes_.size(); ++c) {
    const FrameChunk& chunk = frames_->chunks[c];
    if (!routes_[c].contributions.empty()) jobs_.push_back({c, Kind::Contribution});
    if (with_results && !routes_[c].results.empty()) jobs_.push_back({c, Kind::Result});
    if (chunk.adds) ++finishes;
    if (!is_used(chunk)) continue;
    ++finishes;
    if (awaited_[c] == 0) ready_.push_back(c);
  }
  // Stripes have different peers: their chunks take turns, so that all links are busy.
  std::ranges::stable_sort(jobs_, {}, [&](const Job& job) {
    const FrameChunk& chunk = frames_->chunks[job.chunk];
    return std::tuple(job.kind, chunk.group, chunk.index);
  });
  plan(make_peers(), jobs_.size(), finishes, total_bytes(context()), codec().to_string());
}

void ReduceTransfer::start() {
  std::lock_guard lock(mutex_);
  for (const std::size_t c : ready_) submit_finish_locked([this, c] { return use(c); });
}

Status ReduceTransfer::produce(std::size_t job) {
  const auto [c, kind] = jobs_[job];
  GEOCOMM_ASSIGN_OR_RETURN(const core::Buffer frame, make(c, kind));
  return send_frame(c, kind, frame);
}

Status ReduceTransfer::send_frame(std::size_t c, Kind kind, const core::Buffer& frame) {
  const std::vector<Target>& to = routes_[c].of(kind);
  GEOCOMM_RETURN_IF_ERROR(send(to, frame, raw_bytes(c)));
  std::lock_guard lock(mutex_);
  wire_bytes_ += to.size() * frame.size();
  return Status::ok();
}

core::Buffer& ReduceTransfer::slot(const Message& message) {
  FrameChunk& chunk = frames_->chunks[message.chunk];
  return message.kind == Kind::Result ? chunk.result : chunk.frames[static_cast<std::size_t>(message.origin)];
}

Result<std::span<std::byte>> ReduceTransfer::place(std::size_t peer, std::uint32_t number,
                                                   std::size_t bytes) {
  GEOCOMM_RETURN_IF_ERROR(check_size(peer, number, bytes));
  const Message& message = messages_[peer].receives[number];
  core::Buffer room;
  if (!message.delivers) {
    room = buffers().sized(bytes);
  } else if (frames_->arrivals) {
    room = frames_->arrivals->take(bytes);
  }
  std::lock_guard lock(mutex_);
  if (placed_[peer][number]) return came_twice(peer, number);
  placed_[peer][number] = true;
  core::Buffer& frame = message.delivers ? slot(message) : relayed_[{peer, number}];
  if (room.data() != nullptr) frame = std::move(room);
  frame.resize(bytes);
  return frame.span();
}

Transfer::Arrival ReduceTransfer::on_arrival(std::size_t peer, std::uint32_t number) {
  const Message& message = messages_[peer].receives[number];
  const core::Buffer frame = message.delivers ? slot(message) : relayed_.extract({peer, number}).mapped();
  const std::uint64_t raw = raw_bytes(message.chunk);
  const Arrival arrival{is_owed(message, peers()[peer].rank), raw, frame.size(), message.kind == Kind::Sum};
  if (const auto found = relays_.find({peer, number}); found != relays_.end()) {
    submit_finish_locked([this, &to = found->second, frame, raw] { return relay(to, frame, raw); });
  }
  if (message.delivers && message.kind == Kind::Result) arrived_locked(message.chunk);
  if (message.delivers && message.kind != Kind::Result) operand_arrived_locked(message.chunk);
  return arrival;
}

void ReduceTransfer::operand_arrived_locked(std::size_t c) {
  if (!frames_->chunks[c].adds) {
    arrived_locked(c);
  } else if (--to_add_[c] == 0) {
    submit_finish_locked([this, c] { return add(c); });
  }
}

// The sum of this rank's region, to the owner.
Status ReduceTransfer::add(std::size_t c) {
  GEOCOMM_ASSIGN_OR_RETURN(const core::Buffer frame, make(c, Kind::Sum));
  GEOCOMM_RETURN_IF_ERROR(send_frame(c, Kind::Sum, frame));
  std::lock_guard lock(mutex_);
  arrived_locked(c);
  return Status::ok();
}

void ReduceTransfer::arrived_locked(std::size_t c) {
  if (--awaited_[c] == 0 && is_used(frames_->chunks[c])) {
    submit_finish_locked([this, c] { return use(c); });
  }
}

std::vector<Transfer::Peer> ReduceTransfer::make_peers() const {
  const std::uint64_t descriptor =
      pack_descriptor({context().kind, context().dtype, op_, codec(), context().elements});
  std::vector<Peer> peers;
  for (const PeerPlan& planned : messages_) {
    Peer peer;
    peer.rank = planned.rank;
    peer.sends = static_cast<std::uint32_t>(planned.sends.size());
    peer.receives = static_cast<std::uint32_t>(planned.receives.size());
    peer.send_descriptor = peer.receive_descriptor = descriptor;
    std::set<int> adds_up;
    for (const Message& message : planned.receives) {
      if (is_owed(message, planned.rank)) ++peer.owed;
      if (message.kind != Kind::Sum) continue;
      ++peer.sums;
      adds_up.merge(added_up_by(message));
    }
    for (const int rank : adds_up) {
      const Topology& topology = config().topology;
      peer.adds_up += str(peer.adds_up.empty() ? "" : ", ", "rank ", rank, " (site ",
                          topology.site_name(topology.site_of(rank)), ")");
    }
    peers.push_back(std::move(peer));
  }
  return peers;
}

std::set<int> ReduceTransfer::added_up_by(const Message& sum) const {
  const FrameChunk& chunk = frames_->chunks[sum.chunk];
  const std::vector<int>& ranks = stripes_[chunk.stripe].stripe.rank_of_site;
  std::set<int> added;
  for (std::size_t site = 0; site < ranks.size(); ++site) {
    if (scheme_->relays.at(chunk.turn).via(frames_->own_site, site) == sum.origin) added.insert(ranks[site]);
  }
  return added;
}

Status ReduceTransfer::check_size(std::size_t peer, std::uint32_t number, std::size_t bytes) const {
  const Message& message = messages_[peer].receives[number];
  const std::uint64_t elements = frames_->chunks[message.chunk].range.size();
  const DType dtype = message.kind == Kind::Contribution ? context().dtype : result_dtype();
  const std::size_t bound = codec::compress_bound(codec(), dtype, elements);
  if (bytes >= sizeof(codec::FrameHeader) && bytes <= bound) return Status::ok();
  return core::corrupt("chunk ", number, " from ", peer_name(peer), " has ", bytes, " bytes, but a frame of ",
                       elements, " elements has ", sizeof(codec::FrameHeader), " to ", bound)
      .with_peer(peer_name(peer));
}

// spec operations 5.3: "A receiver MUST refuse as CorruptData a frame that does not fill its chunk"
Result<codec::FrameView> ReduceTransfer::check_frame(std::span<const std::byte> frame, DType dtype,
                                                     const FrameChunk& chunk, int site) const {
  auto view = codec::parse_frame(frame);
  if (!view.is_ok()) return Status(view.status()).with_peer(site_peer_name(chunk, site));
  // Codecs may resort to None, but not to each other.
  const bool codec_fits = view->spec.id == codec::CodecId::None || codec::same_frames(view->spec, codec());
  if (!codec_fits || view->dtype != dtype || view->elements != chunk.range.size() ||
      codec::frame_bytes(*view) != frame.size()) {
    return core::corrupt("frame from ", site_peer_name(chunk, site), " holds ", view->elements,
                         " elements of ", core::to_string(view->dtype), " in ", view->spec.to_string(), " (",
                         frame.size(), " bytes), expected ", chunk.range.size(), " elements of ",
                         core::to_string(dtype), " in ", codec().to_string())
        .with_peer(site_peer_name(chunk, site));
  }
  return view;
}

std::string ReduceTransfer::site_peer_name(const FrameChunk& chunk, int site) const {
  const int rank = stripes_[chunk.stripe].stripe.rank_of_site[static_cast<std::size_t>(site)];
  for (std::size_t i = 0; i < peers().size(); ++i) {
    if (peers()[i].rank == rank) return peer_name(i);
  }
  const Topology& topology = config().topology;
  if (rank == topology.rank()) return str("this rank (", rank, ")");
  return str("rank ", rank, " (site ", topology.site_name(site), ")");  // heard over a relay alone
}

}  // namespace geocomm::collective
