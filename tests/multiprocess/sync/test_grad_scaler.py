"""The recipe for GradScaler in docs/how-to/use-ddp-and-fsdp-hooks.md: residuals follow the loss scale, steps that
overflow leave them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support import planned_gradients as planned
from support.harness import Ranks
from support.planned_gradients import assert_same_bits

GUIDE = Path(__file__).parents[3] / "docs/how-to/use-ddp-and-fsdp-hooks.md"


def _recipe() -> Callable[..., None]:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "def step_with_scale" in block]
    names: dict[str, Any] = {}
    exec(block, names)
    return names["step_with_scale"]


def _planned() -> tuple[list[dict[str, torch.Tensor] | None], list[float], dict[str, Any]]:
    """The unscaled gradients of each step (None: skipped), the scale after it, the state at the end."""
    planned.make("int4")
    model, step_with_scale = planned._rank["model"], _recipe()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    results: list[dict[str, torch.Tensor] | None] = []
    scales = []
    for number in range(8):
        optimizer.zero_grad()
        loss = model(number)
        if number == 3 and dist.get_rank() == 1:
            loss = loss + model.module.weights["two"].view(-1)[0] * float("inf")
        scaler.scale(loss).backward()
        step_with_scale(scaler, optimizer, planned.handle())
        results.append(None if number == 3 else planned.gradients())
        scales.append(scaler.get_scale())
    return results, scales, planned.state()


def test_residuals_follow_the_scale_up_and_down_and_skipped_steps_leave_them() -> None:
    with Ranks(["a", "a", "b"]) as ranks:
        ranks.init()
        outcomes = ranks.run(_planned)
        ranks.destroy()
    results = [[one for one in steps if one is not None] for steps, _, _ in outcomes]
    assert_same_bits(results)
    scales = outcomes[0][1]
    assert scales == [64, 128, 128, 64, 64, 128, 128, 256]
    out, kept = planned.given(results[0], 3), planned.held([state for _, _, state in outcomes])
    went_in = planned.planned_sum(range(3), 3), planned.planned_sum(range(4, 8), 3)
    for name in planned.SHAPES:
        name = name.replace(".", "_")
        assert torch.allclose(out[name] + kept[name] / scales[-1], went_in[0][name] + went_in[1][name], atol=1e-3)


def _train(codec: str) -> tuple[list[float], int, float]:
    """Losses of a small net in float16 arithmetic, steps skipped, the last scale."""
    import geocomm

    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(30, 200), nn.GELU(), nn.Linear(200, 200), nn.GELU(), nn.Linear(200, 5))
    group = dist.new_group(pg_options=geocomm.Options(min_compress_bytes=1024))
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.1)
    handle = geocomm.ddp_hook(model, geocomm.HookSettings(codec=codec, warmup_steps=0, exact_below=500))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=10)
    step_with_scale = _recipe()
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(50):
        x = torch.randn(32, 30, generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        loss = (out.float() - x[:, :5].sin()).square().mean()
        scaler.scale(loss).backward()
        step_with_scale(scaler, optimizer, handle)
        geocomm.check_replicas(model, optimizer)
        losses.append(loss.item())
    return losses, handle.stats()["skipped_steps"], scaler.get_scale()


def test_net_in_float16_trains_with_overflowing_steps() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        results, exact = ranks.run(_train, "balanced"), ranks.run(_train, "none")
        ranks.destroy()
    for (losses, skipped, scale), (reference, _, _) in zip(results, exact, strict=True):
        assert skipped > 0
        assert scale < 2.0**24
        assert sum(losses[-8:]) == pytest.approx(sum(reference[-8:]), rel=0.3)
        assert sum(losses[-8:]) < 0.7 * sum(losses[:8])
