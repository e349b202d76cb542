"""Replays of runs of up to five sites, against runs that are computed without what the replay leaves out."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from geocomm.observe.diagnosis.replay import Replay, Without
from support.invented_run import Run

NEAR = 0.1


def any_run(seed: int) -> Run:
    """Sites, links and operations of all kinds."""
    chance = random.Random(seed)
    names = "abcde"[: chance.choice((2, 3, 3, 4, 5))]
    pairs = ["".join(pair) for pair in itertools.combinations(names, 2)]

    def rate() -> float:
        return 10 ** chance.uniform(6.8, 8.3)

    return Run(
        compute=[chance.uniform(0.05, 0.15) for _ in names],
        load=[0.0] * len(names),
        operations=chance.randint(1, 4),
        size=chance.choice((2000, 200_000, 3 << 20, 8 << 20)),
        rate=rate(),
        delay=chance.uniform(0.002, 0.06),
        rates={pair: rate() for pair in pairs if chance.random() < 0.4},
        delays={pair: chance.uniform(0.002, 0.1) for pair in pairs if chance.random() < 0.4},
        owners=len(names) > 2 and chance.random() < 0.6,
    )


@pytest.mark.parametrize("seed", range(40))
def test_replay_without_a_cause_is_the_run_without_it(seed: int) -> None:
    run = any_run(seed)
    _assert_replays(run, seed)


@pytest.mark.parametrize("seed", range(12))
def test_replay_of_a_reduce_scatter_by_regions_is_the_run_without_a_cause(seed: int) -> None:
    chance = random.Random(seed)
    regions = chance.choice(((0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1, 1)))
    count = len(regions)
    run = Run(
        compute=[chance.uniform(0.05, 0.2) for _ in regions],
        load=[0.0] * count,
        operations=chance.randint(1, 3),
        size=chance.choice((2000, 1 << 20, 4 << 20)),
        rate=10 ** chance.uniform(7.5, 8.3),
        delay=chance.uniform(0.002, 0.03),
        regions=regions,
    )
    _assert_replays(run, seed)


def _assert_replays(run: Run, seed: int) -> None:
    """Without a cause: also links between two sites that are fast, and sites that compute alike."""
    replay = Replay(run.window())
    assert replay.seen == pytest.approx(run.window().step_seconds, rel=0.02)
    quickest = min(run.compute)
    pair = max(
        itertools.combinations(range(len(run.compute)), 2), key=lambda one: random.Random(f"{seed} {one}").random()
    )
    name = "".join("abcdef"[site] for site in pair)
    for without, changed in (
        (Without(delay=lambda _: 0.0), replace(run, delay=0.0, delays=dict.fromkeys(run.delays, 0.0))),
        (Without(service=lambda _: 0.0), replace(run, rate=1e15, rates={})),
        (
            Without(service=lambda one: 0.0 if {place[1] for place in one.way} == {*pair} else one.service),
            replace(run, rates={**run.rates, name: 1e15}),
        ),
        (
            Without(program=lambda rank, _, own: own * quickest / run.compute[rank.place[1]]),
            replace(run, compute=[quickest] * len(run.compute)),
        ),
    ):
        assert replay.seconds(without) == pytest.approx(changed.window().step_seconds, rel=NEAR)
