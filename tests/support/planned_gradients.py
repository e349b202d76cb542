"""A model whose gradients the test chooses, so that what becomes of each is known; functions that ranks run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SHAPES = {
    "norm.gain": (70, 90),
    "one": (300, 41),
    "two": (64, 64),
    "bias": (300,),
    "three": (513, 20),
    "four": (129, 33),
}
ORDER = ("two", "bias", "four", "one", "norm.gain", "three")
"""Of use, which is not that of definition: DDP's second layout of buckets differs from the first."""

Plan = Callable[[int, int, str], torch.Tensor]
_rank: dict[str, Any] = {}  # of the rank process: model, handle


class Planned(nn.Module):
    """The gradient of every parameter is what `plan(step, rank, name)` says."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {name.replace(".", "_"): nn.Parameter(torch.zeros(shape, dtype=dtype)) for name, shape in SHAPES.items()}
        )

    def forward(self, step: int) -> torch.Tensor:
        total = torch.zeros(())
        for name in ORDER:
            weight = self.weights[name.replace(".", "_")]
            total = total + (weight * plan(step, dist.get_rank(), name).to(weight)).sum()
        return total


def plan(step: int, rank: int, name: str) -> torch.Tensor:
    """Normal numbers, from a seed."""
    seed = 1_000_003 * step + 1009 * rank + list(SHAPES).index(name)
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed))


def make(
    codec: str,
    dtype: torch.dtype = torch.float32,
    ddp: dict[str, Any] | None = None,
    device: str = "cpu",
    **settings: Any,
) -> None:
    """The model and its hook, on a group that compresses small buckets too."""
    import geocomm

    group = dist.new_group(pg_options=geocomm.Options(min_compress_bytes=1024))
    ddp = {"bucket_cap_mb": 0.05} | (ddp or {})
    model = DistributedDataParallel(Planned(dtype).to(device), process_group=group, **ddp)
    settings = {"warmup_steps": 0, "exact_below": 500} | settings
    _rank.update(
        model=model, handle=geocomm.ddp_hook(model, geocomm.HookSettings(codec=codec, **settings)), group=group
    )


def handle() -> Any:
    return _rank["handle"]


def gradients() -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("weights."): parameter.grad.detach().clone().cpu()
        for name, parameter in _rank["model"].module.named_parameters()
        if parameter.grad is not None
    }


def step(number: int, spoiled: tuple[int, str] | None = None) -> dict[str, torch.Tensor]:
    """One backward; the reduced gradients. spoiled: rank and parameter whose gradient gets an infinity."""
    model = _rank["model"]
    model.zero_grad()
    loss = model(number)
    if spoiled and dist.get_rank() == spoiled[0]:
        loss = loss + model.module.weights[spoiled[1]].view(-1)[0] * float("inf")
    loss.backward()
    return gradients()


def run_steps(first: int, count: int) -> list[dict[str, torch.Tensor]]:
    return [step(number) for number in range(first, first + count)]


def layout() -> list[list[str]]:
    """Parameters of each bucket that was compressed."""
    return [row["parameters"] for row in handle().stats()["buckets"]]


def state() -> dict[str, Any]:
    return handle().state_dict()


def load(states: list[dict[str, Any]]) -> None:
    handle().load_state_dict(states[dist.get_rank()])


def held(states: list[dict[str, Any]], kind: str = "residual") -> dict[str, torch.Tensor]:
    """Sum over all ranks of what they hold, by parameter, flat."""
    total = {name.replace(".", "_"): torch.zeros(shape).view(-1).double() for name, shape in SHAPES.items()}
    for one in states:
        for name, pieces in one[kind].items():
            for start, values in pieces:
                total[name.removeprefix("weights.")][start : start + values.numel()] += values
    return total


def planned_sum(steps: range, ranks: int) -> dict[str, torch.Tensor]:
    """Of all gradients that went in, flat."""
    return {
        name.replace(".", "_"): sum(plan(s, r, name).double() for s in steps for r in range(ranks)).view(-1)
        for name in SHAPES
    }


def given(results: list[dict[str, torch.Tensor]], ranks: int) -> dict[str, torch.Tensor]:
    """Of all means that came out, times the ranks, flat."""
    return {name: sum(one[name].double() for one in results).view(-1) * ranks for name in results[0]}


def assert_conserved(
    results: list[dict[str, torch.Tensor]],
    states: list[dict[str, Any]],
    steps: range,
    rel: float = 1e-5,
    *,
    held_in: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]] | None = None,
) -> None:
    """What came out and what the states still hold is what went in. held_in: of the states, in place of `held`."""
    ranks = len(states)
    out, kept, went_in = given(results, ranks), (held_in or held)(states), planned_sum(steps, ranks)
    for name, total in went_in.items():
        error = (out[name] + kept[name] - total).abs().max()
        assert error <= rel * total.abs().max() * len(steps), (name, error)


def losses_of_sines(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, after_step: Callable[[], None]
) -> list[float]:
    """Train `model`, from 30 numbers to 5, on the sines of some of them; every rank has its own data."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(steps):
        x = torch.randn(32, 30, generator=generator)
        loss = (model(x) - x[:, :5].sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()
        losses.append(loss.item())
    return losses


def assert_same_bits(results: list[list[dict[str, torch.Tensor]]]) -> None:
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)
