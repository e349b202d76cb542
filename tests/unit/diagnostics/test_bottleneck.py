"""Verdicts on runs whose causes are known, since their times are computed from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from geocomm.diagnostics.bottleneck import Diagnosis, diagnose
from geocomm.diagnostics.replay import Replay, Without
from geocomm.diagnostics.round_waits import round_waits
from geocomm.diagnostics.run_window import LinkUse, Operation, RankWindow, RunWindow, Step, read_window
from geocomm.diagnostics.verdict import Cause
from geocomm.telemetry.report import Report
from geocomm.telemetry.run_store import RunStore

SITES = ("a", "b")
STEPS = 20


@dataclass(frozen=True)
class Run:
    """Two sites with a rank each: they load, compute, and reduce, one operation after the other."""

    compute: tuple[float, float] = (0.1, 0.1)
    load: tuple[float, float] = (0.0, 0.0)
    save: float = 0.0
    operations: int = 2
    size: int = 1 << 20
    rate: float = 50e6
    delay: float = 0.005
    coding: float = 0.0
    counters: dict[str, Any] = field(default_factory=dict[str, Any])

    def window(self) -> RunWindow:
        """What the run's telemetry would say."""
        now = [0.0, 0.0]
        steps: tuple[list[Step], list[Step]] = ([], [])
        rows: tuple[list[Operation], list[Operation]] = ([], [])
        for number in range(STEPS):
            began = list(now)
            exposed = [0.0, 0.0]
            now = [now[i] + self.compute[i] + self.load[i] for i in range(2)]
            for k in range(self.operations):
                issued = list(now)
                arrived = [issued[1 - i] + max(self.coding, self.size / self.rate) + self.delay for i in range(2)]
                now = [max(arrived[i], issued[i] + self.coding) + self.coding / 8 for i in range(2)]
                for i in range(2):
                    exposed[i] += now[i] - issued[i]
                    rows[i].append(
                        Operation(
                            key=(1, number * self.operations + k),
                            kind="all_reduce",
                            codec="int8",
                            issued=issued[i],
                            began=issued[i],
                            encoded=issued[i] + self.coding,
                            exchanged=now[i],
                            ended=now[i],
                            wait_began=issued[i],
                            wait_ended=now[i],
                            coding=2 * self.coding,
                            bytes_sent=self.size,
                            bytes_received=self.size,
                            arrivals={(SITES[1 - i], 1 - i): max(arrived[i], issued[i])},
                        )
                    )
            now = [at + self.save for at in now]
            for i in range(2):
                steps[i].append(Step(number, began[i], now[i], self.load[i], exposed[i], self.save))
        ranks = [RankWindow((SITES[i], i), steps[i], rows[i], clock_error=0.001 * i) for i in range(2)]
        plain: dict[str, Any] = {
            "bytes_sent": 10**8,
            "busy_s": 8.0,
            "rtt_s": 2 * self.delay,
            "streams": 2,
            **self.counters,
        }
        links = [LinkUse((SITES[i], i), (SITES[1 - i], 1 - i), min_rtt_s=2 * self.delay, **plain) for i in range(2)]
        return RunWindow(ranks, links, of_ranks=2)

    def said(self) -> Diagnosis:
        """The verdicts."""
        return diagnose(self.window())


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


def test_waiting_for_a_slow_site_is_not_taken_for_a_slow_link() -> None:
    said = replace(FULL, compute=(0.1, 1.0)).said()
    assert [verdict.cause for verdict in said.verdicts] == [Cause.STRAGGLER, Cause.BANDWIDTH]
    assert said.verdict.where == "b"
    assert said.verdicts[1].where == "a - b"


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


def test_a_run_store_with_clocks_apart_is_read_on_one_clock(tmp_path: Path) -> None:
    apart_ns = 3_700_000_000
    store = RunStore(tmp_path, write=True)
    for i, rank in enumerate(Run(compute=(0.1, 0.3)).window().ranks):
        shift = i * apart_ns + 10**9

        def ns(at: float | None, shift: int = shift) -> int | None:
            return None if at is None else int(at * 1e9) + shift

        peer = {
            "rank": 1 - i,
            "site": SITES[1 - i],
            "peer": f"rank {1 - i}",
            "min_rtt_us": 10_000,
            "rtt_us": 10_000,
            "clock_offset_us": (1 - 2 * i) * apart_ns // 1000,
            "clock_error_us": 5000,
        }
        rows = [
            {
                "number": k + 1,
                "group": 1,
                "sequence": k,
                "kind": one.kind,
                "codec": one.codec,
                "failed": False,
                "wire_bytes_sent": one.bytes_sent,
                "wire_bytes_received": one.bytes_received,
                "coding_ns": 0,
                "peers": [{**peer, "last_in_ns": ns(next(iter(one.arrivals.values())))}],
                **{
                    f"{name}_ns": ns(getattr(one, name))
                    for name in ("issued", "began", "encoded", "exchanged", "ended", "wait_began", "wait_ended")
                },
            }
            for k, one in enumerate(rank.operations)
        ]
        steps = [
            {"step": step.number, "ended_ns": ns(step.ended), "seconds": step.seconds, "exposed_seconds": step.exposed}
            for step in rank.steps
        ]
        report = {"site": SITES[i], "rank": i, "process": f"{i:016x}", "sequence": 1, "time": 0.0}
        report["now_ns"] = steps[-1]["ended_ns"]
        store.add(
            Report.model_validate({**report, "stats": {"peers": [peer]}, "steps": steps, "operations": rows}), 1e9
        )
    window = read_window(RunStore(tmp_path), last=10)
    assert window.step_count == 10
    assert [rank.clock_error for rank in window.ranks] == pytest.approx([0.0, 0.005], abs=5e-4)
    said = diagnose(window)
    assert said.verdict.cause is Cause.STRAGGLER
    assert said.verdict.where == "b"


def round_row(offered: int, announced: int | None, arrived: int) -> dict[str, Any]:
    """A row of `geocomm.round_log()`, times in seconds."""
    peer = {"site": "b", "announced_ns": announced and announced * 10**9, "arrived_ns": arrived * 10**9}
    return {"failed": False, "offered_ns": offered * 10**9, "last_arrived": "b", "peers": [peer]}


def test_rounds_name_who_is_waited_for_and_cost_only_what_steps_stood_still() -> None:
    waits = round_waits([("a", round_row(10, 13, 14)), ("a", round_row(30, None, 34)), ("a", round_row(50, 41, 45))])
    assert [(wait.last, wait.waited, wait.for_site) for wait in waits] == [("b", 4, 3), ("b", 4, None), ("b", 0, 0)]
    steps = RankWindow(("a", 0), Run().window().ranks[0].steps, [])
    free = diagnose(RunWindow([alone(steps)], of_ranks=1, rounds=waits, waited_by_site={"a": 0.0}))
    assert free.verdict.cause is Cause.COMPUTE
    assert ("rounds whose last frame was that of b", "3 of 3") in free.verdict.evidence
    costly = diagnose(RunWindow([alone(steps)], of_ranks=1, rounds=waits, waited_by_site={"a": 0.05}))
    assert (costly.verdict.cause, costly.verdict.where) == (Cause.ROUNDS, "b")
    assert costly.verdict.saved_seconds == 0.05


def alone(rank: RankWindow) -> RankWindow:
    """Without collectives."""
    return replace(rank, steps=[replace(step, exposed=0.0) for step in rank.steps])
