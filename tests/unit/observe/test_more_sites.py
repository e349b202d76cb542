"""Verdicts on runs of three sites: which site, or the link of which two, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from geocomm.observe.diagnosis.bottleneck import diagnose
from geocomm.observe.diagnosis.run_window import RankWindow
from geocomm.observe.diagnosis.verdict import Cause
from support.invented_run import Run

PAIRS = ("ab", "ac", "bc")
PLAIN = Run(compute=(0.1, 0.1, 0.1))
SMALL = replace(PLAIN, size=3000, operations=4)
LARGE = replace(PLAIN, size=3 << 20, counters={"rtt_s": 0.03, "best_rate": 50e6})


@pytest.mark.parametrize("owners", [False, True])
@pytest.mark.parametrize(
    ("cause", "where", "run", "changes"),
    [
        (Cause.STRAGGLER, "c", replace(PLAIN, compute=(0.1, 0.1, 0.3)), {"compute": PLAIN.compute}),
        (Cause.STRAGGLER, "c", replace(LARGE, compute=(0.1, 0.1, 0.6), rates={"ab": 20e6}), {"compute": PLAIN.compute}),
        (Cause.INPUT, "b", replace(PLAIN, load=(0.0, 0.3, 0.0)), {"load": PLAIN.load}),
        (Cause.LATENCY, "a - b", replace(SMALL, delays={"ab": 0.1}), {"delays": {"ab": 0.0}}),
        (Cause.LATENCY, "a", replace(SMALL, delays={"ab": 0.1, "ac": 0.1}), {"delays": {"ab": 0.0, "ac": 0.0}}),
        (Cause.LATENCY, "", replace(SMALL, delay=0.1), {"delay": 0.0}),
        (Cause.BANDWIDTH, "a - b", replace(LARGE, rates={"ab": 5e6}), {"rates": {"ab": 1e12}}),
        (Cause.BANDWIDTH, "a", replace(LARGE, rates={"ab": 5e6, "ac": 5e6}), {"rates": {"ab": 1e12, "ac": 1e12}}),
        # The other links are full, too, but more than half is at the slow one.
        (
            *(Cause.BANDWIDTH, "a - b", replace(LARGE, rates={"ab": 5e6, "ac": 12e6, "bc": 12e6})),
            {"rates": {"ab": 1e12, "ac": 12e6, "bc": 12e6}},
        ),
        # A third of it.
        (
            *(Cause.BANDWIDTH, "", replace(LARGE, rates={"ab": 5e6, "ac": 7e6, "bc": 7e6})),
            {"rates": dict.fromkeys(PAIRS, 1e12)},
        ),
        (Cause.BANDWIDTH, "", replace(LARGE, rates=dict.fromkeys(PAIRS, 10e6)), {"rates": dict.fromkeys(PAIRS, 1e12)}),
    ],
)
def test_three_sites(cause: Cause, where: str, run: Run, changes: dict[str, Any], owners: bool) -> None:
    run = replace(run, owners=owners)
    said = run.said()
    saved = run.window().step_seconds - replace(run, **changes).window().step_seconds
    assert (said.verdict.cause, said.verdict.where) == (cause, where)
    assert said.verdict.saved_seconds == pytest.approx(saved, rel=0.15)


@pytest.mark.parametrize("shares", [(1 / 2, 1 / 3, 1 / 6), (0.5, 0.5, 0.0), (1.0, 0.0, 0.0)])
@pytest.mark.parametrize(
    ("cause", "where", "run", "changes"),
    [
        (Cause.STRAGGLER, "c", replace(LARGE, compute=(0.1, 0.1, 0.6)), {"compute": PLAIN.compute}),
        (Cause.LATENCY, "a - b", replace(SMALL, delays={"ab": 0.1}), {"delays": {"ab": 0.0}}),
        (Cause.BANDWIDTH, "a - b", replace(LARGE, rates={"ab": 5e6}), {"rates": {"ab": 1e12}}),
        (Cause.BANDWIDTH, "a", replace(LARGE, rates={"ab": 5e6, "ac": 5e6}), {"rates": {"ab": 1e12, "ac": 1e12}}),
    ],
)
def test_three_sites_that_own_unequal_shares(
    cause: Cause, where: str, run: Run, changes: dict[str, Any], shares: tuple[float, ...]
) -> None:
    run = replace(run, size=4 * run.size, owners=True, shares=shares)
    said = run.said().verdict
    saved = run.window().step_seconds - replace(run, **changes).window().step_seconds
    assert (said.cause, said.where) == (cause, where)
    assert said.saved_seconds == pytest.approx(saved, rel=0.15)


@pytest.mark.parametrize("owners", [False, True])
def test_three_healthy_sites(owners: bool) -> None:
    assert replace(PLAIN, size=1000, delay=0.001, owners=owners).said().verdict.cause is Cause.COMPUTE


def test_a_site_that_runs_ahead_does_not_make_its_links_look_slow() -> None:
    """c is an operation ahead of a and b, so that all its messages but the first ones lie there when they ask. Those
    were slow, as TCP is at the start."""
    run = replace(LARGE, rates={"ab": 5e6}, operations=4)
    window = run.window()
    ranks: list[RankWindow] = []
    for rank in window.ranks:
        first = rank.operations[0]
        arrivals = {place: at + (0.2 if place[0] == "c" else 0.0) for place, at in first.arrivals.items()}
        ranks.append(replace(rank, operations=[replace(first, arrivals=arrivals), *rank.operations[1:]]))
    said = diagnose(replace(window, ranks=ranks)).verdict
    saved = window.step_seconds - replace(run, rates={"ab": 1e12}).window().step_seconds
    assert (said.cause, said.where) == (Cause.BANDWIDTH, "a - b")
    assert said.saved_seconds == pytest.approx(saved, rel=0.1)


@pytest.mark.parametrize("lost", [0.0, 0.05])
def test_messages_that_are_equally_slow_since_all_lose_packets_are_not_a_full_line(lost: float) -> None:
    counters = {"best_rate": 7e6, "retransmitted": round(1e8 * lost), "congestion_control": "bbr"}
    said = Run(rate=5e6, counters=counters).said().verdict
    assert said.cause is (Cause.LOSS if lost else Cause.BANDWIDTH)
