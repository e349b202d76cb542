#include "binding/module/wan_group.h"

#include <utility>

#include "binding/torch/comm_error.h"
#include "binding/torch/python_thread.h"
#include "collective/layout/neighbours.h"
#include "core/fork.h"

namespace geocomm::binding {

using core::StatusCode;

std::shared_ptr<WanCollectives> start_wan_collectives(const std::shared_ptr<ProcessResources>& process,
                                                      WanGroup config) {
  const auto& topology = config.topology;
  if (topology.local_size() > 1 && config.inner.empty()) {
    throw_status(StatusCode::InvalidArgument, "a site of several ranks needs inner backends");
  }
  process->endpoint->allow(config.token);
  // Weak: the endpoint holds operations, and these the way to their peers. The group keeps it.
  const auto channel_to = [weak = std::weak_ptr(process), peers = config.peers, token = config.token](
                              int peer) -> core::Result<std::shared_ptr<transport::Channel>> {
    const auto open = weak.lock();
    if (!open) return core::Status(StatusCode::Aborted, "the process group was destroyed");
    return open->endpoint->connect(peers[static_cast<std::size_t>(peer)], token);
  };
  std::vector<std::shared_ptr<transport::Channel>> neighbours;
  for (const int peer : collective::neighbours_of(topology)) {
    neighbours.push_back(value_or_throw(channel_to(peer)));
  }
  auto exchange = value_or_throw(
      collective::Exchange::create(collective::ExchangeConfig{.group = config.group,
                                                              .topology = topology,
                                                              .channel_to = channel_to,
                                                              .policy = std::move(config.policy),
                                                              .min_compress_bytes = config.min_compress_bytes,
                                                              .pool = &process->pool,
                                                              .buffers = &process->buffers}));
  auto notice = std::make_shared<FailureNotice>(config.group, std::move(neighbours), blocking_executor(),
                                                process->buffers);
  // Weak, as the way to the peers: the endpoint holds operations.
  auto close_group = [resources = std::weak_ptr(process), group = config.group](
                         const core::Status& why, transport::QueuedChunks queued) {
    if (const auto held = resources.lock()) held->endpoint->close_group(group, why, queued);
  };
  // The last to let go of it may be Python, with a Work. It uses the pool and the buffers of the process. A
  // forked child leaks it: it has Gloo's groups, and neither their threads nor ours.
  std::shared_ptr<WanCollectives> wan(
      new WanCollectives(std::move(exchange), config.inner, config.preserve_inputs, std::move(notice),
                         std::move(close_group)),
      [held = process, mark = core::ProcessMark()](WanCollectives* freed) mutable {
        const GilRelease released;
        if (mark.is_here()) delete freed;
        held.reset();
      });
  wan->start();
  return wan;
}

}  // namespace geocomm::binding
