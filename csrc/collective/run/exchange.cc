#include "collective/run/exchange.h"

#include <cmath>
#include <mutex>
#include <set>
#include <utility>

#include "collective/run/device_reduce_transfer.h"
#include "collective/run/host_reduce_transfer.h"
#include "collective/run/move_transfer.h"
#include "collective/run/transfer.h"
#include "collective/sums/reduction.h"
#include "core/str.h"
#include "transport/wire/wire.h"

namespace geocomm::collective {

using core::Result;
using core::Status;
using core::StatusCode;
using core::str;

namespace {

constexpr std::size_t kMinChunkBytes = 1024;
// A frame must fit a chunk of the transport, also with what a codec adds in the worst case.
constexpr std::size_t kMaxChunkBytes = transport::kMaxChunkBytes / 2;

Status invalid(std::string message) {
  return {StatusCode::InvalidArgument, std::move(message)};
}

Status check_stripe(const Topology& topology, const StripeData& stripe) {
  const auto sites = static_cast<std::size_t>(topology.site_count());
  if (stripe.stripe.rank_of_site.size() != sites || stripe.receives.size() != sites) {
    return invalid(str("a stripe names ", stripe.stripe.rank_of_site.size(), " ranks and ",
                       stripe.receives.size(), " receivers, but there are ", sites, " sites"));
  }
  for (std::size_t site = 0; site < sites; ++site) {
    const int rank = stripe.stripe.rank_of_site[site];
    if (rank < 0 || rank >= topology.size() || topology.site_of(rank) != static_cast<int>(site)) {
      return invalid(str("a stripe names rank ", rank, " for site ",
                         topology.site_name(static_cast<int>(site)), ", where it is not"));
    }
  }
  if (stripe.stripe.rank_of_site[static_cast<std::size_t>(topology.site())] != topology.rank()) {
    return invalid(str("rank ", topology.rank(), " was given a stripe in which it takes no part"));
  }
  if (stripe.stripe.range.end < stripe.stripe.range.begin) return invalid("a stripe ends before it begins");
  return Status::ok();
}

Status check_data(const StripeData& stripe, core::DType dtype) {
  const std::size_t element_bytes = core::size_of(dtype);
  if (stripe.data.size() != stripe.stripe.range.size() * element_bytes) {
    return invalid(str("a stripe of ", stripe.stripe.range.size(), " elements of ", core::to_string(dtype),
                       " was given ", stripe.data.size(), " bytes of data"));
  }
  if (reinterpret_cast<std::uintptr_t>(stripe.data.data()) % element_bytes != 0) {
    return invalid(str("a stripe's data is not aligned to its elements of ", element_bytes, " bytes"));
  }
  return Status::ok();
}

Status check_feedback(const OpContext& context, const StripeData& stripe) {
  const FeedbackSpans& feedback = stripe.feedback;
  const std::size_t elements = stripe.stripe.range.size();
  const std::size_t residuals = feedback.residual.size();
  const bool fits = (residuals == elements && context.caller) || residuals == 0;
  const bool scale_fits = feedback.scale.empty() || feedback.scale.size() == residuals;
  if (fits && feedback.next.size() == residuals && scale_fits) return Status::ok();
  return invalid(str("a stripe of ", elements, " elements was given a residual of ", residuals, " to ",
                     feedback.next.size(), " with ", feedback.scale.size(), " scales",
                     context.caller ? "" : " and no codec of its caller"));
}

// `stripes`: with their residuals.
Status check_caller(const OpContext& context, ReduceOp op, std::span<const StripeData> stripes) {
  bool all = true;  // stripes have residuals
  for (const StripeData& stripe : stripes) {
    GEOCOMM_RETURN_IF_ERROR(check_feedback(context, stripe));
    all &= !stripe.feedback.residual.empty() || stripe.stripe.range.size() == 0;
  }
  if (!context.caller) return Status::ok();
  if (!core::is_compressible(context.dtype) || (op != ReduceOp::Sum && op != ReduceOp::Avg)) {
    return {StatusCode::Unsupported, str("a codec of the caller is for sum and avg of float32, float16 and "
                                         "bfloat16, not for ",
                                         to_string(op), " of ", core::to_string(context.dtype))};
  }
  if (!std::isfinite(context.caller->decay)) return invalid("the decay of the residual is not finite");
  return check_collective_codec(context.caller->codec, all);
}

Status check_policy(const Topology& topology, const WanPolicy* policy) {
  const auto sites = static_cast<std::size_t>(topology.site_count());
  if (policy != nullptr && policy->sites() == sites) return Status::ok();
  return invalid(
      str("a policy of ", policy == nullptr ? 0 : policy->sites(), " sites for a group of ", sites));
}

Status check_piece(const Topology& topology, int rank) {
  if (rank >= 0 && rank < topology.size() && rank != topology.rank()) return Status::ok();
  return invalid(str("a piece for rank ", rank, ": rank ", topology.rank(),
                     " exchanges bytes with the other ranks of a group of ", topology.size()));
}

class ExchangeImpl final : public Exchange {
 public:
  ExchangeImpl(ExchangeConfig config, std::shared_ptr<const WanPolicy> policy)
      : shared_(std::make_shared<ExchangeShared>(std::move(config))), policy_(std::move(policy)) {}

  Status reduce(const OpContext& given, ReduceOp op, std::span<StripeData> stripes) override {
    const OpContext context = with_policy(given);
    Status status = check(context, op, stripes);
    for (const StripeData& stripe : stripes) {
      if (status.is_ok()) status = check_data(stripe, context.dtype);
    }
    if (!status.is_ok()) return named(std::move(status), context);
    return core::without_throwing([&] {
      const auto transfer = std::make_shared<HostReduceTransfer>(shared_, context, op, stripes);
      GEOCOMM_RETURN_IF_ERROR(run(context, transfer));
      if (context.caller && context.caller->report != nullptr) *context.caller->report = transfer->report();
      return Status::ok();
    });
  }

  Result<FrameExchange> plan_frames(const OpContext& given, ReduceOp op, std::span<const StripeData> stripes,
                                    core::BufferPool& memory, const FrameOptions& options) override {
    const OpContext context = with_policy(given);
    if (Status status = check(context, op, stripes); !status.is_ok())
      return named(std::move(status), context);
    if (reduction_codec(shared_->config, context, op).is_exact()) {
      return Status(StatusCode::Unsupported, "an exact reduction has no frames to make: reduce host memory");
    }
    return core::without_throwing([&]() -> Result<FrameExchange> {
      const auto transfer = std::make_shared<DeviceReduceTransfer>(shared_, context, op, stripes);
      GEOCOMM_RETURN_IF_ERROR(transfer->take_rooms(options, memory));
      return FrameExchange{transfer->frames(), [this, context, transfer](FrameMaker& maker) {
                             return core::without_throwing([&] {
                               transfer->set_maker(maker);
                               GEOCOMM_RETURN_IF_ERROR(run(context, transfer));
                               if (context.caller && context.caller->report != nullptr) {
                                 context.caller->report->wire_bytes = transfer->wire_bytes();
                               }
                               return Status::ok();
                             });
                           }};
    });
  }

  Status move(const OpContext& context, std::span<const SendPiece> sends,
              std::span<const ReceivePiece> receives) override {
    GEOCOMM_ASSIGN_OR_RETURN(const MoveEnd end, begin_move(context, sends, receives, nullptr));
    return end();
  }

  Result<MoveEnd> begin_move(const OpContext& context, std::span<const SendPiece> sends,
                             std::span<const ReceivePiece> receives,
                             std::function<void()> when_over) override {
    Status status;
    for (const SendPiece& piece : sends) {
      if (status.is_ok()) status = check_piece(topology(), piece.rank);
    }
    for (const ReceivePiece& piece : receives) {
      if (status.is_ok()) status = check_piece(topology(), piece.rank);
      for (const int rank : piece.forward_to) {
        if (status.is_ok()) status = check_piece(topology(), rank);
      }
    }
    if (!status.is_ok()) return named(std::move(status), context);
    return core::without_throwing([&]() -> Result<MoveEnd> {
      const auto transfer = std::make_shared<MoveTransfer>(shared_, context, sends, receives);
      transfer->when_over(std::move(when_over));
      MoveEnd last = [this, transfer] { return end(transfer); };  // before there is something to end
      GEOCOMM_RETURN_IF_ERROR(begin(context, transfer));
      return last;
    });
  }

  void abort(const Status& why) override {
    const auto status = [&] {
      return core::without_throwing(
          [&] { return why.is_ok() ? Status(StatusCode::Aborted, "the process group was aborted") : why; });
    };
    std::lock_guard lock(mutex_);
    if (aborted_.is_ok()) aborted_ = status();
    for (const auto& transfer : active_) transfer->fail(status());  // none is left out for want of memory
  }

  std::shared_ptr<const WanPolicy> policy() const override {
    std::lock_guard lock(mutex_);
    return policy_;
  }

  Status set_policy(std::shared_ptr<const WanPolicy> policy) override {
    GEOCOMM_RETURN_IF_ERROR(check_policy(topology(), policy.get()));
    std::lock_guard lock(mutex_);
    policy_ = std::move(policy);
    return Status::ok();
  }

  ExchangeStats stats() const override {
    ExchangeStats stats;
    stats.operations = shared_->operations;
    stats.raw_bytes_sent = shared_->raw_bytes_sent;
    stats.wire_bytes_sent = shared_->wire_bytes_sent;
    stats.raw_bytes_received = shared_->raw_bytes_received;
    stats.wire_bytes_received = shared_->wire_bytes_received;
    stats.relayed_bytes = shared_->relayed_bytes;
    stats.encode_time = shared_->encode_time;
    stats.decode_time = shared_->decode_time;
    return stats;
  }

  std::vector<PeerRate> take_rates() override { return shared_->rates.take(); }

  std::uint64_t group() const override { return shared_->config.group; }
  const Topology& topology() const override { return shared_->config.topology; }

 private:
  OpContext with_policy(OpContext context) const {
    if (!context.policy) context.policy = policy();
    return context;
  }

  Status check(const OpContext& context, ReduceOp op, std::span<const StripeData> stripes) const {
    GEOCOMM_RETURN_IF_ERROR(check_policy(topology(), context.policy.get()));
    GEOCOMM_RETURN_IF_ERROR(check_reduction(context.dtype, op));
    GEOCOMM_RETURN_IF_ERROR(check_caller(context, op, stripes));
    for (const StripeData& stripe : stripes) GEOCOMM_RETURN_IF_ERROR(check_stripe(topology(), stripe));
    return Status::ok();
  }

  Status run(const OpContext& context, const std::shared_ptr<Transfer>& transfer) {
    GEOCOMM_RETURN_IF_ERROR(begin(context, transfer));
    return end(transfer);
  }

  Status begin(const OpContext& context, const std::shared_ptr<Transfer>& transfer) {
    {
      std::lock_guard lock(mutex_);
      if (!aborted_.is_ok()) return named(aborted_, context);
      active_.insert(transfer);
    }
    transfer->begin();
    return Status::ok();
  }

  Status end(const std::shared_ptr<Transfer>& transfer) {
    Status status = transfer->end();
    std::lock_guard lock(mutex_);
    active_.erase(transfer);
    return status;
  }

  static Status named(Status status, const OpContext& context) {
    return std::move(status).with_op(std::string(to_string(context.kind)), shown_seq(context));
  }

  const std::shared_ptr<ExchangeShared> shared_;
  mutable std::mutex mutex_;  // guards all below
  std::shared_ptr<const WanPolicy> policy_;
  Status aborted_;
  std::set<std::shared_ptr<Transfer>> active_;
};

}  // namespace

Result<std::unique_ptr<Exchange>> Exchange::create(ExchangeConfig config) {
  if (config.pool == nullptr || config.buffers == nullptr || !config.channel_to) {
    return invalid("an exchange needs a thread pool, a buffer pool and a way to its peers");
  }
  if (config.chunk_bytes < kMinChunkBytes || config.chunk_bytes > kMaxChunkBytes) {
    return invalid(str("chunk_bytes is ", config.chunk_bytes, ": it must be from ", kMinChunkBytes, " to ",
                       kMaxChunkBytes));
  }
  if (config.policy == nullptr) {
    const auto sites = static_cast<std::size_t>(config.topology.site_count());
    GEOCOMM_ASSIGN_OR_RETURN(config.policy, WanPolicy::create(LinkMatrix::assumed(sites), {}));
  }
  GEOCOMM_RETURN_IF_ERROR(check_policy(config.topology, config.policy.get()));
  auto policy = std::exchange(config.policy, nullptr);
  return std::unique_ptr<Exchange>(std::make_unique<ExchangeImpl>(std::move(config), std::move(policy)));
}

}  // namespace geocomm::collective
