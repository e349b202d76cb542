"""What the training cases share: a net, its data, and what a training is compared by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

STEPS = 4
WIDTH = 40
CLASSES = 8


@dataclass
class Trained:
    """Loss of each step on this rank, and the SHA-256 of the parameters at the end."""

    losses: list[float]
    digest: str
    wire_bytes: int = 0  # that geocomm sent to other sites meanwhile


class Net(nn.Module):
    """Two linear layers and one of two heads: which one decides what gets a gradient."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
        self.head = nn.Linear(200, CLASSES)
        self.other_head = nn.Linear(200, CLASSES)

    def forward(self, x: torch.Tensor, other: bool = False) -> torch.Tensor:
        return (self.other_head if other else self.head)(self.body(x))


def batch(step: int, rank: int | None = None, rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, the same in every run; rank: this one's."""
    rank = dist.get_rank() if rank is None else rank
    x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
    return x, x[:, :CLASSES].sin()


def train(
    model: Callable[[torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    rank: int | None = None,
    *,
    clip: Callable[[], object] | None = None,
) -> list[float]:
    losses = []
    for step in range(STEPS):
        x, y = batch(step, rank)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if clip:
            clip()
        optimizer.step()
        losses.append(loss.item())
    return losses


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        digest.update(local.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def site_mesh(first: str, second: str) -> dist.DeviceMesh:
    """Sites by ranks of a site, for equal sites named in the order of their ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    sites = int(os.environ["CASE_SITES"])
    return init_device_mesh("cpu", (sites, dist.get_world_size() // sites), mesh_dim_names=(first, second))


def measured(case: Callable[..., Trained], *arguments: object) -> Trained:
    """The result of the case, with what geocomm sent to other sites meanwhile."""
    if dist.get_backend() != "geocomm":
        return case(*arguments)
    import geocomm

    before = _sent()
    trained = case(*arguments)
    trained.wire_bytes = _sent() - before
    assert geocomm.last_error() is None
    return trained


def _sent() -> int:
    import geocomm

    return sum(peer["payload_sent"] for peer in geocomm.stats()["peers"])
