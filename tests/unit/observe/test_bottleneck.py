"""Verdicts on runs whose causes are known, since their times are computed from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from geocomm.observe.diagnosis.bottleneck import diagnose
from geocomm.observe.diagnosis.replay import Replay, Without
from geocomm.observe.diagnosis.round_waits import round_waits
from geocomm.observe.diagnosis.run_window import RankWindow, RunWindow, read_window
from geocomm.observe.diagnosis.verdict import Cause, headline
from geocomm.observe.telemetry.run_store import RunStore
from support.invented_run import STEPS, Run, write_store

FULL = Run(rate=10e6, size=2 << 20, counters={"best_rate": 10e6, "rtt_s": 0.03})


@pytest.mark.parametrize(
    ("cause", "run", "without"),
    [
        (Cause.INPUT, Run(load=(0.2, 0.2)), Run()),
        (Cause.CHECKPOINT, Run(save=0.3), Run()),
        (Cause.STRAGGLER, Run(compute=(0.1, 0.3)), Run()),
        (Cause.BANDWIDTH, FULL, replace(FULL, rate=1e12)),
        (Cause.LATENCY, Run(delay=0.2, size=1000, operations=4), Run(delay=0.0, size=1000, operations=4)),
        (
            Cause.LOSS,
            Run(rate=5e6, counters={"best_rate": 25e6, "retransmitted": 3 * 10**6}),
            Run(rate=25e6, counters={"best_rate": 25e6}),
        ),
        (
            Cause.WINDOWS,
            Run(rate=5e6, counters={"best_rate": 5e6, "receiver_limited_s": 2 * 2 * STEPS * (1 << 20) / 5e6}),
            Run(rate=1e12),
        ),
        (Cause.CODEC, Run(coding=0.2, rate=1e9), Run(rate=1e9)),
    ],
)
def test_each_cause_is_named_with_what_the_run_without_it_saves(cause: Cause, run: Run, without: Run) -> None:
    said = run.said()
    saved = run.window().step_seconds - without.window().step_seconds
    assert said.verdict.cause is cause
    assert said.verdict.saved_seconds == pytest.approx(saved, rel=0.1)
    assert said.verdict.evidence
    assert not said.notes


def test_healthy_run_has_computation_and_nothing_to_win() -> None:
    assert Run(delay=0.001, size=1000).said().verdict.cause is Cause.COMPUTE


def test_a_replay_that_changes_nothing_shows_what_was_seen() -> None:
    window = replace(Run(compute=(0.1, 0.25), load=(0.05, 0.0)), coding=0.01).window()
    assert Replay(window).seconds(Without()) == pytest.approx(window.step_seconds, rel=1e-6)


def test_a_site_that_has_its_data_at_once_gains_nothing_without_the_wait_of_another() -> None:
    """b computes longer than a, which waits for data: without that wait, a waits for b."""
    said = Run(compute=(0.1, 0.25), load=(0.2, 0.0)).said()
    wait = next(verdict for verdict in said.verdicts if verdict.cause is Cause.INPUT)
    assert wait.where == "a"
    assert wait.saved_seconds == pytest.approx(0.05)


def test_waiting_for_a_slow_site_is_not_taken_for_a_slow_link() -> None:
    said = replace(FULL, compute=(0.1, 1.0)).said()
    assert [verdict.cause for verdict in said.verdicts] == [Cause.STRAGGLER, Cause.BANDWIDTH]
    assert said.verdict.where == "b"
    assert said.verdicts[1].where == "a - b"


@pytest.mark.parametrize("regions", [(0, 0, 1, 1), (0, 0, 0, 1, 1, 1)])
def test_a_late_site_is_named_by_regions_where_heads_wait_for_it(regions: tuple[int, ...], tmp_path: Path) -> None:
    count = len(regions)
    late = Run(compute=[0.1] * (count - 1) + [0.3], load=[0.0] * count, regions=regions)
    saved = late.window().step_seconds - replace(late, compute=[0.1] * count).window().step_seconds
    for said in (late.said(), diagnose(late.read(tmp_path))):
        assert said.verdict.cause is Cause.STRAGGLER
        assert said.verdict.where == "abcdef"[count - 1]
        assert said.verdict.saved_seconds == pytest.approx(saved, rel=0.1)


def test_a_full_line_that_loses_is_not_taken_for_one_that_loses_by_itself() -> None:
    full = replace(FULL, counters=dict(FULL.counters, retransmitted=5 * 10**6))
    assert full.said().verdict.cause is Cause.BANDWIDTH


def test_the_way_back_of_a_full_line_is_full_though_it_looks_like_one_that_loses() -> None:
    window = FULL.window()
    lossy = {"best_rate": 14e6, "rtt_s": 0.01, "retransmitted": 5 * 10**6}
    links = [replace(link, **lossy) if link.source[0] == "b" else link for link in window.links]
    said = diagnose(replace(window, links=links))
    assert said.verdict.cause is Cause.BANDWIDTH
    assert said.verdict.saved_seconds == pytest.approx(FULL.said().verdict.saved_seconds)


def asymmetric(**rates: float) -> Run:
    return replace(FULL, rate=100e6, rates={name.replace("_", ">"): rate for name, rate in rates.items()})


def test_a_line_that_is_full_one_way_is_named_with_its_direction() -> None:
    slow = asymmetric(a_b=10e6, b_a=60e6)
    said = slow.said().verdict
    assert (said.cause, said.where) == (Cause.BANDWIDTH, "a -> b")
    assert headline(said).startswith("Bandwidth, a -> b: ")
    saved = slow.window().step_seconds - asymmetric(a_b=1e12, b_a=60e6).window().step_seconds
    assert said.saved_seconds == pytest.approx(saved, rel=0.1)


@pytest.mark.parametrize("back", [10e6, 12e6, 14e6])
def test_of_two_directions_that_are_about_as_slow_none_is_named(back: float) -> None:
    said = asymmetric(a_b=10e6, b_a=back).said().verdict
    assert (said.cause, said.where) == (Cause.BANDWIDTH, "a - b")


def test_of_two_slow_directions_of_which_one_alone_looks_full_none_is_named() -> None:
    """The way back is as slow, but windows hold it back by a hair too often to be called full."""
    window = FULL.window()
    narrow = {"receiver_limited_s": 2.5}
    links = [replace(link, **narrow) if link.source[0] == "b" else link for link in window.links]
    said = next(one for one in diagnose(replace(window, links=links)).verdicts if one.cause is Cause.BANDWIDTH)
    assert said.where == "a - b"


def test_what_a_site_sends_is_named_where_its_line_is_slow_one_way() -> None:
    """c has a home's line: it gets more than it sends."""
    three = replace(asymmetric(c_a=10e6, c_b=10e6, a_c=80e6, b_c=80e6), compute=(0.1, 0.1, 0.1))
    said = three.said().verdict
    assert (said.cause, said.where) == (Cause.BANDWIDTH, "c -> all")
    both = replace(asymmetric(c_a=10e6, c_b=10e6, a_c=10e6, b_c=10e6), compute=(0.1, 0.1, 0.1)).said().verdict
    assert (both.cause, both.where) == (Cause.BANDWIDTH, "c")


def test_latency_has_no_direction() -> None:
    assert Run(delay=0.2, size=1000, operations=4).said().verdict.where == "a - b"


def test_cpu_time_that_a_slow_site_did_not_get_is_evidence(tmp_path: Path) -> None:
    run = Run(compute=(0.1, 0.3), cpu_lost={0: (0.01, 0.0), 1: (0.23, 0.43)})
    said = diagnose(run.read(tmp_path)).verdict
    assert (said.cause, said.where) == (Cause.STRAGGLER, "b")
    assert ("CPU time that b's host gave to other machines (steal)", "23%") in said.evidence
    assert ("periods in which b used up its CPU limit (cgroup)", "43%") in said.evidence
    assert said.fix.startswith("Raise the CPU limit")
    assert not any("steal" in name or "cgroup" in name for name, _ in Run(compute=(0.1, 0.3)).said().verdict.evidence)


def test_cpu_time_that_sites_did_not_get_is_told_where_all_is_computation(tmp_path: Path) -> None:
    said = diagnose(Run(delay=0.001, size=1000, cpu_lost={1: (0.5, 0.0)}).read(tmp_path)).verdict
    assert said.cause is Cause.COMPUTE
    assert ("CPU time that b's host gave to other machines (steal)", "50%") in said.evidence
    assert said.fix.startswith("The virtual machine shares its CPUs")


def test_losses_that_look_like_a_queue_are_not_taken_for_a_full_line() -> None:
    # BBR goes on as fast, so that the repairs alone cost time: these, and no queue, raise the round trips it sees.
    lossy = Run(
        rate=12e6,
        size=400_000,
        repairs=(1.0, 2.2, 3.1, 2.5, 1.8, 2.7),
        counters={"best_rate": 6e6, "rtt_s": 0.02, "retransmitted": 5 * 10**6},
    )
    said = lossy.said()
    assert said.verdict.cause is Cause.LOSS
    assert ("bytes that TCP sent again", "5.0%") in said.verdict.evidence
    saved = lossy.window().step_seconds - replace(lossy, repairs=(1.0,)).window().step_seconds
    assert said.verdict.saved_seconds == pytest.approx(saved, rel=0.25)


def test_a_full_line_that_was_faster_before_or_that_carries_others_bytes_is_told_so() -> None:
    window = FULL.window()
    links = [replace(link, good_rate=10e6, earlier_rate=24e6) for link in window.links]
    ranks = [replace(rank, relayed=0.43) for rank in window.ranks]
    said = diagnose(replace(window, links=links, ranks=ranks, egress_dollars_per_day=12.5)).verdict
    assert said.cause is Cause.BANDWIDTH
    assert ("what TCP delivered in good times before", "192 Mbit/s") in said.evidence
    assert any(name.endswith("sends, passed on for others") and value == "43%" for name, value in said.evidence)
    assert ("egress at the sites' prices", "$12.50 a day") in said.evidence
    assert "carried more before" in said.fix
    assert "repair their link" in said.fix
    plain = FULL.said().verdict
    assert len(plain.evidence) == len(said.evidence) - 3
    assert plain.fix.startswith("Send less")


def test_only_what_the_program_waited_for_can_be_saved() -> None:
    """Operations behind the computation cost nothing, though the link is full."""
    window = FULL.window()
    hidden = [
        replace(
            rank,
            steps=[replace(step, exposed=0.0) for step in rank.steps],
            operations=[replace(one, wait_began=None, wait_ended=None) for one in rank.operations],
        )
        for rank in window.ranks
    ]
    said = diagnose(replace(window, ranks=hidden))
    assert said.verdict.cause is Cause.COMPUTE
    assert "GPU" in said.verdict.fix


def test_ranks_that_are_missing_and_lost_reports_are_told() -> None:
    window = FULL.window()
    said = diagnose(replace(window, ranks=window.ranks[:1], lost=3))
    assert any("PARTIAL: 1 of 2 ranks" in note for note in said.notes)
    assert any("3 reports" in note for note in said.notes)


def test_nothing_reported_is_not_known() -> None:
    assert diagnose(RunWindow([])).verdict.cause is Cause.UNKNOWN


@pytest.mark.parametrize("owners", [False, True])
def test_a_run_store_with_clocks_apart_is_read_on_one_clock(owners: bool, tmp_path: Path) -> None:
    run = Run(compute=(0.1, 0.1, 0.3), owners=owners)
    write_store(run, tmp_path, ahead_s=(11.0, 14.7, 9.4))
    window = read_window(RunStore(tmp_path), last=10)
    assert window.step_count == 10
    assert [rank.clock_error for rank in window.ranks] == pytest.approx([0.0, 0.005, 0.005], abs=5e-4)
    said, same = diagnose(window), run.said()
    assert (said.verdict.cause, said.verdict.where) == (Cause.STRAGGLER, "c")
    assert said.verdict.saved_seconds == pytest.approx(same.verdict.saved_seconds, rel=0.05)


def round_row(offered: int, last: str, **peers: tuple[int | None, int]) -> dict[str, Any]:
    """A row of `geocomm.round_log()`; peers: when each announced its frame, and when that was there. Seconds."""
    rows = [
        {"site": site, "announced_ns": announced and announced * 10**9, "arrived_ns": arrived * 10**9}
        for site, (announced, arrived) in peers.items()
    ]
    return {"failed": False, "offered_ns": offered * 10**9, "last_arrived": last, "peers": rows}


def test_rounds_name_who_is_waited_for_and_cost_only_what_steps_stood_still() -> None:
    rows = [round_row(10, "b", b=(13, 14)), round_row(30, "b", b=(None, 34)), round_row(50, "b", b=(41, 45))]
    waits = round_waits(("a", row) for row in rows)
    assert [(wait.last, wait.waited, wait.for_site) for wait in waits] == [("b", 4, 3), ("b", 4, None), ("b", 0, 0)]
    steps = RankWindow(("a", 0), Run().window().ranks[0].steps, [])
    free = diagnose(RunWindow([alone(steps)], of_ranks=1, rounds=waits, waited_by_site={"a": 0.0}))
    assert free.verdict.cause is Cause.COMPUTE
    assert ("rounds whose last frame was that of b", "3 of 3") in free.verdict.evidence
    costly = diagnose(RunWindow([alone(steps)], of_ranks=1, rounds=waits, waited_by_site={"a": 0.05}))
    assert (costly.verdict.cause, costly.verdict.where) == (Cause.ROUNDS, "b")
    assert costly.verdict.saved_seconds == 0.05


@pytest.mark.parametrize("elastic", [False, True])
def test_of_three_sites_the_one_counts_that_is_waited_for_alone(elastic: bool) -> None:
    """b is last most often, and by little; c is last once, since its steps are slow."""

    def announced(at: int) -> int | None:
        return None if elastic else at

    a = [round_row(10, "b", b=(announced(10), 20), c=(announced(11), 19)) for _ in range(4)]
    waits = round_waits([("a", row) for row in (*a, round_row(10, "c", b=(announced(10), 20), c=(announced(49), 50)))])
    assert [(wait.last, wait.waited) for wait in waits] == [("b", 1)] * 4 + [("c", 30)]
    steps = RankWindow(("a", 0), Run().window().ranks[0].steps, [])
    said = diagnose(RunWindow([alone(steps)], of_ranks=1, rounds=waits, waited_by_site={"a": 0.05}, elastic=elastic))
    assert (said.verdict.cause, said.verdict.where) == (Cause.ROUNDS, "c")
    assert ("Look at c" in said.verdict.fix) == (not elastic)


def alone(rank: RankWindow) -> RankWindow:
    """Without collectives."""
    return replace(rank, steps=[replace(step, exposed=0.0) for step in rank.steps])
