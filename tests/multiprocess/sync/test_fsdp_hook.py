"""fsdp_hook over real ranks: shards inside the sites, error feedback between their replicas."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import geocomm
from support import planned_gradients as planned
from support import sharded_gradients as sharded
from support.harness import Ranks, through_a_file
from support.planned_gradients import assert_same_bits

LAYOUTS = {"1+1": pytest.param(["a", "b"], marks=pytest.mark.slow), "2+2": ["a", "a", "b", "b"]}
SMALL = {"GEOCOMM_MIN_COMPRESS_BYTES": "1024"}


@pytest.fixture(scope="module", params=LAYOUTS.values(), ids=LAYOUTS.keys())
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param, environment=SMALL) as ranks:
        ranks.init()
        yield ranks
        ranks.destroy()


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(LAYOUTS["2+2"], environment=SMALL) as ranks:
        ranks.init()
        yield ranks
        ranks.destroy()


assert_conserved = partial(planned.assert_conserved, held_in=sharded.held)


@pytest.mark.parametrize("codec", ["int8", "balanced", "topk:k=64", "bit1"])
def test_what_a_codec_loses_is_held(ranks: Ranks, codec: str) -> None:
    ranks.run(sharded.make, codec)
    results = ranks.run(sharded.run_steps, 0, 4)
    assert_same_bits(results)
    states = ranks.run(sharded.state)
    assert_conserved(results[0], states, range(4))
    kept = sharded.held(states)
    assert sum(values.abs().sum() for values in kept.values()) > 0
    assert not kept["bias"].any()
    assert not kept["norm_gain"].any()


def test_scales_leave_replicas_alike_and_lose_nothing(ranks: Ranks) -> None:
    ranks.run(partial(sharded.make, "balanced", adaptive=True))
    results = ranks.run(sharded.run_steps, 0, 6)
    assert_same_bits(results)
    assert_conserved(results[0], ranks.run(sharded.state), range(6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_reduced_in_16_bits_lose_no_more_than_their_rounding(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(sharded.make, "balanced", dtype)
    results = ranks.run(sharded.run_steps, 0, 4)
    assert_same_bits(results)
    assert_conserved(results[0], ranks.run(sharded.state), range(4), rel=3e-2)


def _accumulate(switch: str) -> tuple[list[dict[str, torch.Tensor]], int]:
    sharded.make("int4")
    model = sharded.model()
    results = []
    for number in range(3):
        model.zero_grad()
        getattr(model, switch)(False)
        model(2 * number).backward()
        getattr(model, switch)(True)
        model(2 * number + 1).backward()
        results.append(sharded.gradients())
    return results, sharded.handle().stats()["steps"]


@pytest.mark.parametrize("switch", ["set_requires_gradient_sync", "set_requires_all_reduce"])
def test_gradients_accumulated_without_the_replicas_count_once(ranks: Ranks, switch: str) -> None:
    results = ranks.run(_accumulate, switch)
    assert_same_bits([gradients for gradients, _ in results])
    assert_conserved(results[0][0], ranks.run(sharded.state), range(6))
    assert {steps for _, steps in results} == {3}


def _reach_a_part() -> tuple[list[dict[str, torch.Tensor]], bool]:
    sharded.make("int4")
    results = sharded.run_steps(0, 2)
    before = sharded.state()
    sharded.model().zero_grad()
    sharded.model()(2, without="two").backward()
    results.append(sharded.gradients())
    same = sharded.held([before])["one"].equal(sharded.held([sharded.state()])["one"])
    return results + sharded.run_steps(3, 1), same


def test_backward_that_reaches_a_part_is_exact_there_and_the_rest_is_owed(ranks: Ranks) -> None:
    results = ranks.run(_reach_a_part)
    for (gradients, same), (others, _) in itertools.pairwise(results):
        assert same
        assert_same_bits([gradients[:2], others[:2]])
    gradients = results[0][0]
    assert "two" not in gradients[2]
    exact = planned.planned_sum(range(2, 3), ranks.size)
    assert torch.allclose(gradients[2]["one"].view(-1).double() * ranks.size, exact["one"], atol=1e-4)
    kept = sharded.held(ranks.run(sharded.state))["two"]
    out = sum(one["two"].double().view(-1) for one in gradients if "two" in one) * ranks.size
    went_in = sum(planned.planned_sum(range(n, n + 1), ranks.size)["two"] for n in (0, 1, 3))
    assert torch.allclose(out + kept, went_in, atol=1e-4)


def _overflow() -> tuple[list[bool], int]:
    """Whether the residuals are the same bits: after a spoiled step, an undone one, a good one; steps skipped."""
    sharded.make("int4")
    sharded.run_steps(0, 2)
    before = sharded.state()
    sharded.step(2, spoiled=(1, "one"))
    after_overflow = sharded.state()
    sharded.step(2)
    sharded.handle().undo_step()
    after_undo = sharded.state()
    sharded.step(2)
    states = (after_overflow, after_undo, sharded.state())
    return [_same(before, one) for one in states], sharded.handle().stats()["skipped_steps"]


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    first, second = sharded.held([a]), sharded.held([b])
    return all(torch.equal(first[name], second[name]) for name in first)


def test_overflow_in_one_shard_leaves_the_residuals_of_all(ranks: Ranks) -> None:
    assert ranks.run(_overflow) == [([True, True, False], 2)] * ranks.size


def test_loaded_state_gives_back_every_bit_of_it(four: Ranks) -> None:
    four.run(sharded.make, "int4")
    four.run(sharded.run_steps, 0, 3)
    states = four.run(sharded.state)
    uninterrupted = four.run(sharded.run_steps, 3, 2)
    four.run(sharded.make, "int4")
    four.run(sharded.load, [through_a_file(state) for state in states])
    assert_same_bits([*four.run(sharded.run_steps, 3, 2), uninterrupted[0]])
    for outcome in four.outcomes(_load_another_rank, states):
        outcome.require("InvalidArgumentError")


def _load_another_rank(states: list[dict[str, Any]]) -> None:
    sharded.handle().load_state_dict(states[(dist.get_rank() + 1) % len(states)])


def test_state_dealt_to_another_number_of_sites_keeps_what_is_owed_to_the_mean(four: Ranks) -> None:
    four.run(sharded.make, "topk:k=64")
    four.run(sharded.run_steps, 0, 3)
    states = four.run(sharded.state)
    merged = geocomm.reshard_feedback(states, 6)
    old, new = sharded.held(states), sharded.held(merged)
    for name, values in old.items():
        assert torch.allclose(new[name] / 6, values / 4, rtol=1e-6, atol=1e-6)
    with pytest.raises(geocomm.InvalidArgumentError):
        geocomm.reshard_feedback(states, 5)
    with Ranks(["a", "a", "b", "b", "c", "c"], environment=SMALL) as ranks:
        ranks.init()
        ranks.run(sharded.make, "topk:k=64")
        ranks.run(sharded.load, merged)
        results = ranks.run(sharded.run_steps, 3, 2)
        assert_same_bits(results)
        out, kept = planned.given(results[0], 6), sharded.held(ranks.run(sharded.state))
        for name, went_in in planned.planned_sum(range(3, 5), 6).items():
            assert torch.allclose(out[name] + kept[name], went_in + new[name], atol=1e-3)
        ranks.destroy()


def _net() -> nn.Module:
    torch.manual_seed(5)
    layers = [nn.Linear(30, 200), nn.LayerNorm(200), nn.GELU(), nn.Linear(200, 200), nn.GELU(), nn.Linear(200, 5)]
    return nn.Sequential(*layers)


def _train(
    codec: str | None, steps: int, reduce_dtype: torch.dtype | None, divide_by: float | None = None
) -> tuple[list[float], list[torch.Tensor]]:
    """Losses of a small net, and its parameters at the end."""
    net = _net()
    mesh = geocomm.device_mesh("cpu")
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    for module in net.modules():
        if divide_by is not None and isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(divide_by)
    if codec is not None:
        geocomm.fsdp_hook(net, geocomm.HookSettings(codec=codec, warmup_steps=2, exact_below=500, guard_steps=5))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses = planned.losses_of_sines(net, optimizer, steps, lambda: None)
    return losses, [parameter.full_tensor().detach() for parameter in net.parameters()]


@pytest.mark.parametrize(
    ("reduce_dtype", "divide_by"),
    [(None, None), (torch.bfloat16, None), (None, 2.0)],
    ids=["float32", "bfloat16", "divided by the user"],
)
def test_codec_none_gives_the_bits_of_no_hook(
    ranks: Ranks, reduce_dtype: torch.dtype | None, divide_by: float | None
) -> None:
    plain = ranks.run(_train, None, 6, reduce_dtype, divide_by)
    hooked = ranks.run(_train, "none", 6, reduce_dtype, divide_by)
    for (losses, parameters), (expected, reference) in zip(hooked, plain, strict=True):
        assert losses == expected
        assert all(torch.equal(*pair) for pair in zip(parameters, reference, strict=True))


def test_net_trains_and_replicas_stay_identical(ranks: Ranks) -> None:
    results, exact = ranks.run(_train, "balanced", 40, None), ranks.run(_train, "none", 40, None)
    for (losses, parameters), (reference, _) in zip(results, exact, strict=True):
        assert losses != reference
        assert sum(losses[-8:]) < 0.6 * sum(losses[:2]) * 4
        assert sum(losses[-8:]) == pytest.approx(sum(reference[-8:]), rel=0.15)
        assert all(torch.equal(*pair) for pair in zip(parameters, results[0][1], strict=True))


def _refused() -> list[str]:
    def sharded_over_all() -> nn.Module:
        net = _net()
        fully_shard(net)
        return net

    def hooked() -> nn.Module:
        net = _net()
        fully_shard(net, mesh=geocomm.device_mesh("cpu"))
        geocomm.fsdp_hook(net)
        return net

    calls: list[Callable[[], Any]] = [
        lambda: geocomm.fsdp_hook(_net()),
        lambda: geocomm.fsdp_hook(sharded_over_all()),
        lambda: geocomm.fsdp_hook(hooked()),
        lambda: geocomm.fsdp_hook(hooked(), "int9"),
        lambda: geocomm.fsdp_hook(hooked(), geocomm.HookSettings(warmup_steps=-1)),
    ]
    accepted = []
    for index, call in enumerate(calls):
        try:
            call()
            accepted.append(f"call {index}")
        except geocomm.InvalidArgumentError:
            pass
    return accepted


def test_models_and_arguments_that_cannot_be_are_refused(four: Ranks) -> None:
    assert four.run(_refused) == [[]] * 4
