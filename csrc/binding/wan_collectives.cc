#include "binding/wan_collectives.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "binding/staging.h"
#include "core/str.h"

namespace geocomm::binding {

using collective::LaneData;
using collective::OpKind;
using collective::ReceivePiece;
using collective::SendPiece;
using core::StatusCode;

namespace {

// Operations of a group that may be on the WAN at the same time; further ones wait in order.
constexpr std::size_t kMaxConcurrentExchanges = 16;

void finish(const WorkPtr& work) {
  if (work) work->wait();  // a null Work from an inner backend is one that is already done
}

at::Tensor part_view(const at::Tensor& flat_tensor, std::uint64_t begin, std::uint64_t count) {
  return flat_tensor.narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(count));
}

std::int64_t signed_size(std::uint64_t n) {
  return static_cast<std::int64_t>(n);
}

std::mutex g_error_mutex;  // guards g_error
std::optional<ErrorRecord> g_error;

}  // namespace

void record_error(const core::Status& status) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::lock_guard lock(g_error_mutex);
  g_error = ErrorRecord{status, std::chrono::duration<double>(now).count()};
}

bool last_error(ErrorRecord& record) {
  std::lock_guard lock(g_error_mutex);
  if (g_error) record = *g_error;
  return g_error.has_value();
}

core::GrowingExecutor& blocking_executor() {
  // Never destroyed: user callbacks may still run while the interpreter ends.
  static auto* executor = new core::GrowingExecutor("geocomm-op");
  return *executor;
}

WorkPtr join_works(int rank, c10d::OpType type, const char* title, std::vector<WorkPtr> works,
                   Tensors outputs, std::shared_ptr<ExposedTime> exposed) {
  auto joined =
      c10::make_intrusive<GeoWork>(rank, type, title, 0, Tensors{}, std::move(outputs), std::move(exposed));
  blocking_executor().submit([joined, works = std::move(works)]() mutable {
    std::exception_ptr error;
    for (auto& work : works) {
      try {
        if (work && dynamic_cast<GeoWork*>(work.get()) != nullptr) {
          const auto future = work->getFuture();  // not wait(): that would count as the user's waiting
          future->wait();
          if (future->hasError() && !error) error = future->exception_ptr();
        } else {
          finish(work);
        }
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    works.clear();
    joined->complete(error);
  });
  return joined;
}

// How a reduction is carried out: PREMUL_SUM scales first and then is a Sum; inside the site Avg is a Sum,
// since the group's mean is taken once, at the end.
struct WanCollectives::Reduction {
  core::DType dtype = core::DType::Float32;
  collective::ReduceOp op = collective::ReduceOp::Sum;
  c10d::ReduceOp inner = c10d::ReduceOp::SUM;
  std::optional<at::Tensor> factor_tensor;
  std::optional<double> factor;

  bool scales() const { return factor || factor_tensor; }
  at::Tensor scaled(const at::Tensor& input) const {
    if (factor_tensor) return input.mul(factor_tensor->to(input.options()));
    return factor ? input.mul(*factor) : input;
  }
};

// One operation on its way: its Work, and what its stages share.
class WanCollectives::Call {
 public:
  Call(WanCollectives& owner, OpKind kind, c10d::OpType type, const char* title, const at::Device& device,
       Milliseconds timeout, std::uint64_t elements, core::DType dtype,
       std::optional<std::uint64_t> seq = std::nullopt)
      : owner_(owner.shared_from_this()),
        type_(type),
        title_(title),
        side_(device),
        context_{.kind = kind,
                 .seq = seq ? *seq : owner.next_seq_.fetch_add(1),
                 .elements = elements,
                 .dtype = dtype,
                 .deadline = core::Deadline::after(timeout),
                 .keep_alive = nullptr} {}

  const DeviceSide& side() const { return side_; }
  // `state` owns the memory that the exchange touches.
  collective::OpContext context(std::shared_ptr<void> state) const {
    auto context = context_;
    context.keep_alive = std::move(state);
    return context;
  }

  // Queues the operation behind those of the group that were issued before.
  WorkPtr issue(Tensors inputs, Tensors outputs, std::function<void()> pre,
                std::function<core::Status()> exchange, std::function<void()> post) {
    auto work = make_work(std::move(inputs), std::move(outputs));
    StagedOperation operation;
    if (pre) operation.pre = [side = side_, pre = std::move(pre)] { side.run(pre); };
    if (exchange) operation.exchange = std::move(exchange);
    if (post) operation.post = [side = side_, post = std::move(post)] { side.run(post); };
    operation.to_exception = [call = described()](const core::Status& status) {
      return to_exception(core::Status(status).with_op(call.title, call.seq));
    };
    operation.done = [work, call = described()](std::exception_ptr error) { call.complete(*work, error); };
    owner_->pipeline_.submit(std::move(operation));
    return work;
  }

  // Runs the operation at once, beside those of the group: point-to-point messages, which have no inner
  // stages.
  WorkPtr issue_beside(Tensors inputs, Tensors outputs, std::function<core::Status()> exchange) {
    auto work = make_work(std::move(inputs), std::move(outputs));
    blocking_executor().submit(
        [work, exchange = std::move(exchange), call = described(), side = side_]() mutable {
          std::exception_ptr error;
          try {
            core::Status status;
            side.run([&] { status = exchange(); });
            if (!status.is_ok()) error = to_exception(std::move(status).with_op(call.title, call.seq));
          } catch (...) {
            error = std::current_exception();
          }
          exchange = nullptr;  // frees what it holds before anyone learns that it is done
          if (error) call.owner->mark_failed(status_of(error));
          call.complete(*work, error);
        });
    return work;
  }

 private:
  struct Described {
    std::shared_ptr<WanCollectives> owner;
    std::string title;
    std::int64_t seq;
    void complete(GeoWork& work, std::exception_ptr error) const {
      if (error) {
        const core::Status status = status_of(error).with_op(title, seq);
        record_error(status);
        error = to_exception(status);
      }
      work.complete(error);
    }
  };

  Described described() const { return {owner_, title_, static_cast<std::int64_t>(context_.seq)}; }
  c10::intrusive_ptr<GeoWork> make_work(Tensors inputs, Tensors outputs) const {
    throw_if_error(owner_->failure());
    return c10::make_intrusive<GeoWork>(owner_->topology().rank(), type_,
                                        (std::string("geocomm:") + title_).c_str(), context_.seq,
                                        std::move(inputs), std::move(outputs), owner_->exposed_);
  }

  std::shared_ptr<WanCollectives> owner_;
  c10d::OpType type_;
  const char* title_;
  DeviceSide side_;
  collective::OpContext context_;
};

WanCollectives::WanCollectives(std::unique_ptr<collective::Exchange> exchange, InnerBackends inner,
                               bool preserve_inputs)
    : exchange_(std::move(exchange)),
      inner_(std::move(inner)),
      preserve_inputs_(preserve_inputs),
      pipeline_(blocking_executor(), kMaxConcurrentExchanges,
                [this](const std::exception_ptr& error) { mark_failed(status_of(error)); }) {}

BackendPtr WanCollectives::inner(const at::Device& device, bool post) const {
  const auto found = inner_.find(device.type());
  if (found == inner_.end()) {
    throw_status(StatusCode::Unsupported,
                 core::str("no backend inside the site for tensors on ", device.str(),
                           "; this process group serves CPU", inner_.contains(at::kCUDA) ? " and CUDA" : "",
                           " tensors"));
  }
  return post ? found->second.post : found->second.pre;
}

core::Status WanCollectives::failure() const {
  std::lock_guard lock(mutex_);
  if (failure_.is_ok()) return {};
  return core::Status(StatusCode::Aborted,
                      core::str("this process group failed earlier (", failure_.to_string(),
                                "); destroy it and make a new one"));
}

core::StatusCode WanCollectives::failure_code() const {
  std::lock_guard lock(mutex_);
  return failure_.code();
}

// After one failed operation the ranks no longer agree on what comes next, so the group is over.
void WanCollectives::mark_failed(const core::Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.is_ok()) return;
    failure_ = why;
  }
  exchange_->abort(core::Status(StatusCode::Aborted,
                                core::str("another operation of the group failed: ", why.to_string())));
}

void WanCollectives::abort(const core::Status& why) {
  mark_failed(why);
  pipeline_.fail(to_exception(why));
}

WanCollectives::Reduction WanCollectives::reduction_of(const at::Tensor& tensor,
                                                       const c10d::ReduceOp& op) const {
  Reduction reduction;
  reduction.dtype = reduced_dtype(tensor.scalar_type());
  const bool floating = core::is_floating(reduction.dtype);
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      break;
    case c10d::ReduceOp::AVG:
      if (!floating)
        throw_status(StatusCode::Unsupported,
                     "ReduceOp.AVG needs a floating-point tensor; use SUM and divide");
      reduction.op = collective::ReduceOp::Avg;
      break;
    case c10d::ReduceOp::PRODUCT:
      reduction.op = collective::ReduceOp::Product;
      reduction.inner = c10d::ReduceOp::PRODUCT;
      break;
    case c10d::ReduceOp::MIN:
      reduction.op = collective::ReduceOp::Min;
      reduction.inner = c10d::ReduceOp::MIN;
      break;
    case c10d::ReduceOp::MAX:
      reduction.op = collective::ReduceOp::Max;
      reduction.inner = c10d::ReduceOp::MAX;
      break;
    case c10d::ReduceOp::BAND:
    case c10d::ReduceOp::BOR:
    case c10d::ReduceOp::BXOR:
      if (floating)
        throw_status(StatusCode::InvalidArgument, "bitwise reductions need an integer or bool tensor");
      reduction.op = op.op_ == c10d::ReduceOp::BAND  ? collective::ReduceOp::BitAnd
                     : op.op_ == c10d::ReduceOp::BOR ? collective::ReduceOp::BitOr
                                                     : collective::ReduceOp::BitXor;
      reduction.inner = op.op_;
      break;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (supplement == nullptr)
        throw_status(StatusCode::InvalidArgument, "ReduceOp.PREMUL_SUM without a factor");
      if (supplement->tensor_factor.defined()) {
        reduction.factor_tensor = supplement->tensor_factor;
      } else {
        reduction.factor = supplement->double_factor;
      }
      break;
    }
    default:
      throw_status(StatusCode::Unsupported, "unknown ReduceOp");
  }
  return reduction;
}

// All-reduce and reduce share their first two stages: scatter the reduction over the site, then reduce lanes
// over the WAN.
namespace {

struct ReduceState {
  at::Tensor input;  // one-dimensional, padded to the site's parts
  at::Tensor part;   // this rank's part on its device
  at::Tensor host;   // the same where the WAN can reach it
  std::vector<LaneData> lanes;
};

// `part` holds `mine` at its beginning.
std::vector<LaneData> lane_data(const collective::Topology& topology, std::uint64_t elements,
                                std::span<std::byte> part, std::size_t element_bytes,
                                const std::vector<bool>& receives) {
  const auto mine = collective::part_of(elements, topology.local_size(), topology.local_rank());
  std::vector<LaneData> lanes;
  for (auto& lane : collective::lanes_of(topology, elements)) {
    if (lane.rank_of_site[static_cast<std::size_t>(topology.site())] != topology.rank()) continue;
    const auto data =
        part.subspan((lane.range.begin - mine.begin) * element_bytes, lane.range.size() * element_bytes);
    lanes.push_back({std::move(lane), receives, data});
  }
  return lanes;
}

at::Tensor padded(const at::Tensor& flat_tensor, std::uint64_t elements) {
  if (static_cast<std::uint64_t>(flat_tensor.numel()) == elements) return flat_tensor;
  auto result = at::zeros({signed_size(elements)}, flat_tensor.options());
  part_view(result, 0, static_cast<std::uint64_t>(flat_tensor.numel())).copy_(flat_tensor);
  return result;
}

}  // namespace

WorkPtr WanCollectives::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, Milliseconds timeout) {
  const Reduction reduction = reduction_of(tensor, op);
  const auto elements = static_cast<std::uint64_t>(tensor.numel());
  Call call(*this, OpKind::AllReduce, c10d::OpType::ALLREDUCE, "all_reduce", tensor.device(), timeout,
            elements, reduction.dtype);
  if (elements == 0) return call.issue({tensor}, {tensor}, nullptr, nullptr, nullptr);
  auto state = std::make_shared<ReduceState>();
  const int local_size = topology().local_size();
  const auto part_elements = collective::part_size(elements, local_size);
  const auto inner_pre = alone_in_site() ? nullptr : inner(tensor.device(), false);
  const auto inner_post = alone_in_site() ? nullptr : inner(tensor.device(), true);
  const bool in_place = is_flat_view(tensor) && !preserve_inputs_;

  auto pre = [=, this] {
    auto input = reduction.scaled(flat(tensor));
    if (alone_in_site()) {
      const bool owned = in_place || !input.is_alias_of(tensor);
      state->part = owned ? input : input.clone();
    } else {
      state->input = padded(input, part_elements * static_cast<std::uint64_t>(local_size));
      state->part = at::empty({signed_size(part_elements)}, input.options());
      c10d::ReduceScatterOptions options;
      options.reduceOp = reduction.inner;
      options.timeout = timeout;
      finish(inner_pre->_reduce_scatter_base(state->part, state->input, options));
    }
    state->host = to_host(state->part);
    const std::vector<bool> everyone(static_cast<std::size_t>(topology().site_count()), true);
    state->lanes = lane_data(topology(), elements, bytes_of(state->host), tensor.element_size(), everyone);
  };
  auto exchange = [=, this, context = call.context(state)] {
    return exchange_->reduce(context, reduction.op, state->lanes);
  };
  auto post = [=, this] {
    from_host(state->part, state->host);
    at::Tensor result = state->part;
    if (!alone_in_site()) {
      const bool direct = in_place && state->input.is_alias_of(tensor);
      result =
          direct ? state->input : at::empty({signed_size(part_elements) * local_size}, state->part.options());
      c10d::AllgatherOptions options;
      options.timeout = timeout;
      finish(inner_post->_allgather_base(result, state->part, options));
    }
    if (!is_flat_view(tensor) || !result.is_alias_of(tensor))
      tensor.copy_(part_view(result, 0, elements).view(tensor.sizes()));
  };
  return call.issue({tensor}, {tensor}, pre, exchange, post);
}

WorkPtr WanCollectives::all_reduce_coalesced(const Tensors& tensors, const c10d::ReduceOp& op,
                                             Milliseconds timeout) {
  const bool uniform = std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) {
    return t.scalar_type() == tensors.front().scalar_type() && t.device() == tensors.front().device();
  });
  if (tensors.size() == 1 || !uniform) {
    std::vector<WorkPtr> works;
    for (const auto& tensor : tensors) works.push_back(all_reduce(tensor, op, timeout));
    return works.size() == 1
               ? works.front()
               : join_works(topology().rank(), c10d::OpType::ALLREDUCE_COALESCED,
                            "geocomm:all_reduce_coalesced", std::move(works), tensors, exposed_);
  }
  // One operation over all of them: one latency instead of one each.
  Tensors flats;
  for (const auto& tensor : tensors) flats.push_back(flat(tensor));
  auto together = at::cat(flats);
  auto outputs = tensors;
  auto work = all_reduce(together, op, timeout);
  auto joined = c10::make_intrusive<GeoWork>(topology().rank(), c10d::OpType::ALLREDUCE_COALESCED,
                                             "geocomm:all_reduce_coalesced", work->getSequencenumber(),
                                             tensors, outputs, exposed_);
  work->getFuture()->addCallback([joined, together, outputs](at::ivalue::Future& future) {
    if (future.hasError()) {
      joined->complete(future.exception_ptr());
      return;
    }
    std::int64_t offset = 0;
    for (const auto& tensor : outputs) {
      tensor.copy_(together.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
    joined->complete(nullptr);
  });
  return joined;
}

WorkPtr WanCollectives::reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, int root,
                               Milliseconds timeout) {
  const Reduction reduction = reduction_of(tensor, op);
  const auto elements = static_cast<std::uint64_t>(tensor.numel());
  Call call(*this, OpKind::Reduce, c10d::OpType::REDUCE, "reduce", tensor.device(), timeout, elements,
            reduction.dtype);
  if (elements == 0) return call.issue({tensor}, {tensor}, nullptr, nullptr, nullptr);
  auto state = std::make_shared<ReduceState>();
  const int local_size = topology().local_size();
  const auto part_elements = collective::part_size(elements, local_size);
  const bool at_root_site = topology().site() == topology().site_of(root);
  const bool is_root = topology().rank() == root;
  const auto inner_pre = alone_in_site() ? nullptr : inner(tensor.device(), false);
  const auto inner_post = alone_in_site() ? nullptr : inner(tensor.device(), true);

  auto pre = [=, this] {
    auto input = reduction.scaled(flat(tensor));
    if (alone_in_site()) {
      // Only the root's tensor may change, and only once the result is there.
      state->part = at_root_site && input.is_alias_of(tensor) ? input.clone() : input;
    } else {
      state->input = padded(input, part_elements * static_cast<std::uint64_t>(local_size));
      state->part = at::empty({signed_size(part_elements)}, input.options());
      c10d::ReduceScatterOptions options;
      options.reduceOp = reduction.inner;
      options.timeout = timeout;
      finish(inner_pre->_reduce_scatter_base(state->part, state->input, options));
    }
    state->host = to_host(state->part);
    std::vector<bool> root_only(static_cast<std::size_t>(topology().site_count()), false);
    root_only[static_cast<std::size_t>(topology().site_of(root))] = true;
    state->lanes = lane_data(topology(), elements, bytes_of(state->host), tensor.element_size(), root_only);
  };
  auto exchange = [=, this, context = call.context(state)] {
    return exchange_->reduce(context, reduction.op, state->lanes);
  };
  auto post = [=, this] {
    if (!at_root_site) return;
    from_host(state->part, state->host);
    at::Tensor result = state->part;
    if (!alone_in_site()) {
      result = at::empty({signed_size(part_elements) * local_size}, state->part.options());
      c10d::AllgatherOptions options;
      options.timeout = timeout;
      finish(inner_post->_allgather_base(result, state->part, options));
    }
    if (is_root) tensor.copy_(part_view(result, 0, elements).view(tensor.sizes()));
  };
  return call.issue({tensor}, {tensor}, pre, exchange, post);
}

WorkPtr WanCollectives::reduce_scatter(const at::Tensor& output, const Tensors& inputs,
                                       const c10d::ReduceOp& op, Milliseconds timeout) {
  const Reduction reduction = reduction_of(output, op);
  const auto shard = static_cast<std::uint64_t>(output.numel());
  const auto group_size = static_cast<std::uint64_t>(topology().size());
  std::uint64_t total = 0;
  for (const auto& input : inputs) {
    if (input.scalar_type() != output.scalar_type()) {
      throw_status(StatusCode::InvalidArgument, "reduce_scatter: input and output differ in dtype");
    }
    total += static_cast<std::uint64_t>(input.numel());
  }
  const bool uneven =
      inputs.size() > 1 && std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
        return static_cast<std::uint64_t>(input.numel()) != shard;
      });
  if (total != shard * group_size || uneven) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("reduce_scatter: the input has ", total, " elements, expected ", shard,
                           " (the output's) for each of ", group_size, " ranks"));
  }
  Call call(*this, OpKind::ReduceScatter, c10d::OpType::REDUCE_SCATTER, "reduce_scatter", output.device(),
            timeout, total, reduction.dtype);
  if (shard == 0) return call.issue(inputs, {output}, nullptr, nullptr, nullptr);
  struct State {
    at::Tensor staging, block, host;
    std::vector<LaneData> lanes;
  };
  auto state = std::make_shared<State>();
  const int local_size = topology().local_size();
  const auto inner_pre = alone_in_site() ? nullptr : inner(output.device(), false);

  auto pre = [=, this] {
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
      c10d::ReduceScatterOptions options;
      options.reduceOp = reduction.inner;
      options.timeout = timeout;
      finish(inner_pre->_reduce_scatter_base(state->block, state->staging, options));
    }
    state->host = to_host(state->block);
    const auto bytes = bytes_of(state->host);
    const std::size_t element_bytes = output.element_size();
    for (std::size_t i = 0; i < layout.lanes.size(); ++i) {
      const auto& lane = layout.lanes[i];
      std::vector<bool> receives(static_cast<std::size_t>(topology().site_count()), false);
      receives[static_cast<std::size_t>(topology().site_of(layout.receiver[i]))] = true;
      const auto data = bytes.subspan(layout.offset[i] * element_bytes, lane.range.size() * element_bytes);
      state->lanes.push_back({lane, std::move(receives), data});
    }
  };
  auto exchange = [=, this, context = call.context(state)] {
    return exchange_->reduce(context, reduction.op, state->lanes);
  };
  // This rank's own shard stands at the beginning of its block.
  auto post = [=] { output.copy_(part_view(state->host, 0, shard).view(output.sizes())); };
  return call.issue(inputs, {output}, pre, exchange, post);
}

WorkPtr WanCollectives::all_gather(const Tensors& outputs, const at::Tensor& input, Milliseconds timeout) {
  const auto shard = static_cast<std::uint64_t>(input.numel());
  std::uint64_t total = 0;
  for (const auto& output : outputs) {
    if (output.scalar_type() != input.scalar_type()) {
      throw_status(StatusCode::InvalidArgument, "all_gather: input and output differ in dtype");
    }
    total += static_cast<std::uint64_t>(output.numel());
  }
  const bool uneven =
      outputs.size() > 1 && std::any_of(outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
        return static_cast<std::uint64_t>(output.numel()) != shard;
      });
  if (total != shard * static_cast<std::uint64_t>(topology().size()) || uneven) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("all_gather: the output has room for ", total, " elements, expected ", shard,
                           " (the input's) for each of ", topology().size(), " ranks"));
  }
  Call call(*this, OpKind::AllGather, c10d::OpType::ALLGATHER, "all_gather", input.device(), timeout, shard,
            moved_dtype(input.scalar_type()));
  if (shard == 0) return call.issue({input}, outputs, nullptr, nullptr, nullptr);
  struct State {
    at::Tensor source, block, host;
    std::vector<SendPiece> sends;
    std::vector<ReceivePiece> receives;
    collective::AllGatherLayout layout;
  };
  auto state = std::make_shared<State>();
  const int local_size = topology().local_size();
  const auto inner_post = alone_in_site() ? nullptr : inner(input.device(), true);

  auto pre = [=, this] {
    state->layout = collective::all_gather_layout(topology(), shard);
    state->source = to_host(flat(input));
    state->host = host_room_for(at::empty({signed_size(state->layout.block)}, input.options()));
    part_view(state->host, 0, shard).copy_(state->source);
    const std::size_t element_bytes = input.element_size();
    for (const auto& piece : state->layout.sends) {
      state->sends.push_back(
          {piece.rank,
           bytes_of(state->source).subspan(piece.offset * element_bytes, piece.count * element_bytes)});
    }
    for (const auto& piece : state->layout.receives) {
      state->receives.push_back(
          {piece.rank,
           bytes_of(state->host).subspan(piece.offset * element_bytes, piece.count * element_bytes)});
    }
  };
  auto exchange = [=, this, context = call.context(state)] {
    return exchange_->move(context, state->sends, state->receives);
  };
  auto post = [=, this] {
    auto gathered = state->host;
    if (!alone_in_site()) {
      auto block = state->host.to(input.device()).view(at::kByte);
      gathered = at::empty({block.numel() * local_size}, block.options());
      c10d::AllgatherOptions options;
      options.timeout = timeout;
      finish(inner_post->_allgather_base(gathered, block, options));
      gathered = gathered.view(input.scalar_type());
    }
    const bool direct = outputs.size() == 1 && is_flat_view(outputs.front());
    const auto result = direct ? flat(outputs.front()) : at::empty({signed_size(total)}, gathered.options());
    copy_runs(result, gathered, state->layout.unpack);
    if (direct) return;
    std::uint64_t offset = 0;
    for (const auto& output : outputs) {
      const auto count = static_cast<std::uint64_t>(output.numel());
      output.copy_(part_view(result, offset, count).view(output.sizes()));
      offset += count;
    }
  };
  return call.issue({input}, outputs, pre, exchange, post);
}

WorkPtr WanCollectives::broadcast(const at::Tensor& tensor, int root, Milliseconds timeout) {
  const auto& topo = topology();
  const auto elements = static_cast<std::uint64_t>(tensor.numel());
  Call call(*this, OpKind::Broadcast, c10d::OpType::BROADCAST, "broadcast", tensor.device(), timeout,
            elements, moved_dtype(tensor.scalar_type()));
  if (elements == 0) return call.issue({tensor}, {tensor}, nullptr, nullptr, nullptr);
  // One rank per site talks to the root; which one follows the root's place, so that different roots use
  // different ranks.
  const auto leader_of = [&topo, root](int site) {
    return site == topo.site_of(root)
               ? root
               : topo.ranks_of(
                     site)[static_cast<std::size_t>(topo.local_rank_of(root) % topo.site_size(site))];
  };
  struct State {
    at::Tensor device, host;
    std::vector<SendPiece> sends;
    std::vector<ReceivePiece> receives;
  };
  auto state = std::make_shared<State>();
  const bool is_root = topo.rank() == root;
  const bool is_leader = leader_of(topo.site()) == topo.rank();
  std::vector<int> remote_leaders;
  for (int site = 0; site < topo.site_count(); ++site) {
    if (site != topo.site_of(root)) remote_leaders.push_back(leader_of(site));
  }
  const int inner_root = topo.local_rank_of(leader_of(topo.site()));
  const auto inner_post = alone_in_site() ? nullptr : inner(tensor.device(), true);

  auto pre = [=] {
    state->device = flat(tensor);
    if (!is_leader) return;
    state->host = is_root ? to_host(state->device) : host_room_for(state->device);
    if (is_root) {
      for (const int leader : remote_leaders) state->sends.push_back({leader, bytes_of(state->host)});
    } else {
      state->receives.push_back({root, bytes_of(state->host)});
    }
  };
  auto exchange = [=, this, context = call.context(state)] {
    return is_leader ? exchange_->move(context, state->sends, state->receives) : core::Status::ok();
  };
  auto post = [=, this] {
    if (is_leader && !is_root) from_host(state->device, state->host);
    if (!alone_in_site()) {
      Tensors bytes{state->device.view(at::kByte)};
      c10d::BroadcastOptions options;
      options.rootRank = inner_root;
      options.timeout = timeout;
      finish(inner_post->broadcast(bytes, options));
    }
    if (!is_root && !state->device.is_alias_of(tensor)) tensor.copy_(state->device.view(tensor.sizes()));
  };
  return call.issue({tensor}, {tensor}, pre, exchange, post);
}

namespace {

// Gather and scatter: what the root exchanges with each rank, on the host.
struct RootState {
  at::Tensor own;
  Tensors remote;  // host copies, kept alive while the WAN uses them
  std::vector<SendPiece> sends;
  std::vector<ReceivePiece> receives;
};

}  // namespace

WorkPtr WanCollectives::gather(const Tensors& outputs, const at::Tensor& input, int root,
                               Milliseconds timeout) {
  const auto& topo = topology();
  const bool is_root = topo.rank() == root;
  const bool at_root_site = topo.site() == topo.site_of(root);
  if (is_root && static_cast<int>(outputs.size()) != topo.size()) {
    throw_status(StatusCode::InvalidArgument, core::str("gather: the root gave ", outputs.size(),
                                                        " output tensors for ", topo.size(), " ranks"));
  }
  Call call(*this, OpKind::Gather, c10d::OpType::GATHER, "gather", input.device(), timeout,
            static_cast<std::uint64_t>(input.numel()), moved_dtype(input.scalar_type()));
  auto state = std::make_shared<RootState>();
  const auto inner_post = at_root_site && !alone_in_site() ? inner(input.device(), true) : nullptr;

  auto pre = [=, this] {
    if (!at_root_site) {
      state->own = to_host(flat(input));
      state->sends.push_back({root, bytes_of(state->own)});
    }
    if (!is_root) return;
    state->remote.resize(outputs.size());
    for (int rank = 0; rank < topology().size(); ++rank) {
      if (topology().site_of(rank) == topology().site()) continue;
      auto& room = state->remote[static_cast<std::size_t>(rank)];
      room = host_room_for(flat(outputs[static_cast<std::size_t>(rank)]));
      state->receives.push_back({rank, bytes_of(room)});
    }
  };
  auto exchange = [=, this, context = call.context(state)] {
    return exchange_->move(context, state->sends, state->receives);
  };
  auto post = [=, this] {
    const auto& ranks = topology().ranks_of(topology().site());
    if (alone_in_site()) {
      if (is_root)
        outputs[static_cast<std::size_t>(root)].copy_(
            input.view(outputs[static_cast<std::size_t>(root)].sizes()));
    } else if (at_root_site) {
      Tensors inputs{flat_bytes(input)};
      std::vector<Tensors> rooms;
      if (is_root) {
        rooms.emplace_back();
        for (std::size_t i = 0; i < ranks.size(); ++i)
          rooms.front().push_back(at::empty_like(inputs.front()));
      }
      c10d::GatherOptions options;
      options.rootRank = topology().local_rank_of(root);
      options.timeout = timeout;
      finish(inner_post->gather(rooms, inputs, options));
      for (std::size_t i = 0; is_root && i < ranks.size(); ++i) {
        const auto& output = outputs[static_cast<std::size_t>(ranks[i])];
        output.copy_(rooms.front()[i].view(output.scalar_type()).view(output.sizes()));
      }
    }
    for (std::size_t rank = 0; rank < state->remote.size(); ++rank) {
      const auto& room = state->remote[rank];
      if (room.defined() && !room.is_alias_of(outputs[rank]))
        outputs[rank].copy_(room.view(outputs[rank].sizes()));
    }
  };
  return call.issue({input}, outputs, pre, exchange, post);
}

WorkPtr WanCollectives::scatter(const at::Tensor& output, const Tensors& inputs, int root,
                                Milliseconds timeout) {
  const auto& topo = topology();
  const bool is_root = topo.rank() == root;
  const bool at_root_site = topo.site() == topo.site_of(root);
  if (is_root && static_cast<int>(inputs.size()) != topo.size()) {
    throw_status(StatusCode::InvalidArgument, core::str("scatter: the root gave ", inputs.size(),
                                                        " input tensors for ", topo.size(), " ranks"));
  }
  Call call(*this, OpKind::Scatter, c10d::OpType::SCATTER, "scatter", output.device(), timeout,
            static_cast<std::uint64_t>(output.numel()), moved_dtype(output.scalar_type()));
  auto state = std::make_shared<RootState>();
  const auto inner_post = at_root_site && !alone_in_site() ? inner(output.device(), true) : nullptr;

  auto pre = [=, this] {
    if (!at_root_site) {
      state->own = host_room_for(flat(output));
      state->receives.push_back({root, bytes_of(state->own)});
    }
    if (!is_root) return;
    for (int rank = 0; rank < topology().size(); ++rank) {
      if (topology().site_of(rank) == topology().site()) continue;
      state->remote.push_back(to_host(flat(inputs[static_cast<std::size_t>(rank)])));
      state->sends.push_back({rank, bytes_of(state->remote.back())});
    }
  };
  auto exchange = [=, this, context = call.context(state)] {
    return exchange_->move(context, state->sends, state->receives);
  };
  auto post = [=, this] {
    if (!at_root_site) {
      if (!state->own.is_alias_of(output)) output.copy_(state->own.view(output.sizes()));
      return;
    }
    if (alone_in_site()) {
      output.copy_(inputs[static_cast<std::size_t>(root)].view(output.sizes()));
      return;
    }
    Tensors outputs{at::empty_like(flat_bytes(output))};
    std::vector<Tensors> sources;
    if (is_root) {
      sources.emplace_back();
      for (const int rank : topology().ranks_of(topology().site())) {
        sources.front().push_back(flat_bytes(inputs[static_cast<std::size_t>(rank)]));
      }
    }
    c10d::ScatterOptions options;
    options.rootRank = topology().local_rank_of(root);
    options.timeout = timeout;
    finish(inner_post->scatter(outputs, sources, options));
    output.copy_(outputs.front().view(output.scalar_type()).view(output.sizes()));
  };
  return call.issue(inputs, {output}, pre, exchange, post);
}

WorkPtr WanCollectives::all_to_all(const Tensors& outputs, const Tensors& inputs, Milliseconds timeout) {
  const auto& topo = topology();
  if (static_cast<int>(outputs.size()) != topo.size() || static_cast<int>(inputs.size()) != topo.size()) {
    throw_status(StatusCode::InvalidArgument,
                 core::str("all_to_all: ", inputs.size(), " inputs and ", outputs.size(), " outputs for ",
                           topo.size(), " ranks"));
  }
  const auto device = inputs.front().device();
  Call call(*this, OpKind::AllToAll, c10d::OpType::ALLTOALL, "all_to_all", device, timeout, 0,
            moved_dtype(inputs.front().scalar_type()));
  struct State {
    Tensors sources, rooms;  // per group rank, on the host; own site's left undefined
    std::vector<SendPiece> sends;
    std::vector<ReceivePiece> receives;
  };
  auto state = std::make_shared<State>();
  const auto inner_post = alone_in_site() ? nullptr : inner(device, true);

  auto pre = [=, this] {
    state->sources.resize(inputs.size());
    state->rooms.resize(outputs.size());
    for (int rank = 0; rank < topology().size(); ++rank) {
      if (topology().site_of(rank) == topology().site()) continue;
      const auto i = static_cast<std::size_t>(rank);
      state->sources[i] = to_host(flat(inputs[i]));
      state->rooms[i] = host_room_for(flat(outputs[i]));
      state->sends.push_back({rank, bytes_of(state->sources[i])});
      state->receives.push_back({rank, bytes_of(state->rooms[i])});
    }
  };
  auto exchange = [=, this, context = call.context(state)] {
    return exchange_->move(context, state->sends, state->receives);
  };
  auto post = [=, this] {
    const auto& ranks = topology().ranks_of(topology().site());
    if (alone_in_site()) {
      const auto own = static_cast<std::size_t>(topology().rank());
      outputs[own].copy_(inputs[own].view(outputs[own].sizes()));
    } else {
      Tensors sources;
      std::vector<std::int64_t> in_splits, out_splits;
      std::int64_t received = 0;
      for (const int rank : ranks) {
        sources.push_back(flat_bytes(inputs[static_cast<std::size_t>(rank)]));
        in_splits.push_back(sources.back().numel());
        out_splits.push_back(static_cast<std::int64_t>(outputs[static_cast<std::size_t>(rank)].nbytes()));
        received += out_splits.back();
      }
      auto source = at::cat(sources);
      auto room = at::empty({received}, source.options());
      c10d::AllToAllOptions options;
      options.timeout = timeout;
      finish(inner_post->alltoall_base(room, source, out_splits, in_splits, options));
      std::int64_t offset = 0;
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const auto& output = outputs[static_cast<std::size_t>(ranks[i])];
        // clone(): a slice may start where the output's dtype is not aligned.
        output.copy_(
            room.narrow(0, offset, out_splits[i]).clone().view(output.scalar_type()).view(output.sizes()));
        offset += out_splits[i];
      }
    }
    for (std::size_t rank = 0; rank < state->rooms.size(); ++rank) {
      const auto& room = state->rooms[rank];
      if (room.defined() && !room.is_alias_of(outputs[rank]))
        outputs[rank].copy_(room.view(outputs[rank].sizes()));
    }
  };
  return call.issue(inputs, outputs, pre, exchange, post);
}

WorkPtr WanCollectives::barrier(const at::Device& device, Milliseconds timeout) {
  const auto& topo = topology();
  Call call(*this, OpKind::Barrier, c10d::OpType::BARRIER, "barrier", device, timeout, 0, core::DType::UInt8);
  const auto inner_pre = alone_in_site() ? nullptr : inner(device, false);
  const auto inner_post = alone_in_site() ? nullptr : inner(device, true);
  const auto inner_barrier = [timeout](const BackendPtr& backend) {
    c10d::BarrierOptions options;
    options.timeout = timeout;
    if (backend) finish(backend->barrier(options));
  };
  auto pre = [=] { inner_barrier(inner_pre); };
  auto exchange = [this, is_leader = topo.local_rank() == 0, context = call.context(nullptr)] {
    if (!is_leader) return core::Status::ok();
    std::vector<SendPiece> sends;
    std::vector<ReceivePiece> receives;
    for (int site = 0; site < topology().site_count(); ++site) {
      if (site == topology().site()) continue;
      sends.push_back({topology().ranks_of(site).front(), {}});
      receives.push_back({topology().ranks_of(site).front(), {}});
    }
    return exchange_->move(context, sends, receives);
  };
  auto post = [=] { inner_barrier(inner_post); };
  return call.issue({}, {}, pre, exchange, post);
}

WorkPtr WanCollectives::send(const at::Tensor& tensor, int peer, int tag, Milliseconds timeout) {
  return point_to_point(tensor, peer, tag, true, timeout);
}

WorkPtr WanCollectives::recv(const at::Tensor& tensor, int peer, int tag, Milliseconds timeout) {
  return point_to_point(tensor, peer, tag, false, timeout);
}

WorkPtr WanCollectives::point_to_point(const at::Tensor& tensor, int peer, int tag, bool sends,
                                       Milliseconds timeout) {
  if (topology().site_of(peer) == topology().site()) {
    const auto backend = inner(tensor.device(), false);
    Tensors tensors{tensor};
    const int local = topology().local_rank_of(peer);
    return sends ? backend->send(tensors, local, tag) : backend->recv(tensors, local, tag);
  }
  std::uint32_t counter = 0;
  {
    std::lock_guard lock(mutex_);
    counter = p2p_counters_[{peer, tag, sends}]++ & 0xFFFFFFu;
  }
  Call call(*this, OpKind::SendRecv, sends ? c10d::OpType::SEND : c10d::OpType::RECV, sends ? "send" : "recv",
            tensor.device(), timeout, 0, core::DType::UInt8, collective::p2p_seq(tag, counter));
  struct State {
    at::Tensor device, host;
  };
  auto state = std::make_shared<State>();
  auto exchange = [=, this, context = call.context(state)]() -> core::Status {
    state->device = flat(tensor);
    state->host = sends ? to_host(state->device) : host_room_for(state->device);
    const SendPiece out{peer, bytes_of(state->host)};
    const ReceivePiece in{peer, bytes_of(state->host)};
    const auto status =
        sends ? exchange_->move(context, {&out, 1}, {}) : exchange_->move(context, {}, {&in, 1});
    if (sends || !status.is_ok()) return status;
    from_host(state->device, state->host);
    if (!state->device.is_alias_of(tensor)) tensor.copy_(state->device.view(tensor.sizes()));
    return status;
  };
  return call.issue_beside({tensor}, {tensor}, exchange);
}

}  // namespace geocomm::binding
