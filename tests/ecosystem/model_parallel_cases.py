"""Tensor and pipeline parallelism across sites and inside them, and checkpoints of what is sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from training_cases import CLASSES, STEPS, WIDTH, Net, Trained, batch, digest_of, site_mesh, train


def tensor_parallel() -> Trained:
    """Layers split over the ranks of all sites: each forward and backward pass crosses the WAN."""
    from torch.distributed.device_mesh import init_device_mesh

    net = Net()
    del net.other_head
    plan = {"body.0": ColwiseParallel(), "body.2": RowwiseParallel()}
    parallelize_module(net, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    losses = train(net, torch.optim.SGD(net.parameters(), lr=1e-2), rank=0)
    return Trained(losses, digest_of(net.parameters()))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def _stages(count: int) -> list[nn.Module]:
    """A net cut in pieces; every rank makes all and keeps its own."""
    torch.manual_seed(5)
    stages: list[nn.Module] = [nn.Sequential(Layer(), Layer()) for _ in range(count)]
    stages[-1].append(nn.Linear(WIDTH, CLASSES))
    return stages


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def _run_pipeline(schedule: Any, first: bool, last: bool, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for step in range(STEPS):
        x, y = batch(step, rank=0)
        of_parts: list[torch.Tensor] = []
        optimizer.zero_grad()
        inputs = (x,) if first else ()
        schedule.step(*inputs, **({"target": y, "losses": of_parts} if last else {}))
        optimizer.step()
        losses.extend(loss.item() for loss in of_parts)
    return losses


def pipeline(schedule_name: str, stages_per_rank: int) -> Trained:
    """A stage, or several, on each rank: activations and their gradients cross the WAN."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = size * stages_per_rank
    parts = _stages(count)
    own = {number: parts[number] for number in range(rank, count, size)}
    stages = [PipelineStage(part, number, count, torch.device("cpu")) for number, part in own.items()]
    make = getattr(schedules, schedule_name)
    schedule = make(stages if stages_per_rank > 1 else stages[0], n_microbatches=4, loss_fn=_loss)
    parameters = [parameter for part in own.values() for parameter in part.parameters()]
    losses = _run_pipeline(schedule, 0 in own, count - 1 in own, torch.optim.SGD(parameters, lr=1e-2))
    return Trained(losses, digest_of(parameters))


def pipeline_of_tensor_parallel_sites() -> Trained:
    """Each site is a stage, whose layers are split over its ranks."""
    mesh = site_mesh("stage", "tensor")
    number, count = mesh["stage"].get_local_rank(), mesh["stage"].size()
    part = _stages(count)[number]
    for layer in part:
        if isinstance(layer, Layer):
            parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    stage = PipelineStage(part, number, count, torch.device("cpu"), group=mesh["stage"].get_group())
    schedule = schedules.Schedule1F1B(stage, n_microbatches=4, loss_fn=_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-2)
    losses = _run_pipeline(schedule, number == 0, number == count - 1, optimizer)
    return Trained(losses, digest_of(part.parameters()))


def checkpoint_of_fsdp(folder: str, background: bool) -> Trained:
    """Trains, saves, trains on; a net that loads the checkpoint must learn the same from there."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    def sharded_net() -> tuple[nn.Module, torch.optim.Optimizer]:
        net = Net()
        del net.other_head
        fully_shard(net.body)
        fully_shard(net)
        return net, torch.optim.AdamW(net.parameters(), lr=1e-2)

    path = Path(folder) / dist.get_backend()
    net, optimizer = sharded_net()
    losses = train(net, optimizer)
    model_state, optimizer_state = get_state_dict(net, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    if background:
        dcp.async_save(state, checkpoint_id=path, process_group=dist.new_group(backend="gloo")).result()
    else:
        dcp.save(state, checkpoint_id=path)
    losses += train(net, optimizer)

    again, optimizer = sharded_net()
    model_state, optimizer_state = get_state_dict(again, optimizer)
    loaded = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(loaded, checkpoint_id=path)
    set_state_dict(again, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    assert train(again, optimizer) == losses[STEPS:]
    assert digest_of(again.parameters()) == digest_of(net.parameters())
    return Trained(losses, digest_of(net.parameters()))
