"""What ranks do in tests of publishers of shards."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from geocomm.weights.publisher import WeightPublisher
from support import engine_sites

_state: dict[str, Any] = {}


def make_fsdp(place: str) -> None:
    """A model with uneven shards, one of which is empty at the last rank, and an optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 31), nn.ReLU(), nn.Linear(31, 1, bias=False))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    _state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.01)
    _state["model"] = model
    _state["publisher"] = WeightPublisher(place, model, anchor_every=3, dtype=torch.bfloat16)


def step(version: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Train and publish; the whole weights as they are published."""
    model, optimizer = _state["model"], _state["optimizer"]
    torch.manual_seed(version)
    model(torch.randn(4, model[0].in_features)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    _state["publisher"].publish(step=version, wait=True)
    return {name: one.full_tensor().to(dtype, copy=True) for name, one in model.state_dict().items()}


def make_mesh(place: str) -> dict[str, torch.Tensor]:
    """Tensors in several placements on a mesh of two by two ranks, and a plain one."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    torch.manual_seed(0)
    whole = {name: torch.randn(6, 10) for name in ("rows", "columns", "both", "same")}
    placements = {
        "rows": (Replicate(), Shard(0)),
        "columns": (Replicate(), Shard(1)),
        "both": (Shard(0), Shard(1)),
        "same": (Replicate(), Replicate()),
    }
    tensors: dict[str, torch.Tensor] = {
        name: distribute_tensor(one, mesh, placements[name]) for name, one in whole.items()
    }
    tensors["plain"] = torch.full((3,), 5.0 if dist.get_rank() == 0 else 6.0)
    with WeightPublisher(place, tensors) as publisher:
        publisher.publish(wait=True)
    return {**whole, "plain": torch.full((3,), 5.0)}


def plain_on_all(place: str) -> int:
    """Each rank publishes the same plain tensors, as under DDP."""
    with WeightPublisher(place, {"w": torch.ones(5)}) as publisher:
        publisher.publish(wait=True)
        return publisher.last()


def fail_at(rank: int, place: str) -> str:
    """A version whose frames one rank cannot write; then one that all can."""
    from pathlib import Path

    from geocomm.core.errors import DataError
    from geocomm.data.places import Folder

    publisher: WeightPublisher = _state["publisher"]
    before = Folder.create

    def create(self: Folder, path: str, content: bytes) -> bool:
        if dist.get_rank() == rank and path.startswith("frames/"):
            raise OSError(28, "No space left on device")
        return before(self, path, content)

    Folder.create = create  # type: ignore[method-assign]
    try:
        publisher.publish(wait=True)
    except DataError as error:
        return str(error)
    finally:
        Folder.create = before  # type: ignore[method-assign]
        assert Path(place).exists()
    return ""


def close() -> None:
    """End the publisher."""
    _state["publisher"].close()


def wrapped(wrapper: str, place: str) -> dict[str, torch.Tensor]:
    """Train a model in a wrapper and publish it by that; the weights as the model itself has them."""
    model, engine = engine_sites.make_model(), None
    if wrapper.startswith("zero"):
        engine = engine_sites.make_engine(int(wrapper[-1]), "bf16")
        model, source = engine.module, engine
    else:
        source = DistributedDataParallel(model) if wrapper == "ddp" else torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WeightPublisher(place, source) as publisher:
        for step in range(3):
            if engine is not None:
                engine_sites.train_engine(engine, "a", step, step + 1)
            else:
                trained = model if wrapper == "compile" else source  # torch.compile is not what is tried
                inputs, targets = engine_sites.batch("a", step)
                torch.nn.functional.cross_entropy(trained(inputs), targets).backward()
                optimizer.step()
            publisher.publish(step=step, wait=True)
    if wrapper == "zero3":
        return engine_sites.whole_weights(engine)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def make_two_dimensional(place: str) -> None:
    """FSDP2 over tensor parallelism, as torchtitan has it, with rows that four ranks do not share evenly."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shards", "tensors"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6))
    parallelize_module(model, mesh["tensors"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["shards"])
    assert any(type(one).__name__ == "_StridedShard" for one in model[0].weight.placements)
    _state["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.01)
    _state["model"] = model
    _state["publisher"] = WeightPublisher(place, model)
