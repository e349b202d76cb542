"""An FSDP2 model over sites whose gradients the test chooses (planned_gradients.py); functions that ranks run."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from support import planned_gradients as planned

PARTS = (("one", "two", "bias"), ("three", "norm.gain"))
"""Of the model, each reduced by itself; the rest is the root's."""
_rank: dict[str, Any] = {}


class _Part(nn.Module):
    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names
        self.weights = nn.ParameterDict(
            {name.replace(".", "_"): nn.Parameter(torch.zeros(planned.SHAPES[name])) for name in names}
        )

    def forward(self, step: int, without: str = "") -> torch.Tensor:
        total = torch.zeros(())
        for name in self.names:
            if name != without:
                weight = self.weights[name.replace(".", "_")]
                total = total + (weight * planned.plan(step, dist.get_rank(), name).to(weight)).sum()
        return total


class _Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([_Part(names) for names in PARTS])
        self.rest = _Part(("four",))

    def forward(self, step: int, without: str = "") -> torch.Tensor:
        return self.rest(step) + sum(part(step, without) for part in self.parts)


def make(codec: str | None, reduce_dtype: torch.dtype | None = None, device: str = "cpu", **settings: Any) -> None:
    """The model and its hook, on a group that compresses small buffers too; codec None: no hook."""
    import geocomm

    model = _Whole()
    mesh = geocomm.device_mesh(device)
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    for part in model.parts:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    _rank.update(model=model, handle=None)
    if codec is not None:
        # Without scales, which are not in the state, a loaded one goes on bit for bit.
        settings = {"warmup_steps": 0, "exact_below": 500, "adaptive": False} | settings
        _rank["handle"] = geocomm.fsdp_hook(model, geocomm.HookSettings(codec=codec, **settings))


def handle() -> Any:
    return _rank["handle"]


def model() -> Any:
    return _rank["model"]


def gradients() -> dict[str, torch.Tensor]:
    return {
        _short(name): parameter.grad.full_tensor().clone().cpu()
        for name, parameter in model().named_parameters()
        if parameter.grad is not None
    }


def step(number: int, spoiled: tuple[int, str] | None = None) -> dict[str, torch.Tensor]:
    """One backward; the reduced gradients. spoiled: rank and parameter one element of whose gradient is infinite."""
    model().zero_grad()
    plan = planned.plan

    def spoil(step: int, rank: int, name: str) -> torch.Tensor:
        values = plan(step, rank, name)
        if (rank, name) == spoiled:
            values.view(-1)[0] = float("inf")
        return values

    planned.plan = spoil
    try:
        model()(number).backward()
    finally:
        planned.plan = plan
    return gradients()


def run_steps(first: int, count: int) -> list[dict[str, torch.Tensor]]:
    return [step(number) for number in range(first, first + count)]


def state() -> dict[str, Any]:
    return handle().state_dict()


def load(states: list[dict[str, Any]]) -> None:
    handle().load_state_dict(states[dist.get_rank()])


def held(states: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Sum over all ranks of what they owe to the sum of all ranks' gradients, by parameter, flat."""
    total = {name.replace(".", "_"): torch.zeros(shape).view(-1).double() for name, shape in planned.SHAPES.items()}
    for one in states:
        for name, pieces in one["residual"].items():
            flat = total[_short(name)]
            rows = planned.SHAPES[_short(name).replace("norm_gain", "norm.gain")][0]
            begin = one["shard"] * -(-rows // one["shards"]) * (flat.numel() // rows)
            for start, values in pieces:
                flat[begin + start : begin + start + values.numel()] += values * one["shards"]
    return total


def _short(name: str) -> str:
    return name.rpartition(".")[2]
