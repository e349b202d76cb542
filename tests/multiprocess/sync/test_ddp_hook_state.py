"""State of ddp_hook: saved, loaded, cut anew; steps that are skipped, groups that fail, arguments that are wrong."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import geocomm
from support import planned_gradients as planned
from support.harness import Ranks, joined, ranks_fixture, through_a_file

three = ranks_fixture({"2+1": ["a", "a", "b"]})


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    first, second = planned.held([a]), planned.held([b])
    return all(torch.equal(first[name], second[name]) for name in first)


def test_loaded_state_gives_back_every_bit_of_it(three: Ranks) -> None:
    three.run(planned.make, "int4")
    results = three.run(planned.run_steps, 0, 3)
    states = three.run(planned.state)
    three.run(planned.make, "int4")
    three.run(planned.load, [through_a_file(state) for state in states])
    again = three.run(planned.state)
    assert all(_same(*pair) for pair in zip(states, again, strict=True))
    assert again[0]["steps"] == 3
    more = three.run(planned.run_steps, 3, 3)
    planned.assert_conserved(results[0] + more[0], three.run(planned.state), range(6))
    for outcome in three.outcomes(_load_another_rank, states):
        outcome.require("InvalidArgumentError")


def _load_another_rank(states: list[dict[str, Any]]) -> None:
    planned.handle().load_state_dict(states[(dist.get_rank() + 1) % len(states)])


@pytest.mark.parametrize(
    ("before", "after"),
    [(["a", "b"], ["a", "b", "c"]), (["a", "a", "b"], ["a", "b"]), (["a", "b"], ["b", "a", "a", "b"])],
)
def test_state_cut_anew_for_other_sites_keeps_what_is_owed_to_the_mean(before: list[str], after: list[str]) -> None:
    with joined(before) as ranks:
        ranks.run(planned.make, "topk:k=64")
        ranks.run(planned.run_steps, 0, 3)
        states = ranks.run(planned.state)
    merged = geocomm.reshard_feedback(states, len(after))
    old, new = planned.held(states), planned.held(merged)
    for name, values in old.items():
        assert torch.allclose(new[name] / len(after), values / len(before), rtol=1e-6, atol=1e-6)
    with joined(after) as ranks:
        ranks.run(planned.make, "topk:k=64")
        ranks.run(planned.load, merged)
        results = ranks.run(planned.run_steps, 3, 3)
        out, kept = planned.given(results[0], len(after)), planned.held(ranks.run(planned.state))
        for name, went_in in planned.planned_sum(range(3, 6), len(after)).items():
            assert torch.allclose(out[name] + kept[name], went_in + new[name], atol=1e-3)


def _overflow() -> list[bool]:
    """Whether the residuals are the same bits: after a spoiled step, after an undone one, after a good one."""
    planned.make("int4")
    planned.run_steps(0, 3)
    before = planned.state()
    planned.step(3, spoiled=(1, "two"))
    after_overflow = planned.state()
    planned.step(3)
    planned.handle().stats()
    planned.handle().undo_step()
    planned.handle().undo_step()
    after_undo = planned.state()
    planned.step(3)
    return [_same(before, after_overflow), _same(before, after_undo), _same(before, planned.state())]


def test_step_that_overflows_or_is_undone_leaves_the_residuals(three: Ranks) -> None:
    results = three.run(_overflow)
    assert all(result[:2] == [True, True] for result in results)
    assert not all(result[2] for result in results)
    assert three.run(_skipped) == [2, 2, 2]


def _skipped() -> int:
    return planned.handle().stats()["skipped_steps"]


def _spoil_before_rebuild() -> list[dict[str, torch.Tensor]]:
    planned.make("int4")
    results = planned.run_steps(0, 1)
    planned.step(99, spoiled=(0, "three"))  # in the rebuilt layout: carried pieces are in it
    return results + planned.run_steps(1, 3)


def test_pieces_carried_in_a_step_that_overflows_are_carried_again(three: Ranks) -> None:
    results = three.run(_spoil_before_rebuild)
    planned.assert_conserved(results[0], three.run(planned.state), range(4))


def _rescale() -> list[torch.Tensor]:
    planned.make("balanced")
    planned.run_steps(0, 2)
    before = planned.held([planned.state()])
    planned.handle().rescale(0.5)
    after = planned.held([planned.state()])
    return [bool(torch.equal(after[name], before[name] / 2)) for name in before]


def test_residuals_follow_the_loss_scale(three: Ranks) -> None:
    assert all(all(equal) for equal in three.run(_rescale))


def test_group_that_fails_leaves_the_residuals_of_before_the_step() -> None:
    with Ranks(["a", "a", "b"]) as ranks:
        ranks.init()
        ranks.run(planned.make, "int4")
        ranks.run(planned.run_steps, 0, 3)
        before = ranks.run(planned.state)
        ranks.begin(planned.step, 3, ranks=[0, 1])
        ranks.signal(2, signal.SIGKILL)
        for outcome in ranks.finish(ranks=[0, 1]):
            assert "PeerLost: rank 2 (site b" in outcome.require("RuntimeError").message
        for rank, outcome in zip([0, 1], ranks.outcomes(planned.state, ranks=[0, 1]), strict=True):
            assert outcome.failure is None, outcome.failure
            assert _same(outcome.value, before[rank])


def _other_codec() -> None:
    planned.make("int8" if dist.get_rank() == 0 else "int4")
    planned.step(0)


def test_codec_that_differs_between_ranks_is_an_error_on_all() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        for outcome in ranks.outcomes(_other_codec):
            assert "InvalidArgument" in outcome.require("RuntimeError").message


def _refused() -> list[str]:
    import geocomm
    from geocomm import InvalidArgumentError

    model = nn.Linear(80, 80)
    wrapped = DistributedDataParallel(model)
    gloo = DistributedDataParallel(nn.Linear(8, 8), process_group=dist.new_group(backend="gloo"))
    calls = [
        lambda: geocomm.ddp_hook(model),
        lambda: geocomm.ddp_hook(gloo),
        lambda: geocomm.ddp_hook(wrapped, "int9"),
        lambda: geocomm.ddp_hook(wrapped, "auto"),
        lambda: geocomm.ddp_hook(wrapped, geocomm.HookSettings(warmup_steps=-1)),
        lambda: geocomm.ddp_hook(wrapped, geocomm.HookSettings(decay=1.5)),
        lambda: geocomm.ddp_hook(wrapped, geocomm.HookSettings(exact=["("])),
        lambda: geocomm.ddp_hook(wrapped, geocomm.HookSettings(guard_steps=0)),
    ]
    accepted = []
    for index, call in enumerate(calls):
        try:
            call()
            accepted.append(f"call {index}")
        except InvalidArgumentError:
            pass
    return accepted


def test_arguments_that_cannot_be_are_refused(three: Ranks) -> None:
    assert three.run(_refused) == [[], [], []]


def test_states_that_are_not_of_all_ranks_are_not_merged() -> None:
    one = {"version": 1, "rank": 0, "ranks": 2, "shard": 0, "shards": 1, "steps": 1, "residual": {}, "momentum": {}}
    for states in ([one], [one, one], []):
        with pytest.raises(geocomm.InvalidArgumentError):
            geocomm.reshard_feedback(states, 2)
    with pytest.raises(geocomm.InvalidArgumentError):
        geocomm.reshard_feedback([one | {"ranks": 1}], 0)
