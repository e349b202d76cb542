"""Clocks of constructed ranks, whose truth is known: what the reports bound has to hold it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from geocomm.observe.diagnosis.rank_clocks import Clock, rank_clocks
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import Received

MS = 1_000_000
S = 1000 * MS
NOW = (100.0, 100.0)


def link(site: str, offset_us: float, error_us: float) -> dict[str, Any]:
    """A row of a report's peers."""
    known = {"clock_offset_us": round(offset_us), "clock_error_us": round(error_us)}
    return {"site": site, "rank": ord(site) - ord("a"), **known}


def told(
    site: str, *links: dict[str, Any], at: float = 100.0, ahead_ns: int = 0, wrong_s: float = 0.0, host: str = ""
) -> Received:
    """A report; ahead_ns: of its monotonic clock; wrong_s: of its time of day."""
    number = ord(site[0]) - ord("a") + 10 * len(site[1:])
    own = {"site": site[0], "rank": number, "host": host, "process": f"{number:016x}", "sequence": int(at * 10)}
    clocks = {"time": at + wrong_s, "now_ns": round(at * S) + ahead_ns}
    return Received(at, Report.model_validate({**own, **clocks, "stats": {"peers": list(links)}}))


def clock_of(reports: list[Received], last: list[Received], span: tuple[float, float] = NOW) -> Clock:
    """Of the last rank."""
    return rank_clocks(reports, last, span)[last[-1].rank]


@pytest.mark.parametrize("seed", range(20))
def test_truth_is_within_the_error_though_both_sides_measure_it_anew_and_clocks_drift(seed: int) -> None:
    chance = random.Random(seed)
    drift = chance.uniform(-1e-4, 1e-4)

    def truth_us(at: float) -> float:
        return 3_700_000 + 1e6 * drift * at

    reports: list[Received] = []
    errors: list[float] = []
    for at in range(40, 101):
        for here, sign, there in (("a", 1, "b"), ("b", -1, "a")):
            errors.append(chance.uniform(500, 20_000))
            offset = sign * truth_us(at) + errors[-1] * chance.uniform(-1, 1)
            reports.append(told(here, link(there, offset, errors[-1] + 1), at=at))
    span = (chance.uniform(60, 80), chance.uniform(80, 100))
    clock = clock_of(reports, reports[-2:], span)
    for at in span:
        assert abs(clock.offset_ns - 1000 * truth_us(at)) <= clock.error_ns
    assert clock.error_ns < 1000 * sorted(errors)[len(errors) // 2]
    assert clock.measured


def test_errors_add_up_and_the_way_with_the_least_counts() -> None:
    last = [told("a", link("b", 100, 10), link("c", 900, 500)), told("b", link("c", 200, 20)), told("c")]
    assert clock_of([], last) == Clock(300_000, 32_000)


def test_ranks_of_one_machine_have_one_clock_unless_two_machines_have_one_name() -> None:
    ahead = {"ahead_ns": 77 * S}
    last = [told("a", link("b", 77_000_000, 90)), told("b", host="node", **ahead), told("bb", host="node", **ahead)]
    assert clock_of([], last) == Clock(77 * S, 91_000)
    last[2] = told("bb", host="node", ahead_ns=5 * S)
    assert not clock_of([], last).measured


def test_a_machine_that_slept_has_the_offset_that_it_woke_with() -> None:
    reports = [told("a", link("b", 5_000_000, 1000), at=at) for at in range(50, 90)]
    reports += [told("a", link("b", -3_000_000, 2000), at=at) for at in range(90, 101)]
    clock = clock_of(reports, [reports[-1], told("b")])
    assert clock.offset_ns == pytest.approx(-3 * S, abs=MS)
    assert clock.error_ns <= 2001 * 1000


def test_without_links_the_time_of_day_counts_and_the_way_of_reports_says_how_wrong_it_is() -> None:
    last = [told("a"), told("b", ahead_ns=7 * S, wrong_s=0.3)]
    clock = clock_of([], last)
    assert not clock.measured
    assert clock.offset_ns == 7 * S - 300 * MS
    assert 300 * MS <= clock.error_ns < 2 * S


def test_who_is_not_in_the_run_any_more_is_left_out() -> None:
    last = [told("a", link("b", 5, 5)), told("c")]
    assert set(rank_clocks([told("b", link("c", 5, 5))], last, NOW)) == {one.rank for one in last}
