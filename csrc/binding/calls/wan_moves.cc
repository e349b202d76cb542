// The collectives of WanCollectives that move data as it is.
#include <algorithm>
#include <utility>

#include "binding/calls/call.h"
#include "binding/calls/coalesced.h"
#include "binding/calls/site_collectives.h"
#include "binding/device/host_room.h"

namespace geocomm::binding {

using collective::OpKind;
using collective::ReceivePiece;
using collective::SendPiece;

WorkPtr WanCollectives::all_gather(const Tensors& outputs, const at::Tensor& input, Milliseconds timeout) {
  const auto shard = static_cast<std::uint64_t>(input.numel());
  const auto total = shard * static_cast<std::uint64_t>(topology().size());
  Call call(*this, OpKind::AllGather, c10d::OpType::ALLGATHER, "all_gather", input.device(), timeout, shard,
            moved_dtype(input.scalar_type()));
  if (shard == 0) return call.issue({input}, outputs, {});
  struct State {
    at::Tensor source, block, host;
    std::vector<SendPiece> sends;
    std::vector<ReceivePiece> receives;
    collective::AllGatherLayout layout;
    collective::RelayTurns relays;
  };
  auto state = std::make_shared<State>();
  const int local_size = topology().local_size();
  state->relays = call.policy().gather_relays_for(
      shard * static_cast<std::uint64_t>(topology().largest_site_size()) * input.element_size());
  const auto inner_post = inner(input.device(), true);

  auto pre = [=, this] {
    state->layout = collective::all_gather_layout(topology(), shard, state->relays);
    state->host = host_room_for(at::empty({signed_size(state->layout.block)}, input.options()));
    state->source = part_view(state->host, 0, shard);
    state->source.copy_(flat(input), kNonBlocking);
    const std::size_t element_bytes = input.element_size();
    for (const auto& piece : state->layout.sends) {
      state->sends.push_back(
          {piece.rank,
           bytes_of(state->source).subspan(piece.offset * element_bytes, piece.count * element_bytes)});
    }
    for (const auto& piece : state->layout.receives) {
      state->receives.push_back(
          {piece.rank,
           bytes_of(state->host).subspan(piece.offset * element_bytes, piece.count * element_bytes),
           piece.forward_to, piece.relayed});
    }
  };
  auto exchange = [=, this, context = call.context(state)] {
    return exchange_->move(context, state->sends, state->receives);
  };
  auto post = [=, this] {
    // To the device first: this may be enqueued before the data has come, when a copy on the host would be
    // too early.
    auto gathered = state->host.to(input.device(), kNonBlocking);
    if (!alone_in_site()) {
      const auto block = gathered;
      gathered = at::empty({block.numel() * local_size}, block.options());
      all_gather_in_site(inner_post, gathered, block, timeout);
    }
    const bool direct = outputs.size() == 1 && is_flat_view(outputs.front());
    const auto result = direct ? flat(outputs.front()) : at::empty({signed_size(total)}, gathered.options());
    copy_runs(result, gathered, state->layout.unpack);
    for (const auto& output : outputs) mark_written(output);
    if (direct) return;
    std::uint64_t offset = 0;
    for (const auto& output : outputs) {
      const auto count = static_cast<std::uint64_t>(output.numel());
      output.copy_(part_view(result, offset, count).view(output.sizes()));
      offset += count;
    }
  };
  return call.issue({input}, outputs, {pre, exchange, post});
}

WorkPtr WanCollectives::all_gather_coalesced(const std::vector<Tensors>& outputs, const Tensors& inputs,
                                             Milliseconds timeout) {
  Tensors all;
  for (const auto& list : outputs) all.insert(all.end(), list.begin(), list.end());
  return each_together(*this, topology().rank(), c10d::OpType::ALLGATHER_COALESCED, inputs.size(), all,
                       [&](std::size_t i) { return all_gather(outputs[i], inputs[i], timeout); });
}

WorkPtr WanCollectives::broadcast(const at::Tensor& tensor, int root, Milliseconds timeout) {
  const auto& topo = topology();
  const auto elements = static_cast<std::uint64_t>(tensor.numel());
  Call call(*this, OpKind::Broadcast, c10d::OpType::BROADCAST, "broadcast", tensor.device(), timeout,
            elements, moved_dtype(tensor.scalar_type()));
  if (elements == 0) return call.issue({tensor}, {tensor}, {});
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
  const int root_site = topo.site_of(root);
  const auto relays = call.policy().relays_for(elements * tensor.element_size());
  const auto relay_to = [&](int site) {
    return relays.via(static_cast<std::size_t>(root_site), static_cast<std::size_t>(site));
  };
  const int over = is_root ? -1 : relay_to(topo.site());
  const int informant = over < 0 ? root : leader_of(over);
  std::vector<int> informed;  // by this rank, if it leads
  for (int site = 0; site < topo.site_count(); ++site) {
    if (site != root_site && relay_to(site) == (is_root ? -1 : topo.site())) {
      informed.push_back(leader_of(site));
    }
  }
  const int inner_root = topo.local_rank_of(leader_of(topo.site()));
  const auto inner_post = inner(tensor.device(), true);

  auto pre = [=] {
    state->device = flat(tensor);
    if (!is_leader) return;
    state->host = is_root ? to_host(state->device) : host_room_for(state->device);
    if (is_root) {
      for (const int leader : informed) state->sends.push_back({leader, bytes_of(state->host)});
    } else {
      state->receives.push_back({informant, bytes_of(state->host), informed, over >= 0});
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
      finish_inner(inner_post->broadcast(bytes, options));
    }
    if (!is_root && !state->device.is_alias_of(tensor)) tensor.copy_(state->device.view(tensor.sizes()));
  };
  return call.issue({tensor}, {tensor}, {pre, exchange, post});
}

// What single ranks of different sites exchange, on the host.
struct WanCollectives::Pieces {
  struct Room {
    at::Tensor host, output;
  };
  Tensors sources;  // alive while the WAN uses them
  std::vector<Room> rooms;
  std::vector<SendPiece> sends;
  std::vector<ReceivePiece> receives;

  void send(int rank, const at::Tensor& input) {
    sources.push_back(to_host(flat(input)));
    sends.push_back({rank, bytes_of(sources.back())});
  }
  void receive(int rank, const at::Tensor& output) {
    rooms.push_back({host_room_for(flat(output)), output});
    receives.push_back({rank, bytes_of(rooms.back().host)});
  }
  void take() const {
    for (const auto& [host, output] : rooms) {
      if (!host.is_alias_of(output)) output.copy_(host.view(output.sizes()), kNonBlocking);
    }
  }
};

// Gather, scatter and all-to-all: between sites rank by rank, as `choose` says; inside the site
// `move_inside`.
WorkPtr WanCollectives::move_pieces(const Call& call, const Tensors& inputs, const Tensors& results,
                                    std::function<void(Pieces&)> choose, std::function<void()> move_inside) {
  const auto pieces = std::make_shared<Pieces>();
  auto pre = [pieces, choose = std::move(choose)] { choose(*pieces); };
  auto exchange = [this, pieces, context = call.context(pieces)] {
    return exchange_->move(context, pieces->sends, pieces->receives);
  };
  auto post = [pieces, move_inside = std::move(move_inside)] {
    move_inside();
    pieces->take();
  };
  return call.issue(inputs, results, {pre, exchange, post});
}

std::vector<int> WanCollectives::ranks_elsewhere() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < topology().size(); ++rank) {
    if (topology().site_of(rank) != topology().site()) ranks.push_back(rank);
  }
  return ranks;
}

WorkPtr WanCollectives::gather(const Tensors& outputs, const at::Tensor& input, int root,
                               Milliseconds timeout) {
  const bool is_root = topology().rank() == root;
  const bool at_root_site = topology().site() == topology().site_of(root);
  const Call call(*this, OpKind::Gather, c10d::OpType::GATHER, "gather", input.device(), timeout,
                  static_cast<std::uint64_t>(input.numel()), moved_dtype(input.scalar_type()));
  const auto inner_post = at_root_site ? inner(input.device(), true) : nullptr;
  const auto choose = [=, this](Pieces& pieces) {
    if (!at_root_site) pieces.send(root, input);
    if (!is_root) return;
    for (const int rank : ranks_elsewhere()) pieces.receive(rank, outputs[static_cast<std::size_t>(rank)]);
  };
  const auto move_inside = [=, this] {
    for (const auto& output : outputs) mark_written(output);
    if (!at_root_site) return;
    if (alone_in_site()) {
      const auto& output = outputs[static_cast<std::size_t>(root)];
      output.copy_(flat(input).view(output.sizes()));
      return;
    }
    const auto& ranks = topology().ranks_of(topology().site());
    Tensors inputs{flat_bytes(input)};
    std::vector<Tensors> rooms;
    if (is_root) {
      rooms.emplace_back();
      for (std::size_t i = 0; i < ranks.size(); ++i) rooms.front().push_back(at::empty_like(inputs.front()));
    }
    c10d::GatherOptions options;
    options.rootRank = topology().local_rank_of(root);
    options.timeout = timeout;
    finish_inner(inner_post->gather(rooms, inputs, options));
    for (std::size_t i = 0; is_root && i < ranks.size(); ++i) {
      const auto& output = outputs[static_cast<std::size_t>(ranks[i])];
      output.copy_(rooms.front()[i].view(output.scalar_type()).view(output.sizes()));
    }
  };
  return move_pieces(call, {input}, outputs, choose, move_inside);
}

WorkPtr WanCollectives::scatter(const at::Tensor& output, const Tensors& inputs, int root,
                                Milliseconds timeout) {
  const bool is_root = topology().rank() == root;
  const bool at_root_site = topology().site() == topology().site_of(root);
  const Call call(*this, OpKind::Scatter, c10d::OpType::SCATTER, "scatter", output.device(), timeout,
                  static_cast<std::uint64_t>(output.numel()), moved_dtype(output.scalar_type()));
  const auto inner_post = at_root_site ? inner(output.device(), true) : nullptr;
  const auto choose = [=, this](Pieces& pieces) {
    if (!at_root_site) pieces.receive(root, output);
    if (!is_root) return;
    for (const int rank : ranks_elsewhere()) pieces.send(rank, inputs[static_cast<std::size_t>(rank)]);
  };
  const auto move_inside = [=, this] {
    if (!at_root_site) return;
    if (alone_in_site()) {
      output.copy_(flat(inputs[static_cast<std::size_t>(root)]).view(output.sizes()));
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
    finish_inner(inner_post->scatter(outputs, sources, options));
    output.copy_(outputs.front().view(output.scalar_type()).view(output.sizes()));
  };
  return move_pieces(call, inputs, {output}, choose, move_inside);
}

WorkPtr WanCollectives::all_to_all(const Tensors& outputs, const Tensors& given, const Tensors& results,
                                   Milliseconds timeout) {
  const auto device = given.front().device();
  const auto inputs = apart_from(outputs, given);
  const Call call(*this, OpKind::AllToAll, c10d::OpType::ALLTOALL, "all_to_all", device, timeout, 0,
                  moved_dtype(inputs.front().scalar_type()));
  const auto inner_post = inner(device, true);
  const auto choose = [=, this](Pieces& pieces) {
    for (const int rank : ranks_elsewhere()) {
      pieces.send(rank, inputs[static_cast<std::size_t>(rank)]);
      pieces.receive(rank, outputs[static_cast<std::size_t>(rank)]);
    }
  };
  const auto move_inside = [=, this] {
    for (const auto& output : outputs) mark_written(output);
    if (alone_in_site()) {
      const auto own = static_cast<std::size_t>(topology().rank());
      outputs[own].copy_(flat(inputs[own]).view(outputs[own].sizes()));
      return;
    }
    Tensors sources, targets;
    std::vector<std::int64_t> in_splits, out_splits;
    std::int64_t received = 0;
    for (const int rank : topology().ranks_of(topology().site())) {
      sources.push_back(flat_bytes(inputs[static_cast<std::size_t>(rank)]));
      targets.push_back(outputs[static_cast<std::size_t>(rank)]);
      in_splits.push_back(sources.back().numel());
      out_splits.push_back(static_cast<std::int64_t>(targets.back().nbytes()));
      received += out_splits.back();
    }
    auto source = at::cat(sources);
    auto room = at::empty({received}, source.options());
    c10d::AllToAllOptions options;
    options.timeout = timeout;
    finish_inner(inner_post->alltoall_base(room, source, out_splits, in_splits, options));
    take_rows(room, targets);
  };
  return move_pieces(call, inputs, results, choose, move_inside);
}

WorkPtr WanCollectives::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                          const Splits& output_splits, const Splits& input_splits,
                                          Milliseconds timeout) {
  return all_to_all(split_rows(output, output_splits, topology().size()),
                    split_rows(input, input_splits, topology().size()), {output}, timeout);
}

WorkPtr WanCollectives::monitored_barrier(bool, Milliseconds timeout) {
  const auto work = barrier(at::kCPU, timeout);
  work->wait();
  return work;
}

WorkPtr WanCollectives::barrier(const at::Device& device, Milliseconds timeout) {
  const auto& topo = topology();
  // A barrier blocks the host, on whatever device its inner part is: no stream is involved.
  Call call(*this, OpKind::Barrier, c10d::OpType::BARRIER, "barrier", at::kCPU, timeout, 0,
            core::DType::UInt8);
  const auto inner_pre = inner(device, false);
  const auto inner_post = inner(device, true);
  const auto inner_barrier = [this, timeout](const BackendPtr& backend) {
    c10d::BarrierOptions options;
    options.timeout = timeout;
    if (backend) finish_inner(backend->barrier(options));
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
  return call.issue({}, {}, {pre, exchange, post});
}

WorkPtr WanCollectives::send(const at::Tensor& tensor, int peer, int tag, Milliseconds timeout) {
  return point_to_point(tensor, peer, tag, true, timeout);
}

WorkPtr WanCollectives::recv(const at::Tensor& tensor, int peer, int tag, Milliseconds timeout) {
  return point_to_point(tensor, peer, tag, false, timeout);
}

WorkPtr WanCollectives::recv_any(const at::Tensor&, int, Milliseconds) {
  throw_status(core::StatusCode::Unsupported,
               "recv(src=None) does not work in a group that spans sites; name the source rank");
}

WorkPtr WanCollectives::point_to_point(const at::Tensor& tensor, int peer, int tag, bool sends,
                                       Milliseconds timeout) {
  if (topology().site_of(peer) == topology().site()) {
    return message_in_site(*inner(tensor.device(), false), tensor, topology().local_rank_of(peer), tag, sends,
                           exposed_);
  }
  std::uint32_t counter = 0;
  {
    std::lock_guard lock(mutex_);
    counter = p2p_counters_[{peer, tag, sends}]++ & 0xFFFFFFu;
  }
  Call call(*this, OpKind::SendRecv, sends ? c10d::OpType::SEND : c10d::OpType::RECV, sends ? "send" : "recv",
            tensor.device(), timeout, 0, core::DType::UInt8, collective::p2p_seq(tag, counter));
  if (tensor.device().is_cpu() && is_flat_view(tensor)) {
    const auto bytes = bytes_of(tensor);
    const SendPiece out{peer, bytes};
    const ReceivePiece in{peer, bytes};
    return sends ? call.move(tensor, {&out, 1}, {}) : call.move(tensor, {}, {&in, 1});
  }
  struct State {
    at::Tensor device, host;
  };
  auto state = std::make_shared<State>();
  auto pre = [=] {
    state->device = flat(tensor);
    state->host = sends ? to_host(state->device) : host_room_for(state->device);
  };
  auto exchange = [=, this, context = call.context(state)] {
    const SendPiece out{peer, bytes_of(state->host)};
    const ReceivePiece in{peer, bytes_of(state->host)};
    return sends ? exchange_->move(context, {&out, 1}, {}) : exchange_->move(context, {}, {&in, 1});
  };
  auto post = [=] {
    from_host(state->device, state->host);
    if (!state->device.is_alias_of(tensor)) tensor.copy_(state->device.view(tensor.sizes()));
  };
  Steps steps{pre, exchange, nullptr};
  if (!sends) steps.post = post;
  return call.issue({tensor}, {tensor}, std::move(steps), Runs::Beside);
}

}  // namespace geocomm::binding
