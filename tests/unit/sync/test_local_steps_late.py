"""Local steps where results are late, sites are in other rounds, weights are not finite, and runs end."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import LocalSteps, local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov
from support.effort import effort
from support.local_models import SITES, adamw, make_model, train, train_step, train_steps, values


@effort(12)
@given(
    seed=st.integers(0, 2**32),
    sites=st.integers(2, 4),
    every=st.integers(1, 8),
    fragments=st.integers(1, 5),
    merge=st.sampled_from([0, 0.5, "carry"]),
    saves=st.integers(0, 2),
)
def test_sites_that_are_in_other_rounds_end_with_equal_bits(
    seed: int, sites: int, every: int, fragments: int, merge: Any, saves: int
) -> None:
    """Each takes other steps, its results are late by other numbers of steps, and it saves after steps of its own."""
    names = "abcd"[:sites]
    draw = random.Random(seed)
    late = {name: draw.choice([0, 1, 7, 100]) for name in names}
    steps = {name: sorted(draw.randint(0, 30) for _ in range(saves + 1)) for name in names}

    def run(rounds: Rounds) -> tuple[torch.Tensor, int]:
        model, done = make_model(), 0
        optimizer = adamw(model)
        handle = local_steps(
            model,
            optimizer,
            LocalSettings(every=every, fragments=fragments, merge=merge, exact_below=100),
            rounds=rounds,
        )
        *stops, end = steps[rounds.site]
        for stop in stops:
            train_steps(model, optimizer, rounds.site, range(done, stop))
            handle.state_dict()
            done = stop
        train_steps(model, optimizer, rounds.site, range(done, end))
        handle.finish()
        return values(model), handle.stats()["rounds"]

    simulation = SimulatedSites(names, late=lambda site, number: late[site] * (number % 2))
    (first, rounds), *others = simulation.run(run)
    for found, count in others:
        assert torch.equal(first, found)
        assert count == rounds
    assert first.isfinite().all()


@pytest.mark.parametrize(("sites", "momentum"), [("a", "0.5"), ("ab", "0.5"), ("abc", "0.8"), ("abcdefgh", "0.8")])
def test_outer_momentum_follows_the_number_of_sites(sites: str, momentum: str) -> None:
    for stats in SimulatedSites(sites).run(lambda rounds: train(rounds, 0)[1].stats()):
        assert stats["outer"] == f"Nesterov(lr=1.0, momentum={momentum})"
    for stats in SimulatedSites(sites).run(lambda rounds: train(rounds, 0, outer=Nesterov(0.7, 0.3))[1].stats()):
        assert stats["outer"] == "Nesterov(lr=0.7, momentum=0.3)"


@pytest.mark.parametrize("late", [0, 1, 7])
def test_result_is_merged_as_soon_as_it_is_there(late: int) -> None:
    def run(rounds: Rounds) -> tuple[list[int], torch.Tensor]:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, LocalSettings(every=20), rounds=rounds)
        merged = []
        for step in range(40):
            train_step(model, optimizer, rounds.site, step)
            merged.append(handle.stats()["rounds"])
        handle.finish()
        return merged, values(model)

    (merged, one), (_, other) = SimulatedSites(SITES, late=lambda _site, _round: late).run(run)
    assert merged.index(1) == 20 + late  # begun after the 20th step, merged after the 21st at the earliest
    assert torch.equal(one, other)


def _falling(rounds: Rounds, **arguments: Any) -> tuple[nn.Linear, torch.optim.Optimizer, LocalSteps]:
    """A weight that falls by 1 a step at site a and by 3 at site b."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, optimizer, local_steps(model, optimizer, LocalSettings(codec="none", **arguments), rounds=rounds)


def _fall(model: nn.Linear, optimizer: torch.optim.Optimizer, site: str) -> float:
    model.weight.grad = torch.tensor([[1.0 if site == "a" else 3.0]])
    optimizer.step()
    return model.weight.item()


@pytest.mark.parametrize(
    ("steps", "end"), [(3, -6.0), (4, -8.0), (5, -8.0 - 0.8 * 8 / 4 - 2), (6, -8.0 - 0.8 * 8 / 2 - 4), (8, -22.4)]
)
def test_last_round_is_the_mean_less_what_is_left_of_the_momentum(steps: int, end: float) -> None:
    """The mean after 4 steps is -8, and the outer step goes on by 0.8 * 8. The end takes back as much of that as steps
    are missing to a whole cycle; after 8 steps the mean is -8 - 0.8 * 8 - 8."""

    def run(rounds: Rounds) -> float:
        model, optimizer, handle = _falling(rounds, every=4, overlap=0, outer=Nesterov(1.0, 0.8))
        for _ in range(steps):
            _fall(model, optimizer, rounds.site)
        handle.finish()
        return model.weight.item()

    assert SimulatedSites(SITES).run(run) == [pytest.approx(end, abs=1e-5)] * 2


def test_finish_without_momentum_is_the_mean_of_the_sites_weights_to_the_bit() -> None:
    def run(rounds: Rounds) -> tuple[torch.Tensor, torch.Tensor]:
        model, handle = train(rounds, 11, every=4, overlap=1, outer=Nesterov(1.0, 0.0))
        handle.state_dict()  # merges what is in flight
        before = values(model)
        handle.finish()
        return before, values(model)

    (one, after), (other, same) = SimulatedSites(SITES).run(run)
    assert not torch.equal(one, other)
    assert torch.equal(after, same)
    assert torch.equal(after, one * 0.5 + other * 0.5)


@pytest.mark.parametrize("merge", [0.5, "carry"])
@pytest.mark.parametrize("both", [False, True])
def test_site_takes_over_the_whole_anchor_after_one_nan(both: bool, merge: Any) -> None:
    """One loss is NaN, which all parameters and Adam's moments then are: the rounds that follow count again."""

    def run(rounds: Rounds) -> tuple[dict[str, Any], torch.Tensor, bool]:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(
            model, optimizer, LocalSettings(every=10, fragments=2, merge=merge, exact_below=100), rounds=rounds
        )
        for step in range(100):
            if step == 13 and (both or rounds.site == "b"):
                optimizer.zero_grad()
                for parameter in model.parameters():
                    parameter.grad = torch.full_like(parameter, float("nan"))
                optimizer.step()
            else:
                train_step(model, optimizer, rounds.site, step)
        handle.finish()
        moments = [one for state in optimizer.state.values() for one in state.values() if one.is_floating_point()]
        return handle.stats(), values(model), all(bool(one.isfinite().all()) for one in moments)

    simulation = SimulatedSites(SITES, late=lambda _site, number: number % 4)
    results = simulation.run(run)
    for stats, found, healed in results:
        assert torch.equal(found, results[0][1])
        assert healed
        assert stats["rounds_void"] == int(both)
    assert results[1][0]["rounds_not_finite"] == 1
    assert results[0][0]["rounds_not_finite"] == int(both)


def test_deterministic_sites_with_other_numbers_of_steps_end_in_one_clear_error() -> None:
    def run(rounds: Rounds) -> None:
        _, handle = train(rounds, 60 if rounds.site == "a" else 33, every=10, deterministic=True)
        handle.finish()

    with pytest.raises(InvalidArgumentError, match=r"'b' has called finish\(\) after 33 steps.*'a' trains on after 40"):
        SimulatedSites(SITES).run(run)


def test_anchors_of_sites_that_have_merged_as_many_rounds_are_equal_and_together_all_are() -> None:
    def run(rounds: Rounds) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, LocalSettings(every=3, fragments=2), rounds=rounds)
        seen = {}
        for step in range(17):
            train_step(model, optimizer, rounds.site, step)
            with handle.anchor():
                seen[handle.stats()["rounds"]] = values(model)
        own = values(model)
        with handle.anchor(together=True):
            shared = values(model)
        assert not torch.equal(own, shared)
        return seen, shared

    (one, shared), (other, same) = SimulatedSites(SITES, late=lambda site, _: 2 * (site == "b")).run(run)
    assert len(one.keys() & other.keys()) > 4
    for rounds in one.keys() & other.keys():
        assert torch.equal(one[rounds], other[rounds])
    assert max(one) > max(other)
    assert torch.equal(shared, same)


@pytest.mark.parametrize("call", ["finish", "state_dict"])
def test_what_would_be_lost_while_the_model_holds_the_anchor_is_refused(call: str) -> None:
    def run(rounds: Rounds) -> None:
        _, handle = train(rounds, 5, every=2)
        with handle.anchor(), pytest.raises(InvalidArgumentError, match=r"anchor\(\) is entered"):
            getattr(handle, call)()
        handle.finish()

    SimulatedSites(["a"]).run(run)


@pytest.mark.parametrize("damage", ["step", "next_round", "weight", "anchor", "momentum", "residual", "version"])
def test_damaged_state_is_refused_by_name(damage: str) -> None:
    def run(rounds: Rounds) -> None:
        _, handle = train(rounds, 5, every=2)
        before, state = handle.state_dict(), handle.state_dict()
        if damage in state and damage != "version":
            state[damage] = -3
        elif damage == "version":
            state["fragments"][0]["version"] = -1
        else:
            state["fragments"][0][damage][0] = float("nan")
        with pytest.raises(InvalidArgumentError, match=damage):
            handle.load_state_dict(state)
        handle.load_state_dict(before)

    SimulatedSites(["a"]).run(run)


@pytest.mark.parametrize(("other", "expected"), [(1.0, 1.0), (-1.0, 0.0), (3.0, 0.8)])
def test_agreement_says_how_far_the_sites_learn_the_same(other: float, expected: float) -> None:
    def run(rounds: Rounds) -> float | None:
        model, optimizer, handle = _falling(rounds, every=1, overlap=0)
        assert handle.stats()["agreement"] is None
        model.weight.grad = torch.tensor([[1.0 if rounds.site == "a" else other]])
        optimizer.step()
        return handle.stats()["agreement"]

    assert SimulatedSites(SITES).run(run) == [pytest.approx(expected)] * 2
