"""What reports say of times in which a line carried nothing, or a process did not run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from geocomm.observe.diagnosis.run_window import RunWindow, read_window
from geocomm.observe.diagnosis.stalls import find_stalls
from geocomm.observe.diagnosis.verdict import Cause
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import RunStore
from support.reports import keep

S = 10**9
SECONDS = 30
LONG = (10, 15)
"""A step of five seconds among those of one."""
PEER: dict[str, Any] = {"peer": "rank 1", "site": "b", "rank": 1, "rtt_us": 20_000, "min_rtt_us": 20_000}


def window(folder: Path, *, silent: bool, waits: bool, without: Sequence[int] = (), counted: bool = False) -> RunWindow:
    """A rank whose step is long. silent: nothing comes meanwhile. waits: TCP has data that is not acknowledged.
    without: seconds at which it does not report. counted: as an outage, at the end."""
    store = RunStore(folder, write=True)
    began, ended = LONG
    sequence = 0
    for second in range(1, SECONDS + 1):
        if second in without:
            continue
        sequence += 1
        still = min(max(0, second - began), ended - began)
        step = {"step": second, "ended_ns": second * S, "seconds": 1.0 if second != ended else ended - began + 1.0}
        peer = PEER | {
            "bytes_received": 1000 * (second - still * silent),
            "busy_us": 1_000_000 * still * waits,
            "outage_us": 4_500_000 if counted and second >= ended else 0,
        }
        report = {
            "site": "a",
            "rank": 0,
            "process": "0123456789abcdef",
            "sequence": sequence,
            "time": 0.0,
            "now_ns": second * S + S // 10,
            "stats": {"peers": [peer], "local_steps": []},
            "steps": [] if began <= second < ended else [step],
        }
        keep(store, Report.model_validate(report), 1e6 + second)
    return read_window(store, 50)


def causes(window: RunWindow) -> list[tuple[Cause, str]]:
    return [(verdict.cause, verdict.where) for verdict in find_stalls(window).verdicts]


def test_a_line_that_carries_nothing_while_data_waits_is_out_though_its_connections_stay(tmp_path: Path) -> None:
    seen = window(tmp_path, silent=True, waits=True)
    assert {outage.between for outage in seen.outages} == {"a - b"}
    assert min(outage.began for outage in seen.outages) == pytest.approx(LONG[0] + 0.1)
    assert max(outage.ended for outage in seen.outages) == pytest.approx(LONG[1] + 0.1)
    assert (Cause.OUTAGE, "a - b") in causes(seen)


def test_an_outage_that_was_counted_lies_before_the_report_that_tells_of_it(tmp_path: Path) -> None:
    seen = window(tmp_path, silent=False, waits=False, counted=True)
    (outage,) = seen.outages
    assert (outage.began, outage.ended) == (pytest.approx(LONG[1] - 0.9 - 4.5), pytest.approx(LONG[1] + 0.1))
    assert (Cause.OUTAGE, "a - b") in causes(seen)


@pytest.mark.parametrize(("silent", "waits"), [(True, False), (False, True)])
def test_a_line_on_which_nothing_waits_or_something_comes_is_not_out(silent: bool, waits: bool, tmp_path: Path) -> None:
    seen = window(tmp_path, silent=silent, waits=waits)
    assert not seen.outages
    assert Cause.OUTAGE not in {cause for cause, _ in causes(seen)}


@pytest.mark.parametrize("stopped", [False, True])
def test_a_line_is_not_out_where_the_process_at_its_other_end_has_stopped(stopped: bool, tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    began, ended = LONG
    for second in range(1, SECONDS + 1):
        still = min(max(0, second - began), ended - began)
        for number, site in enumerate("ab"):
            if site == "b" and stopped and began < second < ended:
                continue
            peer = PEER | {"site": "ba"[number], "rank": 1 - number, "peer": f"rank {1 - number}"}
            peer |= {"clock_offset_us": 0, "clock_error_us": 100}
            if site == "a":
                peer |= {"bytes_received": 1000 * (second - still), "busy_us": 1_000_000 * still}
            sequence = second - (still if second < ended else ended - began - 1) * (site == "b" and stopped)
            step = {"step": second, "ended_ns": second * S, "seconds": 1.0 if second != ended else ended - began + 1.0}
            report = {"site": site, "rank": number, "process": f"{number:016x}", "sequence": sequence, "time": 0.0}
            stats = {"peers": [peer], "local_steps": []}
            more = {"now_ns": second * S, "stats": stats, "steps": [] if began <= second < ended else [step]}
            keep(store, Report.model_validate(report | more), 1e6 + second)
    assert {outage.between for outage in read_window(store, 50).outages} == (set() if stopped else {"a - b"})


def test_a_process_that_did_not_report_is_known_with_when(tmp_path: Path) -> None:
    seen = window(tmp_path, silent=False, waits=False, without=range(11, 15))
    assert seen.ranks[0].stops == [(pytest.approx(10.1), pytest.approx(15.1))]


def test_a_process_that_reports_each_second_did_not_stop(tmp_path: Path) -> None:
    assert not window(tmp_path, silent=False, waits=False).ranks[0].stops


def test_where_reports_were_lost_the_longest_row_of_steps_counts(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    for second in (*range(1, 21), *range(24, 28)):
        step = {"step": second, "ended_ns": second * S, "seconds": 1.0}
        report = {"site": "a", "rank": 0, "process": "0123456789abcdef", "sequence": second, "time": 0.0}
        more: dict[str, Any] = {"now_ns": second * S, "stats": {"peers": [], "local_steps": []}, "steps": [step]}
        keep(store, Report.model_validate(report | more), 1e6 + second)
    assert [step.number for step in read_window(store, 50).ranks[0].steps] == [*range(1, 21)]
