"""The hooks to compare with: Deep Gradient Compression and PowerSGD; and the guard's way down, over real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from geocomm.metrics.events import EventReader
from geocomm.metrics.events import events as events_of_process
from support import planned_gradients as planned
from support.harness import Ranks, joined, ranks_fixture

ranks = ranks_fixture({"2+1": ["a", "b", "a"]}, time_limit=60)


def _net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(30, 200), nn.GELU(), nn.Linear(200, 200), nn.GELU(), nn.Linear(200, 5))


def _train(kind: str, steps: int) -> list[float]:
    import geocomm
    from geocomm.sync.gradients.dgc_hook import dgc_hook
    from geocomm.sync.gradients.power_sgd_hook import power_sgd_hook

    group = dist.new_group(pg_options=geocomm.Options(min_compress_bytes=1024))
    model = DistributedDataParallel(_net(), process_group=group, bucket_cap_mb=25 if kind == "power_sgd" else 0.1)
    if kind == "dgc":
        dgc_hook(model, 0.02, 0.9, geocomm.HookSettings(warmup_steps=2, exact_below=500), ramp_steps=5)
    elif kind == "dgc exact":
        dgc_hook(model, 0.5, 0.9, geocomm.HookSettings(warmup_steps=steps))
    elif kind == "power_sgd":
        power_sgd_hook(model, 4, warmup_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0 if "dgc" in kind else 0.9)
    return planned.losses_of_sines(model, optimizer, steps, lambda: geocomm.check_replicas(model))


@pytest.mark.parametrize("kind", ["dgc", "power_sgd"])
def test_net_trains_with(ranks: Ranks, kind: str) -> None:
    reference = ranks.run(_train, "exact", 10)
    for losses, exact in zip(ranks.run(_train, kind, 40), reference, strict=True):
        assert losses[:10] != exact
        assert sum(losses[-8:]) < 0.7 * sum(losses[:2]) * 4


def test_momentum_before_the_exact_reduction_is_that_of_the_optimizer(ranks: Ranks) -> None:
    reference = ranks.run(_train, "exact", 12)
    for losses, exact in zip(ranks.run(_train, "dgc exact", 12), reference, strict=True):
        assert losses == pytest.approx(exact, rel=1e-4)


def _momentum_over_reload() -> list[dict[str, torch.Tensor]]:
    """Gradients of steps 0 to 3 with a state that goes through a new hook after step 1, and without."""
    import geocomm
    from geocomm.sync.gradients.dgc_hook import dgc_hook

    def model() -> Any:
        group = dist.new_group(pg_options=geocomm.Options(min_compress_bytes=1024))
        made = DistributedDataParallel(planned.Planned(torch.float32), process_group=group, bucket_cap_mb=0.05)
        handle = dgc_hook(made, 0.05, 0.5, geocomm.HookSettings(warmup_steps=0, exact_below=500), ramp_steps=1)
        planned._rank.update(model=made, handle=handle)
        return handle

    handle = model()
    planned.run_steps(0, 2)
    state = handle.state_dict()
    without = planned.run_steps(2, 1)
    model().load_state_dict(state)
    return without + planned.run_steps(2, 1)


def test_state_of_dgc_has_the_momentum(ranks: Ranks) -> None:
    """The buckets of a new model are laid out anew, so chunks of top-k differ, but not the exact parameters."""
    for without, loaded in ranks.run(_momentum_over_reload):
        for name in ("norm_gain", "bias"):
            assert torch.allclose(without[name], loaded[name], atol=1e-5)


def _power_sgd_with_buckets() -> None:
    from geocomm.sync.gradients.power_sgd_hook import power_sgd_hook

    model = DistributedDataParallel(_net(), bucket_cap_mb=0.01)
    power_sgd_hook(model)
    for _ in range(2):  # DDP's first backward has one bucket always
        model(torch.ones(2, 30)).sum().backward()


def test_power_sgd_with_several_buckets_is_refused() -> None:
    with Ranks(["a", "b"], time_limit=60) as ranks:
        ranks.init()
        for outcome in ranks.outcomes(_power_sgd_with_buckets):
            assert outcome.failure is not None
            assert "bucket_cap_mb" in outcome.failure.message


def _power_sgd_with_unused_parameters() -> str:
    import geocomm
    from geocomm.sync.gradients.power_sgd_hook import power_sgd_hook

    model = DistributedDataParallel(_net(), find_unused_parameters=True)
    try:
        power_sgd_hook(model)
    except geocomm.InvalidArgumentError as error:
        return str(error)
    return ""


def test_power_sgd_with_unused_parameters_is_refused() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        assert all("find_unused_parameters" in message for message in ranks.run(_power_sgd_with_unused_parameters))
        ranks.destroy()


def _growing(step: int, rank: int, name: str) -> torch.Tensor:
    """Fixed directions of which a top-k of one in 4096 sends the same few."""
    seed = list(planned.SHAPES).index(name)
    values = torch.randn(planned.SHAPES[name], generator=torch.Generator().manual_seed(seed)).sign() * 0.01
    values.view(-1)[:3] = 100.0 / (1 + step)
    return values


def _fall_back() -> tuple[str, list[dict[str, Any]], list[bool], list[dict[str, Any]]]:
    planned.plan = _growing
    planned.make("topk:k=1", guard_steps=4)
    replicas = []
    for number in range(60):
        mean = planned.step(number)
        gathered = [torch.empty_like(mean["three"]) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mean["three"])
        replicas.append(all(torch.equal(one, mean["three"]) for one in gathered))
    stats = planned.handle().stats()
    events = [one.fields for one in EventReader(events_of_process).take() if one.kind == "codec_fallback"]
    return stats["codec"], stats["fallbacks"], replicas, events


def test_guard_falls_back_on_all_ranks_in_the_same_step() -> None:
    with joined(["a", "b", "a"], environment={"GEOCOMM_LOG": "warning"}, time_limit=60) as ranks:
        results = ranks.run(_fall_back)
        assert all(result == results[0] for result in results)
        codec, fallbacks, replicas, events = results[0]
        assert fallbacks
        assert codec == fallbacks[-1]["codec"] != "topk:k=1"
        assert [{name: event[name] for name in ("step", "codec", "reason")} for event in events] == fallbacks
        assert [event["before"] for event in events] == ["topk:k=1", *(one["codec"] for one in fallbacks[:-1])]
        assert all(replicas)
        assert ranks.output(0).count("on all ranks") == len(fallbacks)
        assert ranks.output(1).count("on all ranks") == 0
