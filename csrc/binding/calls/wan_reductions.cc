// all_reduce, reduce and reduce_scatter of WanCollectives.
#include <algorithm>
#include <utility>

#include "binding/calls/call.h"
#include "binding/calls/coalesced.h"
#include "binding/device/device_reduction.h"
#include "binding/device/host_room.h"
#include "binding/operation/piece_prefix.h"

namespace geocomm::binding {

using collective::OpKind;
using collective::StripeData;
using core::StatusCode;

Reduction WanCollectives::reduction_of(const at::Tensor& tensor, const c10d::ReduceOp& op) const {
  int inside = topology().largest_site_size();
  if (const std::vector<std::uint32_t> regions = exchange_->policy()->regions(); !regions.empty()) {
    std::vector<int> ranks(regions.size(), 0);
    for (std::size_t site = 0; site < regions.size(); ++site) {
      ranks[regions[site]] += topology().site_size(static_cast<int>(site));
    }
    inside = std::ranges::max(ranks);
  }
  return Reduction::of(tensor, op, inside);
}

// Who ends with the result of an all-reduce or a reduce.
struct WanCollectives::ReduceTarget {
  std::vector<bool> receives;  // per site
  bool writes = false;         // whether this rank's tensor takes it
  bool in_place = false;       // whether the tensor's own memory may be worked in
};

namespace {

// Data of a CUDA tensor that crosses to the host, and back, in pieces: the copies of some beside the exchange
// of others.
class PieceFlow final : public collective::DataFlow {
 public:
  // In stage `pre`. Between `part` and `host`, whose first `bytes` are exchanged. nullptr: they are copied as
  // a whole.
  static std::unique_ptr<PieceFlow> create(const at::Tensor& part, const at::Tensor& host, std::size_t bytes,
                                           bool back) {
    // Several chunks each; so many that the first, and the last, are short beside the exchange.
    constexpr std::size_t kMost = 8;
    constexpr std::size_t kLeastBytes = std::size_t{1} << 20;
    StreamOperation* const operation = StreamOperation::current();
    if (operation == nullptr || bytes <= kLeastBytes) return nullptr;
    const std::size_t piece = (bytes / kMost + kLeastBytes - 1) / kLeastBytes * kLeastBytes;
    std::unique_ptr<PieceFlow> self(new PieceFlow(*operation, bytes, piece));
    const auto per_piece = static_cast<std::int64_t>(piece / part.element_size());
    // The padding goes with the last one.
    const auto of = [per_piece, count = self->prefix_.pieces()](const at::Tensor& all, std::uint32_t i) {
      const std::int64_t begin = i * per_piece;
      return all.narrow(0, begin, i + 1 == count ? all.numel() - begin : per_piece);
    };
    StreamOperation::Pieces pieces{self->prefix_.pieces(),
                                   [=](std::uint32_t i) { from_host(of(host, i), of(part, i)); }, nullptr};
    if (back) pieces.back = [=](std::uint32_t i) { from_host(of(part, i), of(host, i)); };
    operation->set_pieces(std::move(pieces));
    return self;
  }

  core::Result<std::size_t> wait_for(std::size_t bytes, core::Deadline deadline) override {
    GEOCOMM_ASSIGN_OR_RETURN(const std::uint32_t there,
                             operation_.wait_for_pieces(prefix_.pieces_that_hold(bytes), deadline));
    return prefix_.bytes_of(there);
  }
  void done(std::size_t begin, std::size_t end) override {
    if (const std::uint32_t whole = prefix_.add(begin, end); whole > 0) operation_.open_pieces(whole);
  }

 private:
  PieceFlow(StreamOperation& operation, std::size_t bytes, std::size_t piece_bytes)
      : operation_(operation), prefix_(bytes, piece_bytes) {}

  StreamOperation& operation_;  // owns this, by way of its stages
  PiecePrefix prefix_;
};

struct ReduceState {
  at::Tensor input;  // one-dimensional, padded to the site's parts
  at::Tensor part;   // this rank's part on its device
  at::Tensor host;   // the same where the WAN can reach it
  std::vector<StripeData> stripes;
  std::unique_ptr<PieceFlow> flow;             // between the two, or nullptr
  std::shared_ptr<DeviceReduction> on_device;  // carries the reduction out in place of `host`
  std::shared_ptr<CallerFeedback> feedback;    // or nullptr
  CallerFeedback::OnHost lent;
};

// `part` holds `mine` at its beginning.
std::vector<StripeData> stripe_data(const collective::Topology& topology, std::uint64_t elements,
                                    std::span<std::byte> part, std::size_t element_bytes,
                                    const std::vector<bool>& receives) {
  const auto mine = collective::part_of(elements, topology.local_size(), topology.local_rank());
  std::vector<StripeData> stripes;
  for (auto& stripe : collective::stripes_of(topology, elements)) {
    if (stripe.rank_of_site[static_cast<std::size_t>(topology.site())] != topology.rank()) continue;
    const auto data =
        part.subspan((stripe.range.begin - mine.begin) * element_bytes, stripe.range.size() * element_bytes);
    stripes.push_back({std::move(stripe), receives, data});
  }
  return stripes;
}

at::Tensor padded(const at::Tensor& flat_tensor, std::uint64_t elements) {
  if (static_cast<std::uint64_t>(flat_tensor.numel()) == elements) return flat_tensor;
  auto result = at::zeros({signed_size(elements)}, flat_tensor.options());
  part_view(result, 0, static_cast<std::uint64_t>(flat_tensor.numel())).copy_(flat_tensor);
  return result;
}

}  // namespace

WanCollectives::ReduceTarget WanCollectives::all_receive(const at::Tensor& tensor) const {
  return {.receives = std::vector<bool>(static_cast<std::size_t>(topology().site_count()), true),
          .writes = true,
          .in_place = is_flat_view(tensor) && !preserve_inputs_};
}

WorkPtr WanCollectives::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, Milliseconds timeout) {
  const Reduction reduction = reduction_of(tensor, op);
  const Call call(*this, OpKind::AllReduce, c10d::OpType::ALLREDUCE, "all_reduce", tensor.device(), timeout,
                  static_cast<std::uint64_t>(reals_of(tensor).numel()), reduction.dtype);
  return reduce_stripes(call, tensor, reduction, all_receive(tensor), timeout);
}

WorkPtr WanCollectives::all_reduce_compressed(const at::Tensor& tensor, const codec::CodecSpec& codec,
                                              const std::optional<at::Tensor>& residual,
                                              const std::optional<at::Tensor>& next,
                                              const std::optional<at::Tensor>& scale, bool average,
                                              double decay, Milliseconds timeout) {
  Reduction reduction = reduction_of(tensor, average ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM);
  reduction.keep_scale();  // residuals and reports are in that of the tensor
  throw_if_error(collective::check_collective_codec(codec, residual.has_value()));
  auto feedback = std::make_shared<CallerFeedback>(codec, static_cast<float>(decay), residual, next, scale);
  Call call(*this, OpKind::AllReduce, c10d::OpType::ALLREDUCE, "all_reduce", tensor.device(), timeout,
            static_cast<std::uint64_t>(tensor.numel()), reduction.dtype);
  call.use_codec(feedback->caller());
  auto work = reduce_stripes(call, tensor, reduction, all_receive(tensor), timeout, feedback);
  return c10::make_intrusive<FeedbackWork>(std::move(work), std::move(feedback));
}

WorkPtr WanCollectives::reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, int root,
                               Milliseconds timeout) {
  const Reduction reduction = reduction_of(tensor, op);
  const Call call(*this, OpKind::Reduce, c10d::OpType::REDUCE, "reduce", tensor.device(), timeout,
                  static_cast<std::uint64_t>(reals_of(tensor).numel()), reduction.dtype);
  std::vector<bool> root_only(static_cast<std::size_t>(topology().site_count()), false);
  root_only[static_cast<std::size_t>(topology().site_of(root))] = true;
  return reduce_stripes(
      call, tensor, reduction,
      {.receives = std::move(root_only), .writes = topology().rank() == root, .in_place = false}, timeout);
}

WorkPtr WanCollectives::reduce_stripes(const Call& call, const at::Tensor& given, const Reduction& reduction,
                                       const ReduceTarget& target, Milliseconds timeout,
                                       std::shared_ptr<CallerFeedback> feedback) {
  const auto tensor = reals_of(given);
  const auto elements = static_cast<std::uint64_t>(tensor.numel());
  if (elements == 0) {
    if (feedback) feedback->commit();
    return call.issue({given}, {given}, {});
  }
  auto state = std::make_shared<ReduceState>();
  state->feedback = std::move(feedback);
  const int local_size = topology().local_size();
  const auto part_elements = collective::part_size(elements, local_size);
  const auto inner_pre = inner(tensor.device(), false);
  const auto inner_post = inner(tensor.device(), true);
  const bool receives = target.receives[static_cast<std::size_t>(topology().site())];
  const bool on_cpu = tensor.device().is_cpu();

  auto pre = [=, this, call_context = call.context(nullptr)] {
    auto input = reduction.scaled(flat(tensor));
    if (alone_in_site()) {
      const bool keep = receives && !target.in_place && input.is_alias_of(tensor);
      state->part = keep ? input.clone() : input;
    } else {
      state->input = padded(input, part_elements * static_cast<std::uint64_t>(local_size));
      state->part = at::empty({signed_size(part_elements)}, input.options());
      reduce_scatter_in_site(inner_pre, state->part, state->input, reduction.inner, timeout);
    }
    auto on_device =
        stripe_data(topology(), elements, bytes_of(state->part), tensor.element_size(), target.receives);
    std::optional<ResidualUse> residual;
    if (state->feedback && state->feedback->has_residual() && !on_cpu && DeviceReduction::uses_batches()) {
      state->feedback->lend_on_device(on_device, encoded_range(elements).begin);
      residual = {!state->feedback->gave_next(),
                  [feedback = state->feedback](const collective::FeedbackReport& report, bool committed) {
                    feedback->ended_on_device(report, committed);
                  }};
    }
    state->on_device = DeviceReduction::create(*exchange_, call_context, reduction.op, std::move(on_device),
                                               std::move(residual));
    if (state->on_device) {
      state->on_device->enqueue_contributions();
      return;
    }
    state->host = host_room_for(state->part);
    state->stripes =
        stripe_data(topology(), elements, bytes_of(state->host), tensor.element_size(), target.receives);
    if (state->feedback) state->lent = state->feedback->lend(state->stripes, encoded_range(elements).begin);
    std::size_t bytes = 0;
    for (const StripeData& stripe : state->stripes) bytes += stripe.data.size();
    state->flow = PieceFlow::create(state->part, state->host, bytes, receives);
    if (!state->flow) from_host(state->host, state->part);
  };
  auto exchange = [=, this, context = call.context(state)]() mutable {
    context.flow = state->flow.get();
    auto status = state->on_device ? state->on_device->exchange()
                                   : exchange_->reduce(context, reduction.op, state->stripes);
    if (state->feedback && !on_cpu) state->feedback->decide_on_host(state->lent, status.is_ok());
    return status;
  };
  auto post = [=, this] {
    if (state->on_device) state->on_device->enqueue_results();
    if (!receives) return;
    if (!state->on_device && !state->flow) from_host(state->part, state->host);
    at::Tensor result = state->part;
    if (!alone_in_site()) {
      const bool direct = target.in_place && state->input.is_alias_of(tensor);
      result =
          direct ? state->input : at::empty({signed_size(part_elements) * local_size}, state->part.options());
      all_gather_in_site(inner_post, result, state->part, timeout);
    }
    const bool is_there = target.in_place && result.is_alias_of(tensor);
    if (target.writes && !is_there) tensor.copy_(part_view(result, 0, elements).view(tensor.sizes()));
    if (target.writes) reduction.scale_back(tensor);
    if (target.writes && reduction.op == collective::ReduceOp::Avg) mark_written(given);
    if (!state->feedback) return;
    if (!on_cpu) return state->feedback->copy_back(state->lent);
    if (!alone_in_site()) {
      state->feedback->set_result(reduction.dtype, bytes_of(part_view(result, 0, elements)));
    }
    state->feedback->commit();
  };
  Tensors inputs{given};
  if (state->feedback) state->feedback->append_to(inputs);
  return call.issue(inputs, {given}, {pre, exchange, post});
}

WorkPtr WanCollectives::all_reduce_coalesced(const Tensors& tensors, const c10d::ReduceOp& op,
                                             Milliseconds timeout) {
  for (const auto& tensor : tensors) reduction_of(tensor, op);  // throws before the first is issued
  return all_reduce_together(*this, topology().rank(), tensors, op, timeout);
}

WorkPtr WanCollectives::reduce_scatter_coalesced(const Tensors& outputs, const Tensors& inputs,
                                                 const c10d::ReduceOp& op, Milliseconds timeout) {
  for (const auto& output : outputs) reduction_of(output, op);  // throws before the first is issued
  return each_together(*this, topology().rank(), kReduceScatterCoalesced, outputs.size(), outputs,
                       [&](std::size_t i) { return reduce_scatter(outputs[i], {inputs[i]}, op, timeout); });
}

WorkPtr WanCollectives::reduce_scatter(const at::Tensor& given_output, const Tensors& given_inputs,
                                       const c10d::ReduceOp& op, Milliseconds timeout) {
  const Reduction reduction = reduction_of(given_output, op);
  const auto output = reals_of(given_output);
  const auto inputs = reals_of(given_inputs);
  const auto shard = static_cast<std::uint64_t>(output.numel());
  Call call(*this, OpKind::ReduceScatter, c10d::OpType::REDUCE_SCATTER, "reduce_scatter", output.device(),
            timeout, shard * static_cast<std::uint64_t>(topology().size()), reduction.dtype);
  if (shard == 0) return call.issue(given_inputs, {given_output}, {});
  struct State {
    at::Tensor staging, block, host;
    std::vector<StripeData> stripes;
    std::shared_ptr<DeviceReduction> on_device;
  };
  auto state = std::make_shared<State>();
  const int local_size = topology().local_size();
  const auto inner_pre = inner(output.device(), false);

  auto pre = [=, this, call_context = call.context(nullptr)] {
    const auto layout = collective::reduce_scatter_layout(topology(), shard);
    Tensors flats;
    for (const auto& input : inputs) flats.push_back(flat(input));
    const auto input = reduction.scaled(flats.size() == 1 ? flats.front() : at::cat(flats));
    state->staging = at::zeros({signed_size(layout.block) * local_size}, input.options());
    copy_runs(state->staging, input, layout.pack);
    if (alone_in_site()) {
      state->block = state->staging;
    } else {
      state->block = at::empty({signed_size(layout.block)}, input.options());
      reduce_scatter_in_site(inner_pre, state->block, state->staging, reduction.inner, timeout);
    }
    const auto stripes_in = [&](std::span<std::byte> bytes) {
      const std::size_t element_bytes = output.element_size();
      std::vector<StripeData> stripes;
      for (std::size_t i = 0; i < layout.stripes.size(); ++i) {
        const auto& stripe = layout.stripes[i];
        std::vector<bool> receives(static_cast<std::size_t>(topology().site_count()), false);
        receives[static_cast<std::size_t>(topology().site_of(layout.receiver[i]))] = true;
        const auto data =
            bytes.subspan(layout.offset[i] * element_bytes, stripe.range.size() * element_bytes);
        stripes.push_back({stripe, std::move(receives), data});
      }
      return stripes;
    };
    state->on_device =
        DeviceReduction::create(*exchange_, call_context, reduction.op, stripes_in(bytes_of(state->block)));
    if (state->on_device) {
      state->on_device->enqueue_contributions();
      return;
    }
    state->host = to_host(state->block);
    state->stripes = stripes_in(bytes_of(state->host));
  };
  auto exchange = [=, this, context = call.context(state)] {
    return state->on_device ? state->on_device->exchange()
                            : exchange_->reduce(context, reduction.op, state->stripes);
  };
  // This rank's own shard stands at the beginning of its block.
  auto post = [=] {
    if (state->on_device) state->on_device->enqueue_results();
    const auto& block = state->on_device ? state->block : state->host;
    output.copy_(part_view(block, 0, shard).view(output.sizes()), kNonBlocking);
    reduction.scale_back(output);
    mark_written(given_output);
  };
  return call.issue(given_inputs, {given_output}, {pre, exchange, post});
}

}  // namespace geocomm::binding
