#include "binding/calls/site_collectives.h"

#include <algorithm>
#include <utility>

#include "binding/calls/coalesced.h"
#include "binding/calls/site_message.h"
#include "binding/torch/below_autograd.h"
#include "core/str.h"

namespace geocomm::binding {

using core::StatusCode;

namespace {

template <typename Options>
Options with_timeout(Milliseconds timeout) {
  Options options;
  options.timeout = timeout;
  return options;
}

// What the inner backend has added up, which may be in the memory of `tensor`, becomes its value.
void take_sum(const at::Tensor& tensor, const at::Tensor& sum, const Reduction& reduction, int ranks) {
  const auto reals = reals_of(tensor);
  if (!sum.is_alias_of(reals)) reals.copy_(sum.view(reals.sizes()));
  reduction.finish_sum(reals, ranks);
  if (reduction.op == collective::ReduceOp::Avg) mark_written(tensor);
}

}  // namespace

// What the inner backend writes to: bytes of the tensors themselves, or of room of their size.
class SiteCollectives::Rows {
 public:
  at::Tensor bytes_to_write(const at::Tensor& tensor) {
    if (is_flat_view(tensor)) return flat_bytes(tensor);
    rooms_.push_back({tensor, at::empty({tensor.numel()}, tensor.options())});
    return rooms_.back().room.view(at::kByte);
  }
  void take() const {
    for (const auto& [tensor, room] : rooms_) tensor.copy_(room.view(tensor.sizes()));
  }

 private:
  struct Room {
    at::Tensor tensor;
    at::Tensor room;
  };
  std::vector<Room> rooms_;
};

SiteCollectives::SiteCollectives(int rank, int size, InnerBackends inner)
    : rank_(rank), size_(size), inner_(std::move(inner)) {}

c10d::Backend& SiteCollectives::backend(const at::Device& device) const {
  const auto found = inner_.find(device.type());
  if (found == inner_.end()) {
    throw_status(StatusCode::Unsupported,
                 core::str("this process group has no backend for tensors on ", device.str()));
  }
  return *found->second.pre;
}

WorkPtr SiteCollectives::done(c10d::OpType type, Tensors outputs) {
  auto work = c10::make_intrusive<GeoWork>(rank_, type, nullptr, next_seq_.fetch_add(1), Tensors{},
                                           std::move(outputs), exposed_);
  work->complete(nullptr);
  return work;
}

WorkPtr SiteCollectives::done_after(const WorkPtr& inner, c10d::OpType type, Tensors outputs,
                                    std::function<void()> then) {
  auto work = c10::make_intrusive<GeoWork>(rank_, type, nullptr, next_seq_.fetch_add(1), Tensors{},
                                           std::move(outputs), exposed_);
  inner->getFuture()->addCallback(
      [work, then = below_autograd(std::move(then))](at::ivalue::Future& future) mutable {
        std::exception_ptr error = future.hasError() ? future.exception_ptr() : nullptr;
        try {
          if (!error && then) then();
        } catch (...) {
          error = std::current_exception();
        }
        then = nullptr;  // it holds tensors of the program
        work->complete(error);
      });
  return work;
}

WorkPtr SiteCollectives::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                                    Milliseconds timeout) {
  auto options = with_timeout<c10d::AllreduceOptions>(timeout);
  if (!tensor.device().is_cpu()) {
    options.reduceOp = op;
    Tensors given{reals_of(tensor)};
    return backend(tensor.device()).allreduce(given, options);
  }
  const auto reduction = Reduction::of(tensor, op, size_);
  if (tensor.numel() == 0) return done(c10d::OpType::ALLREDUCE, {tensor});
  options.reduceOp = reduction.inner;
  const auto summand = reduction.scaled(flat(reals_of(tensor)));
  Tensors summands{summand.to(inner_type(summand.scalar_type()))};
  const auto sum = summands.front();
  return done_after(backend(tensor.device()).allreduce(summands, options), c10d::OpType::ALLREDUCE, {tensor},
                    [=, ranks = size_] { take_sum(tensor, sum, reduction, ranks); });
}

WorkPtr SiteCollectives::all_reduce_compressed(const at::Tensor& tensor, const codec::CodecSpec& codec,
                                               const std::optional<at::Tensor>& residual,
                                               const std::optional<at::Tensor>& next,
                                               const std::optional<at::Tensor>&, bool average, double decay,
                                               Milliseconds timeout) {
  auto feedback = std::make_shared<CallerFeedback>(codec, static_cast<float>(decay), residual, next);
  feedback->commit();
  auto work = all_reduce(tensor, average ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM, timeout);
  return c10::make_intrusive<FeedbackWork>(std::move(work), std::move(feedback));
}

WorkPtr SiteCollectives::all_reduce_coalesced(const Tensors& tensors, const c10d::ReduceOp& op,
                                              Milliseconds timeout) {
  if (!tensors.front().device().is_cpu()) {
    auto options = with_timeout<c10d::AllreduceCoalescedOptions>(timeout);
    options.reduceOp = op;
    auto given = reals_of(tensors);
    return backend(tensors.front().device()).allreduce_coalesced(given, options);
  }
  for (const auto& tensor : tensors) Reduction::of(tensor, op, size_);  // throws before the first is issued
  return all_reduce_together(*this, rank_, tensors, op, timeout);
}

WorkPtr SiteCollectives::all_reduce_sparse(const at::Tensor& tensor, Milliseconds timeout) {
  Tensors tensors{tensor};
  const auto work =
      backend(tensor.device()).allreduce_sparse(tensors, with_timeout<c10d::AllreduceOptions>(timeout));
  return done_after(work, c10d::OpType::_ALLREDUCE_SPARSE, tensors, nullptr);
}

WorkPtr SiteCollectives::reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, int root,
                                Milliseconds timeout) {
  auto options = with_timeout<c10d::ReduceOptions>(timeout);
  options.rootRank = root;
  if (!tensor.device().is_cpu()) {
    options.reduceOp = op;
    Tensors given{reals_of(tensor)};
    return backend(tensor.device()).reduce(given, options);
  }
  const auto reduction = Reduction::of(tensor, op, size_);
  if (tensor.numel() == 0) return done(c10d::OpType::REDUCE, {tensor});
  options.reduceOp = reduction.inner;
  const auto given = reduction.scaled(flat(reals_of(tensor)));
  auto sum = given.to(inner_type(given.scalar_type()));
  // Gloo leaves sums of some of the ranks there.
  if (rank_ != root && sum.is_alias_of(tensor)) sum = sum.clone();
  Tensors summands{sum};
  return done_after(backend(tensor.device()).reduce(summands, options), c10d::OpType::REDUCE, {tensor},
                    [=, is_root = rank_ == root, ranks = size_] {
                      if (is_root) take_sum(tensor, sum, reduction, ranks);
                    });
}

WorkPtr SiteCollectives::reduce_scatter(const at::Tensor& output, const Tensors& inputs,
                                        const c10d::ReduceOp& op, Milliseconds timeout) {
  const auto device = output.device();
  if (!device.is_cpu()) {
    auto options = with_timeout<c10d::ReduceScatterOptions>(timeout);
    options.reduceOp = op;
    auto result = reals_of(output);
    auto parts = reals_of(inputs);
    if (parts.size() == 1) return backend(device)._reduce_scatter_base(result, parts.front(), options);
    Tensors results{result};
    std::vector<Tensors> lists{parts};
    return backend(device).reduce_scatter(results, lists, options);
  }
  const auto reduction = Reduction::of(output, op, size_);
  if (output.numel() == 0) return done(c10d::OpType::REDUCE_SCATTER, {output});
  // Gloo's own does the same, in a Work that has no Future.
  auto options = with_timeout<c10d::AllreduceOptions>(timeout);
  options.reduceOp = reduction.inner;
  Tensors flats;
  for (const auto& input : reals_of(inputs)) flats.push_back(flat(input));
  const auto given = at::cat(flats);  // new memory, also of one
  const auto summand = reduction.scaled(given);
  Tensors summands{summand.to(inner_type(summand.scalar_type()))};
  const auto result = reals_of(output);
  const auto own = summands.front().narrow(0, rank_ * result.numel(), result.numel());
  return done_after(backend(device).allreduce(summands, options), c10d::OpType::REDUCE_SCATTER, {output},
                    [=, ranks = size_] {
                      result.copy_(own.view(result.sizes()));
                      reduction.finish_sum(result, ranks);
                      mark_written(output);
                    });
}

WorkPtr SiteCollectives::reduce_scatter_coalesced(const Tensors& outputs, const Tensors& inputs,
                                                  const c10d::ReduceOp& op, Milliseconds timeout) {
  const auto device = outputs.front().device();
  if (!device.is_cpu()) {
    auto options = with_timeout<c10d::ReduceScatterOptions>(timeout);
    options.reduceOp = op;
    auto results = reals_of(outputs), wholes = reals_of(inputs);
    return backend(device).reduce_scatter_tensor_coalesced(results, wholes, options);
  }
  for (const auto& output : outputs) Reduction::of(output, op, size_);  // throws before the first is issued
  return each_together(*this, rank_, kReduceScatterCoalesced, outputs.size(), outputs,
                       [&](std::size_t i) { return reduce_scatter(outputs[i], {inputs[i]}, op, timeout); });
}

WorkPtr SiteCollectives::all_gather(const Tensors& outputs, const at::Tensor& input, Milliseconds timeout) {
  const auto options = with_timeout<c10d::AllgatherOptions>(timeout);
  const auto device = input.device();
  const bool whole = outputs.size() == 1;
  if (!device.is_cpu()) {
    auto given = input;
    auto output = outputs.front();
    if (whole) return backend(device)._allgather_base(output, given, options);
    std::vector<Tensors> lists{outputs};
    Tensors inputs{input};
    return backend(device).allgather(lists, inputs, options);
  }
  if (input.numel() == 0) return done(c10d::OpType::ALLGATHER, outputs);
  Rows rows;
  std::vector<Tensors> lists(1);
  Tensors inputs{flat_bytes(input)};
  for (const auto& output : outputs) lists.front().push_back(rows.bytes_to_write(output));
  if (whole) lists.front() = lists.front().front().chunk(size_);
  return done_after(backend(device).allgather(lists, inputs, options), c10d::OpType::ALLGATHER, outputs,
                    [rows, outputs] {
                      rows.take();
                      for (const auto& output : outputs) mark_written(output);
                    });
}

WorkPtr SiteCollectives::all_gather_coalesced(const std::vector<Tensors>& outputs, const Tensors& inputs,
                                              Milliseconds timeout) {
  const auto device = inputs.front().device();
  const bool wholes = outputs.front().size() == 1;
  Tensors all;
  for (const auto& list : outputs) all.insert(all.end(), list.begin(), list.end());
  if (!device.is_cpu() && wholes) {
    auto given = inputs;
    return backend(device).allgather_into_tensor_coalesced(all, given,
                                                           with_timeout<c10d::AllgatherOptions>(timeout));
  }
  if (!device.is_cpu()) {
    throw_status(StatusCode::Unsupported, "all_gather_coalesced into lists takes CPU tensors inside a site");
  }
  return each_together(*this, rank_, c10d::OpType::ALLGATHER_COALESCED, inputs.size(), all,
                       [&](std::size_t i) { return all_gather(outputs[i], inputs[i], timeout); });
}

WorkPtr SiteCollectives::broadcast(const at::Tensor& tensor, int root, Milliseconds timeout) {
  auto options = with_timeout<c10d::BroadcastOptions>(timeout);
  options.rootRank = root;
  Tensors given{tensor};
  if (!tensor.device().is_cpu()) return backend(tensor.device()).broadcast(given, options);
  if (tensor.numel() == 0) return done(c10d::OpType::BROADCAST, given);
  Rows rows;
  Tensors bytes{rank_ == root ? flat_bytes(tensor) : rows.bytes_to_write(tensor)};
  return done_after(backend(tensor.device()).broadcast(bytes, options), c10d::OpType::BROADCAST, given,
                    [rows] { rows.take(); });
}

WorkPtr SiteCollectives::gather(const Tensors& outputs, const at::Tensor& input, int root,
                                Milliseconds timeout) {
  auto options = with_timeout<c10d::GatherOptions>(timeout);
  options.rootRank = root;
  std::vector<Tensors> lists;
  if (!input.device().is_cpu()) {
    if (rank_ == root) lists.push_back(outputs);
    Tensors inputs{input};
    return backend(input.device()).gather(lists, inputs, options);
  }
  if (input.numel() == 0) return done(c10d::OpType::GATHER, outputs);
  Rows rows;
  if (rank_ == root) {
    lists.emplace_back();
    for (const auto& output : outputs) lists.front().push_back(rows.bytes_to_write(output));
  }
  Tensors inputs{flat_bytes(input)};
  return done_after(backend(input.device()).gather(lists, inputs, options), c10d::OpType::GATHER, outputs,
                    [rows, outputs] {
                      rows.take();
                      for (const auto& output : outputs) mark_written(output);
                    });
}

WorkPtr SiteCollectives::scatter(const at::Tensor& output, const Tensors& inputs, int root,
                                 Milliseconds timeout) {
  auto options = with_timeout<c10d::ScatterOptions>(timeout);
  options.rootRank = root;
  std::vector<Tensors> lists;
  Tensors outputs{output};
  if (!output.device().is_cpu()) {
    if (rank_ == root) lists.push_back(inputs);
    return backend(output.device()).scatter(outputs, lists, options);
  }
  if (output.numel() == 0) return done(c10d::OpType::SCATTER, outputs);
  Rows rows;
  if (rank_ == root) {
    lists.emplace_back();
    for (const auto& input : inputs) lists.front().push_back(flat_bytes(input));
  }
  Tensors bytes{rows.bytes_to_write(output)};
  return done_after(backend(output.device()).scatter(bytes, lists, options), c10d::OpType::SCATTER, outputs,
                    [rows] { rows.take(); });
}

WorkPtr SiteCollectives::all_to_all(const Tensors& outputs, const Tensors& inputs, const Tensors& results,
                                    Milliseconds timeout) {
  const auto options = with_timeout<c10d::AllToAllOptions>(timeout);
  const auto device = inputs.front().device();
  if (!device.is_cpu()) {
    auto to = outputs, from = inputs;
    return backend(device).alltoall(to, from, options);
  }
  Tensors sources;
  std::vector<std::int64_t> in_sizes, out_sizes;
  for (const auto& input : apart_from(outputs, inputs)) {
    sources.push_back(flat_bytes(input));
    in_sizes.push_back(sources.back().numel());
  }
  std::int64_t received = 0;
  for (const auto& output : outputs) {
    out_sizes.push_back(static_cast<std::int64_t>(output.nbytes()));
    received += out_sizes.back();
  }
  auto source = joined(sources);
  const bool whole = results.size() == 1 && outputs.size() != 1 && is_flat_view(results.front());
  auto room = whole ? flat_bytes(results.front()) : at::empty({received}, source.options());
  return done_after(backend(device).alltoall_base(room, source, out_sizes, in_sizes, options),
                    c10d::OpType::ALLTOALL, results, [=] {
                      if (!whole) take_rows(room, outputs);
                      for (const auto& output : outputs) mark_written(output);
                    });
}

WorkPtr SiteCollectives::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                           const Splits& output_splits, const Splits& input_splits,
                                           Milliseconds timeout) {
  if (!input.device().is_cpu()) {
    auto to = output, from = input;
    auto to_splits = output_splits, from_splits = input_splits;
    return backend(input.device())
        .alltoall_base(to, from, to_splits, from_splits, with_timeout<c10d::AllToAllOptions>(timeout));
  }
  return all_to_all(split_rows(output, output_splits, size_), split_rows(input, input_splits, size_),
                    {output}, timeout);
}

WorkPtr SiteCollectives::barrier(const at::Device& device, Milliseconds timeout) {
  auto options = with_timeout<c10d::BarrierOptions>(timeout);
  if (!device.is_cpu()) {
    options.device = device;
    return backend(device).barrier(options);
  }
  return done_after(backend(device).barrier(options), c10d::OpType::BARRIER, {}, nullptr);
}

WorkPtr SiteCollectives::monitored_barrier(bool wait_all_ranks, Milliseconds timeout) {
  backend(at::kCPU).monitoredBarrier(with_timeout<c10d::BarrierOptions>(timeout), wait_all_ranks);
  return done(c10d::OpType::BARRIER, {});
}

WorkPtr SiteCollectives::send(const at::Tensor& tensor, int peer, int tag, Milliseconds) {
  return message_in_site(backend(tensor.device()), tensor, peer, tag, true, exposed_);
}

WorkPtr SiteCollectives::recv(const at::Tensor& tensor, int peer, int tag, Milliseconds) {
  return message_in_site(backend(tensor.device()), tensor, peer, tag, false, exposed_);
}

WorkPtr SiteCollectives::recv_any(const at::Tensor& tensor, int tag, Milliseconds) {
  return message_in_site(backend(tensor.device()), tensor, -1, tag, false, exposed_);
}

WorkPtr message_in_site(c10d::Backend& backend, const at::Tensor& tensor, int peer, int tag, bool sends,
                        const std::shared_ptr<ExposedTime>& exposed) {
  const auto issue = [&](Tensors tensors) {
    if (sends) return backend.send(tensors, peer, tag);
    return peer < 0 ? backend.recvAnysource(tensors, tag) : backend.recv(tensors, peer, tag);
  };
  if (!tensor.device().is_cpu()) return issue({tensor});
  const bool in_place = sends || is_flat_view(tensor);
  const auto room = in_place ? flat(tensor) : at::empty({tensor.numel()}, tensor.options());
  std::function<void()> take;
  if (!in_place)
    take = below_autograd(std::function<void()>([=] { tensor.copy_(room.view(tensor.sizes())); }));
  return c10::make_intrusive<SiteMessage>(backend.getRank(), sends ? c10d::OpType::SEND : c10d::OpType::RECV,
                                          tensor, issue({room.view(at::kByte)}), std::move(take), exposed);
}

}  // namespace geocomm::binding
