"""Models that the ranks of a site share, under DDP, FSDP2 or DeepSpeed, and ways to train them; ranks run these."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import geocomm
from support.local_models import batch, make_model


def site_mesh() -> DeviceMesh:
    """Over the ranks of this rank's site; every rank calls it."""
    if geocomm.sites().have_equal_sizes:
        return geocomm.device_mesh("cpu")["local"]
    return DeviceMesh.from_group(geocomm.sites().inside, "cpu")


def fsdp(sites: list[str], *, low_precision: bool = False) -> nn.Module:
    """Most parameters have a number of rows that two ranks cannot share equally."""
    model, mesh = make_model(), site_mesh()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if low_precision else None)
    fully_shard(model[2], mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def hsdp(sites: list[str]) -> nn.Module:
    """Every rank of a site has all rows."""
    world = geocomm.device_mesh("cpu").mesh
    mesh = DeviceMesh("cpu", world.unsqueeze(-1), mesh_dim_names=("site", "copies", "rows"))["copies", "rows"]
    return fully_shard(make_model(), mesh=mesh)


def ddp(sites: list[str]) -> nn.Module:
    return DistributedDataParallel(make_model(), process_group=geocomm.sites().inside)


def whole(model: nn.Module) -> torch.Tensor:
    """The values of all parameters, sharded ones gathered; collective over the ranks of the site."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    found = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    return torch.cat([one.detach().reshape(-1) for one in found])


@contextlib.contextmanager
def without_reduction(model: nn.Module) -> Iterator[None]:
    """For micro-batches but the last: gradients stay where they are."""
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        yield


def _spoil(gradient: torch.Tensor | None) -> None:
    """Of one element; of a sharded gradient at the first rank alone."""
    assert gradient is not None
    if not isinstance(gradient, DTensor):
        gradient.view(-1)[0] = float("inf")
    elif gradient.device_mesh.get_local_rank() == 0:
        gradient.to_local().view(-1)[0] = float("inf")


Train = Callable[[nn.Module, Any, str, int], None]
"""Trains a model with its optimizer at a site for so many steps."""


def _train(
    model: nn.Module,
    optimizer: Any,
    site: str,
    steps: int,
    *,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
    micro_batches: int = 1,
    clip: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> None:
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(micro_batches):
            inputs, targets = batch(site, 100 * part + step)
            with without_reduction(model) if part < micro_batches - 1 else contextlib.nullcontext():
                loss = nn.functional.cross_entropy((forward or model)(inputs).float(), targets)
                scaler.scale(loss / micro_batches).backward()
        if scaler.is_enabled() and step % 4 == 1:
            _spoil(next(model.parameters()).grad)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()


def _accumulated(model: nn.Module, optimizer: Any, site: str, steps: int) -> None:
    _train(model, optimizer, site, steps, micro_batches=2)


def _clipped(model: nn.Module, optimizer: Any, site: str, steps: int) -> None:
    _train(model, optimizer, site, steps, clip=0.5)


def _scaled(model: nn.Module, optimizer: Any, site: str, steps: int) -> None:
    """Every fourth step is skipped."""
    _train(model, optimizer, site, steps, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))


def _checkpointed(model: nn.Module, optimizer: Any, site: str, steps: int) -> None:
    _train(model, optimizer, site, steps, forward=lambda x: checkpoint(model, x, use_reentrant=False))


def _compiled(model: nn.Module, optimizer: Any, site: str, steps: int) -> None:
    """The whole step is, with the optimizer's; not to machine code, which would take a minute."""

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    compiled = torch.compile(step, backend="eager")
    for number in range(steps):
        compiled(*batch(site, number))


def _low_precision(model: nn.Module, optimizer: Any, site: str, steps: int) -> None:
    """bf16 computes; what FSDP2's policy does, by hand where the model is an ordinary one."""

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        low = {name: one.bfloat16() for name, one in model.named_parameters()}
        return functional_call(model, low, inputs)

    _train(model, optimizer, site, steps, forward=None if isinstance(model, FSDPModule) else forward)


def _plain(model: nn.Module, optimizer: Any, site: str, steps: int) -> None:
    _train(model, optimizer, site, steps)


MODELS: dict[str, Callable[[list[str]], nn.Module]] = {"fsdp": fsdp, "hsdp": hsdp, "ddp": ddp}
WAYS: dict[str, Train] = {
    "plain": _plain,
    "accumulated": _accumulated,
    "clipped": _clipped,
    "scaled": _scaled,
    "checkpointed": _checkpointed,
    "compiled": _compiled,
    "low precision": _low_precision,
}
