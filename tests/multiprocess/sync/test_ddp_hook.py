"""ddp_hook over real ranks: what a codec loses comes later, whatever DDP does with its buckets."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support import planned_gradients as planned
from support.harness import Ranks, ranks_fixture
from support.planned_gradients import assert_same_bits

LAYOUTS = {"2+1": ["a", "a", "b"], "1+1+1": ["a", "b", "c"]}
CODECS = ["int8", "int4", "balanced", "topk:k=64", "bit1", "tiny", "loco"]


ranks = ranks_fixture(LAYOUTS)


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_codec_loses_is_held_also_when_buckets_are_rebuilt(ranks: Ranks, codec: str) -> None:
    ranks.run(planned.make, codec)
    results = ranks.run(planned.run_steps, 0, 1)
    before = ranks.run(planned.layout)
    more = ranks.run(planned.run_steps, 1, 4)
    assert ranks.run(planned.layout) != before
    everything = [first + rest for first, rest in zip(results, more, strict=True)]
    assert_same_bits(everything)
    states = ranks.run(planned.state)
    planned.assert_conserved(everything[0], states, range(5))
    assert sum(values.abs().sum() for values in planned.held(states).values()) > 0


def test_parameters_by_name_or_size_go_exactly(ranks: Ranks) -> None:
    ranks.run(planned.make, "bit1")
    results = ranks.run(planned.run_steps, 0, 3)
    kept = planned.held(ranks.run(planned.state))
    for number, result in enumerate(results[0]):
        went_in = planned.planned_sum(range(number, number + 1), ranks.size)
        for name, mean in result.items():
            exact = (mean.view(-1) * ranks.size - went_in[name]).abs().max() < 1e-5
            assert exact == (name in ("norm_gain", "bias")), name
    assert not kept["norm_gain"].any()
    assert not kept["bias"].any()


def test_first_steps_are_exact_and_a_loaded_residual_comes_out_in_one(ranks: Ranks) -> None:
    ranks.run(planned.make, "bit1")
    ranks.run(planned.run_steps, 0, 3)
    states = ranks.run(planned.state)
    ranks.run(partial(planned.make, "bit1", warmup_steps=100))
    ranks.run(planned.load, states)
    result = ranks.run(planned.run_steps, 7, 1)
    out, went_in, kept = (
        planned.given(result[0], ranks.size),
        planned.planned_sum(range(7, 8), ranks.size),
        planned.held(states),
    )
    for name, values in out.items():
        assert torch.allclose(values, went_in[name] + kept[name], atol=1e-4)
    assert not any(values.any() for values in planned.held(ranks.run(planned.state)).values())


def test_bfloat16_gradients_lose_no_more_than_their_rounding(ranks: Ranks) -> None:
    ranks.run(planned.make, "balanced", torch.bfloat16)
    results = ranks.run(planned.run_steps, 0, 4)
    assert_same_bits(results)
    planned.assert_conserved(results[0], ranks.run(planned.state), range(4), rel=2e-2)


def _accumulate() -> list[dict[str, torch.Tensor]]:
    planned.make("int4")
    model = planned._rank["model"]
    results = []
    for number in range(3):
        model.zero_grad()
        with model.no_sync():
            model(2 * number).backward()
        model(2 * number + 1).backward()
        results.append(planned.gradients())
    return results


def test_gradients_accumulated_without_sync_count_once(ranks: Ranks) -> None:
    results = ranks.run(_accumulate)
    assert_same_bits(results)
    planned.assert_conserved(results[0], ranks.run(planned.state), range(6))


@pytest.mark.parametrize(
    "ddp", [{"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}]
)
def test_ways_of_ddp_conserve_too(ranks: Ranks, ddp: dict[str, Any]) -> None:
    ranks.run(planned.make, "balanced", torch.float32, ddp)
    results = ranks.run(planned.run_steps, 0, 4)
    assert_same_bits(results)
    planned.assert_conserved(results[0], ranks.run(planned.state), range(4))


def _join() -> int:
    planned.make("int8")
    model = planned._rank["model"]
    steps = 2 + dist.get_rank()
    with model.join():
        for number in range(steps):
            model.zero_grad()
            model(number).backward()
    return planned.handle().stats()["steps"]


def test_ranks_with_fewer_steps_join(ranks: Ranks) -> None:
    assert ranks.run(_join) == [1 + ranks.size] * ranks.size


def _train(codec: str, steps: int) -> tuple[list[float], dict[str, Any]]:
    """Losses of a small net; check_replicas in every step."""
    import geocomm

    torch.manual_seed(5)
    net = nn.Sequential(
        nn.Linear(30, 200), nn.LayerNorm(200), nn.GELU(), nn.Linear(200, 200), nn.GELU(), nn.Linear(200, 5)
    )
    group = dist.new_group(pg_options=geocomm.Options(min_compress_bytes=1024))
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.1)
    handle = geocomm.ddp_hook(model, geocomm.HookSettings(codec=codec, warmup_steps=2, exact_below=500, guard_steps=5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = planned.losses_of_sines(model, optimizer, steps, lambda: geocomm.check_replicas(model, optimizer))
    own = handle.stats()
    return losses, own | {"own": own, "shown": geocomm.stats()["gradients"]}


SLOW = [pytest.param(codec, marks=pytest.mark.slow) for codec in ("int8", "tiny")]


@pytest.mark.parametrize("codec", ["balanced", *SLOW])
def test_net_trains_and_replicas_stay_identical(ranks: Ranks, codec: str) -> None:
    results = ranks.run(_train, codec, 40)
    exact = ranks.run(_train, "none", 10)
    for (losses, stats), (reference, _) in zip(results, exact, strict=True):
        assert losses[:10] != reference
        assert sum(losses[-8:]) < 0.6 * sum(losses[:2]) * 4
        assert (stats["steps"], stats["skipped_steps"], stats["fallbacks"]) == (40, 0, [])
        assert stats["codec"] == codec
        assert stats["own"] in stats["shown"]
    rows = [row for _, stats in results for row in stats["buckets"]]
    assert all(0 < row["nmse"] < 1 and row["ef_norm"] > 0 for row in rows if row["elements"])
    assert sum(row["wire_bytes"] for row in rows) > 0
