"""Verdicts on local steps: what each cause costs in tokens that the run would have counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from geocomm.observe.diagnosis.bottleneck import diagnose
from geocomm.observe.diagnosis.round_waits import RoundPace, RoundWait, round_pace
from geocomm.observe.diagnosis.run_window import RankWindow, RunWindow, Step, read_window
from geocomm.observe.diagnosis.verdict import Cause, Verdict, headline
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import RunStore
from support.reports import keep

COUNT = 40
TOKENS = 1000


def site(
    name: str,
    seconds: float = 0.1,
    *,
    load: float | None = 0.0,
    save: float = 0.0,
    pause: float = 0.0,
    tokens: int | None = TOKENS,
) -> RankWindow:
    """A rank. save, pause: in every tenth step."""
    now, steps = 0.0, list[Step]()
    for number in range(COUNT):
        rare = number % 10 == 5
        took = seconds + (load or 0.0) + (save + pause) * rare
        steps.append(Step(7 * number, now, now + took, load, 0.0, save * rare, tokens))
        now += took
    return RankWindow((name, 0), steps, [])


def said(*sites: RankWindow, waited: Mapping[str, float] | None = None, **more: Any) -> Sequence[Verdict]:
    stood = {rank.place[0]: 0.0 for rank in sites} | dict(waited or {})
    return diagnose(RunWindow(sites, of_ranks=len(sites), waited_by_site=stood, **more)).verdicts


def test_sites_that_train_at_their_best_have_computation_alone() -> None:
    assert [one.cause for one in said(site("a"), site("b"))] == [Cause.COMPUTE]


def test_input_at_all_sites_costs_tokens_of_all() -> None:
    (verdict,) = said(site("a", load=0.1), site("b", load=0.1))
    assert (verdict.cause, verdict.where) == (Cause.INPUT, "")
    assert verdict.share == pytest.approx(0.5)
    assert headline(verdict) == "Input: without it, the run would count 100% more tokens."


def test_input_at_one_site_costs_tokens_of_that_site_alone() -> None:
    (verdict,) = said(site("a"), site("b", load=0.1))
    assert (verdict.cause, verdict.where) == (Cause.INPUT, "b")
    assert verdict.share == pytest.approx(0.25)  # 10 + 5 of 20 thousand a second


def test_checkpoints_that_are_told_and_pauses_that_are_not() -> None:
    (saved,) = said(site("a", save=1.0), site("b", save=1.0))
    assert (saved.cause, saved.share) == (Cause.CHECKPOINT, pytest.approx(0.5))
    (paused,) = said(site("a"), site("b", pause=1.0))
    assert (paused.cause, paused.where, paused.share) == (Cause.PAUSES, "b", pytest.approx(0.25))
    assert headline(paused).startswith("Pauses of b, 4 of 40 steps, 1.00 s each: without them, ")


def test_a_slow_site_costs_its_own_tokens() -> None:
    (verdict,) = said(site("a"), site("b", 0.2))
    assert (verdict.cause, verdict.where, verdict.share) == (Cause.STRAGGLER, "b", pytest.approx(0.25))
    assert said(site("a"), site("b", 0.12))[0].cause is Cause.COMPUTE


def test_without_tokens_steps_are_counted() -> None:
    (verdict,) = said(site("a", tokens=None), site("b", 0.2, tokens=None))
    assert headline(verdict) == "Slow site, b: without it, the run would count 33% more steps."


def test_steps_that_stand_still_for_rounds_do_not_pause() -> None:
    rounds = [RoundWait("b", "a", 1.0, 0.0)]
    verdicts = said(site("a"), site("b", pause=1.0), waited={"b": 0.1}, rounds=rounds)
    assert (verdicts[0].cause, verdicts[0].where) == (Cause.ROUNDS, "a")
    assert Cause.PAUSES not in {one.cause for one in verdicts}


def test_tokens_of_count_tokens_are_those_that_count() -> None:
    """b has three times as large a batch: what it loses is three quarters of the run."""
    (verdict,) = said(site("a"), site("b", load=0.1), tokens_by_site={"a": 1000.0, "b": 3000.0})
    assert verdict.share == pytest.approx(1 - (10 + 15) / 40)


def waits(for_site: float | None) -> list[RoundWait]:
    return [RoundWait("a", "b", 3.0, for_site), RoundWait("b", "a", 2.0, 0.0)]


def test_a_line_that_is_too_slow_for_the_rounds_is_named_though_no_step_waits() -> None:
    pace = RoundPace(every=30, steps=75.0, rounds=8, missed={"a": (0, 8), "b": (0, 8)})
    (verdict,) = said(site("a"), site("b"), rounds=waits(0.1), pace=pace)
    assert verdict.cause is Cause.LINE
    assert "every 75 steps" in headline(verdict)
    assert "every=94" in verdict.fix


def test_rounds_that_wait_for_a_slow_site_are_not_the_lines() -> None:
    pace = RoundPace(every=30, steps=75.0, rounds=8, missed={"a": (0, 8), "b": (0, 8)})
    (verdict,) = said(site("a"), site("b", 0.25), rounds=waits(3.0), pace=pace)
    assert (verdict.cause, verdict.where) == (Cause.STRAGGLER, "b")


def test_rounds_that_miss_a_site_are_told_in_elastic_runs() -> None:
    pace = RoundPace(every=30, steps=31.0, rounds=20, missed={"a": (0, 20), "b": (12, 20)})
    (verdict,) = said(site("a"), site("b"), pace=pace, elastic=True)
    assert (verdict.cause, verdict.where, verdict.share) == (Cause.MISSED, "b", pytest.approx(0.3))
    assert headline(verdict).startswith("12 of 20 rounds missed b: at most 30% of the run's tokens ")


def row(number: int, step: int, counted: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"fragment": 0, "round": number, "step": step, "counted": counted, "failed": False, "applied_ns": 1, **more}


def test_pace_of_rounds_is_that_of_those_that_counted_and_not_of_the_last_ones() -> None:
    rows = [("a", row(i, 40 * i, ["a", "b"] if i % 2 else ["a"])) for i in range(6)]
    rows += [("b", row(i, 40 * i, ["a", "b"] if i % 2 else ["a"])) for i in range(6)]
    rows += [("a", row(6, 241, ["a"], last=True)), ("a", row(7, 242, [])), ("a", row(8, 243, ["a"], failed=True))]
    assert round_pace(rows, 30) == RoundPace(30, 40.0, 6, {"a": (0, 6), "b": (2, 5)})
    assert round_pace(rows[-3:], 30) is None


def test_a_run_store_of_sites_whose_steps_have_other_numbers_is_read(tmp_path: Path) -> None:
    """Of an elastic run: a counts its own steps, b those of the run, of which it sees some twice and others not."""
    store = RunStore(tmp_path, write=True)
    numbers = {"a": list(range(3001, 3041)), "b": [5 * (i // 2) for i in range(40)]}
    for index, (name, own) in enumerate(numbers.items()):
        steps = [
            {"step": number, "ended_ns": int((i + 1) * 1e8 * (1 + index)), "seconds": 0.1 * (1 + index), "tokens": 1}
            for i, number in enumerate(own)
        ]
        report = {"site": name, "rank": 0, "process": f"{index:016x}", "sequence": 1, "time": 0.0, "now_ns": 10**10}
        stats = {"peers": [], "local_steps": [{"steps": 40, "tokens": 4000, "waited_seconds": 0.0, "every": 30}]}
        keep(store, Report.model_validate(report | {"stats": stats, "steps": steps}), 1e9)
    window = read_window(store, 50)
    assert [len(rank.steps) for rank in window.ranks] == [40, 40]
    verdict = diagnose(window).verdict
    assert (verdict.cause, verdict.where) == (Cause.STRAGGLER, "b")
    assert window.tokens_by_site == {"a": 100.0, "b": 100.0}
