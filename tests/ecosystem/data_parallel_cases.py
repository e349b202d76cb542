"""Data-parallel trainings, by whatever means torch has."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from training_cases import CLASSES, STEPS, WIDTH, Net, Trained, batch, digest_of, site_mesh, train


def ddp(**arguments: Any) -> Trained:
    net = Net()
    del net.other_head
    model = DistributedDataParallel(net, bucket_cap_mb=0.1, **arguments)
    return Trained(train(model, torch.optim.AdamW(net.parameters(), lr=1e-2)), digest_of(net.parameters()))


def ddp_with_optimizer_in_backward() -> Trained:
    """The optimizer steps the parameters of a bucket in the callback of its Future. (torch's own
    `_apply_optimizer_in_backward` needs a GPU under DDP.)"""
    net = Net()
    del net.other_head
    model = DistributedDataParallel(net, bucket_cap_mb=0.1)
    optimizers = {one: torch.optim.AdamW([one], lr=1e-2) for one in net.parameters()}

    def reduce_and_step(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def step(reduced: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            (buffer,) = reduced.value()
            for one, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                one.grad = gradient.clone()  # DDP wants the bucket's to itself
                optimizers[one].step()
            return buffer

        bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(step)

    reduce_and_step.__annotations__.clear()  # DDP wants classes there, not their names
    model.register_comm_hook(None, reduce_and_step)
    return Trained(train(model, _only_clears(net)), digest_of(net.parameters()))


def fsdp2_with_optimizer_in_backward() -> Trained:
    """Each parameter is stepped, and its gradient freed, as soon as its reduce-scatter is there."""
    from torch.distributed.fsdp import fully_shard

    net = Net()
    del net.other_head
    for layer in (net.body[0], net.body[2], net.head):
        fully_shard(layer)
    fully_shard(net)
    optimizers = {one: torch.optim.AdamW([one], lr=1e-2) for one in net.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for one in optimizers:
        one.register_post_accumulate_grad_hook(step)
    losses = train(net, _only_clears(net))
    assert all(one.grad is None for one in optimizers)
    return Trained(losses, digest_of(net.parameters()))


def _only_clears(net: nn.Module) -> torch.optim.Optimizer:
    """Backward has done the rest."""
    return torch.optim.SGD(net.parameters(), lr=0.0)


def ddp_with_sparse_embedding() -> Trained:
    """Gradients of the embedding are sparse and go by themselves; those of the linear layer in a bucket."""
    torch.manual_seed(7)
    net = nn.Sequential(nn.Embedding(50, WIDTH, sparse=True), nn.Linear(WIDTH, CLASSES))
    model = DistributedDataParallel(net)
    sparse = torch.optim.SparseAdam(net[0].parameters(), lr=1e-2)
    dense = torch.optim.SGD(net[1].parameters(), lr=1e-1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        words = (x[:, 0].abs() * 20).long().clamp(max=49)
        loss = (model(words) - y).square().mean()
        for optimizer in (sparse, dense):
            optimizer.zero_grad()
        loss.backward()
        assert net[0].weight.grad.is_sparse
        for optimizer in (sparse, dense):
            optimizer.step()
        losses.append(loss.item())
    return Trained(losses, digest_of(net.parameters()))


def ddp_with_head_of_the_step() -> Trained:
    """Ranks use different heads in the same step, so that a bucket is ready on one and unused on the other."""
    net = Net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.1, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        loss = (model(x, other=(step + dist.get_rank()) % 3 == 0) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, digest_of(net.parameters()))


def ddp_that_accumulates() -> Trained:
    net = Net()
    model = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(3):
            x, y = batch(10 * step + part)
            with model.no_sync() if part < 2 else contextlib.nullcontext():
                loss = (model(x) - y).square().mean()
                loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return Trained(losses, digest_of(net.parameters()))


def ddp_with_uneven_inputs(zero: bool) -> Trained:
    """The last rank has twice the batches of the others; `join` shadows the others' collectives."""
    from torch.distributed.algorithms.join import Join

    net = Net()
    del net.other_head
    model = DistributedDataParallel(net, bucket_cap_mb=0.1)
    optimizer: Any = (
        ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-2)
        if zero
        else torch.optim.SGD(net.parameters(), lr=1e-2)
    )
    losses = []
    last = dist.get_rank() == dist.get_world_size() - 1
    with Join([model, optimizer] if zero else [model]):
        for step in range(STEPS * (2 if last else 1)):
            x, y = batch(step)
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return Trained(losses, digest_of(net.parameters()))


def ddp_with_hook(name: str) -> Trained:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    net = Net()
    del net.other_head
    model = DistributedDataParallel(net)
    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, getattr(default_hooks, f"{name}_compress_hook"))
    return Trained(train(model, torch.optim.AdamW(net.parameters(), lr=1e-2)), digest_of(net.parameters()))


def zero_optimizer() -> Trained:
    net = Net()
    del net.other_head
    model = DistributedDataParallel(net, bucket_cap_mb=0.1)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-2)
    losses = train(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    state = optimizer.state_dict()["state"] if dist.get_rank() == 0 else {}
    moments = [entry["exp_avg"] for _, entry in sorted(state.items())]
    return Trained(losses, digest_of([*net.parameters(), *moments]))


def local_sgd(hierarchical: bool) -> Trained:
    """Post-local SGD: gradients are averaged inside a site, parameters between the sites every second step."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hooks
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    net = Net()
    del net.other_head
    model = DistributedDataParallel(net, bucket_cap_mb=0.1)
    mesh = site_mesh("site", "local")
    state = hooks.PostLocalSGDState(None, subgroup=mesh["local"].get_group(), start_localSGD_iter=1)
    model.register_comm_hook(state, hooks.post_localSGD_hook)
    size = dist.get_world_size()
    averager: Any = (
        HierarchicalModelAverager({1: mesh["local"].size(), 2: size}, warmup_steps=1)
        if hierarchical
        else PeriodicModelAverager(period=2, warmup_steps=1)
    )
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), lr=1e-2), averager)
    return Trained(train(model, optimizer), digest_of(net.parameters()))


def fsdp2(mixed: bool, reshard: bool) -> Trained:
    """Sharded inside a site, replicated between the sites."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    net = Net()
    del net.other_head
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    mesh = site_mesh("site", "local")
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(net, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = train(net, optimizer, clip=lambda: nn.utils.clip_grad_norm_(net.parameters(), 1.0))
    return Trained(losses, digest_of(net.parameters()))


def fsdp2_over_all_ranks() -> Trained:
    """Sharded over the ranks of all sites: parameters cross the WAN in every pass."""
    from torch.distributed.fsdp import fully_shard

    net = Net()
    del net.other_head
    fully_shard(net.body)
    fully_shard(net)
    losses = train(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    return Trained(losses, digest_of(net.parameters()))


def fsdp1(strategy: str) -> Trained:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, StateDictType

    net = Net()
    del net.other_head
    mesh = site_mesh("site", "local") if strategy == "HYBRID_SHARD" else None
    model = FullyShardedDataParallel(
        net,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy[strategy],
        device_mesh=mesh,
        use_orig_params=True,
    )
    losses = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), clip=lambda: model.clip_grad_norm_(1.0))
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = model.state_dict()
    return Trained(losses, digest_of(state.values()))
