"""Traces of constructed reports: clocks that are far apart, lanes, rounds, what is under way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from geocomm.observe.diagnosis.trace_export import NoTraceError, read_trace, write_trace
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import RunStore
from support.chrome_trace import OpenedTrace, open_trace
from support.reports import keep

MS = 1_000_000
S = 1000 * MS
AHEAD_NS = (0, 3_700 * MS)
"""By so much the ranks' clocks are ahead."""
WAY_NS = 100 * MS
WRONG_US = (1500, -900)
"""By so much the ranks' measurements are wrong."""


def report(rank: int, second: float, *, links: bool = True, **content: Any) -> Report:
    offset_us = (AHEAD_NS[1 - rank] - AHEAD_NS[rank]) // 1000 + WRONG_US[rank]
    peers = [{"site": "ab"[1 - rank], "rank": 1 - rank, "clock_offset_us": offset_us, "clock_error_us": 2000}]
    return Report.model_validate(
        {
            "site": "ab"[rank],
            "rank": rank,
            "host": "node",
            "process": f"{rank:016x}",
            "sequence": int(second * 10),
            "time": second + 0.3 * rank,
            "now_ns": int(second * S) + AHEAD_NS[rank],
            "stats": {"peers": peers if links else [], "local_steps": [], "groups": []},
            **content,
        }
    )


def operation(rank: int, number: int, issued_ms: int, other_issued_ms: int) -> dict[str, Any]:
    """An exchange of two ranks: what each sends is there 100 ms later. Both end when both have all."""

    def here(at_ms: float) -> int:
        return int(at_ms * MS) + AHEAD_NS[rank]

    first = here(other_issued_ms + 100)
    ended = here(max(issued_ms, other_issued_ms) + 100 + 20)
    times = {"issued_ns": here(issued_ms), "began_ns": here(issued_ms + 1), "encoded_ns": here(issued_ms + 5)}
    times |= {"exchanged_ns": ended - 2 * MS, "ended_ns": ended, "wait_began_ns": None, "wait_ended_ns": None}
    peer = {"peer": "x", "rank": 1 - rank, "site": "ab"[1 - rank], "first_in_ns": first, "last_in_ns": ended - 3 * MS}
    own = {"number": number, "group": 2**62, "sequence": number, "kind": "all_reduce", "dtype": "float32"}
    sums = dict.fromkeys(("raw_bytes_sent", "wire_bytes_sent", "raw_bytes_received", "wire_bytes_received"), 8)
    return {**own, **times, **sums, "elements": 9, "codec": "", "coding_ns": 5, "failed": False, "peers": [peer]}


def step(rank: int, number: int, ended_ms: int) -> dict[str, Any]:
    return {"step": number, "ended_ns": ended_ms * MS + AHEAD_NS[rank], "seconds": 0.5, "tokens": 3}


def traced(folder: Path, reports: list[tuple[float, Report]], steps: int = 2) -> OpenedTrace:
    store = RunStore(folder, write=True)
    for at, one in reports:
        keep(store, one, at)
    write_trace(read_trace(store, reports[-1][0], steps), folder / "run.tar")
    return open_trace(folder / "run.tar")


def test_clocks_far_apart_become_one_within_the_error_of_their_measurement(tmp_path: Path) -> None:
    issued = {1: (30_000, 30_020), 2: (30_400, 30_100), 3: (30_600, 30_600)}  # the first is over before the steps
    reports = [(float(second), report(rank, second)) for second in range(1, 30) for rank in range(2)]
    for rank in range(2):
        rows = [operation(rank, number, at[rank], at[1 - rank]) for number, at in issued.items()]
        steps = [step(rank, number, 30_000 + 500 * number) for number in range(4)]
        reports.append((31.9, report(rank, 31.9, operations=rows, steps=steps)))
    trace = traced(tmp_path, reports)
    names = ("rank 0 (site a)", "rank 1 (site b)")
    assert "all_reduce 1" not in {one.name for one in trace.slices}
    for name in ("all_reduce 2", "all_reduce 3"):
        calls = [trace.find(who, "operations", name) for who in names]
        for rank in range(2):
            arrives = trace.find(names[1 - rank], f"from {names[rank]}", name)
            assert arrives.begin_us > calls[rank].begin_us
            assert arrives.begin_us - calls[rank].begin_us == pytest.approx(WAY_NS / 1e3, abs=2000)
        assert abs(calls[0].end_us - calls[1].end_us) <= 5000
    assert [one.name for one in trace.slices if one.lane == "steps"] == ["step 2", "step 3"] * 2
    offset = trace.manifest["attributes"]["geocomm.clock_offset_ns.b-rank1.json"]
    assert abs(offset - AHEAD_NS[1]) <= 2 * MS


def test_overlapping_operations_have_lanes_of_their_own_and_what_is_under_way_goes_on(tmp_path: Path) -> None:
    running = operation(0, 2, 1_050, 1_060) | dict.fromkeys(("exchanged_ns", "ended_ns"))
    running["peers"][0]["last_in_ns"] = None
    round_times = {"due_ns": 1_100 * MS, "begun_ns": 1_110 * MS, "offered_ns": 1_200 * MS, "listed_ns": None}
    round_times |= {"averaged_ns": None, "applied_ns": None, "counted": None, "last_arrived": None, "failed": False}
    peers = [{"site": "b", "announced_ns": None, "arrived_ns": 1_300 * MS, "bytes": 7}]
    row = {
        "number": 1,
        "elastic": False,
        "fragment": 0,
        "round": 4,
        "step": 9,
        "weight": 1,
        "bytes": 7,
        "attempts": 1,
        "peers": peers,
    }
    rows = [operation(0, 1, 1_000, 1_010), running]
    own = report(0, 1.5, operations=rows, rounds=[row | round_times], steps=[step(0, 7, 1_400)])
    trace = traced(tmp_path, [(1.5, own)])
    lanes = {one.name: one.lane for one in trace.slices if one.name.startswith("all_reduce") and "oper" in one.lane}
    assert lanes == {"all_reduce 1": "operations", "all_reduce 2": "operations (2)"}
    name = "rank 0 (site a)"
    slices = [trace.find(name, lane, what) for lane, what in (("rounds", "round 4 of fragment 0"), ("steps", "step 7"))]
    assert slices[0].args["under way"]
    assert slices[0].end_us - slices[1].end_us == 100_000
    assert trace.find(name, "rounds", "waits for sites").end_us == slices[0].end_us
    assert trace.find(name, "from site b", "round 4 of fragment 0").args == {"bytes": 7}


@pytest.mark.parametrize("seed", range(10))
def test_slices_of_any_times_nest_to_the_nanosecond(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(60):
        times = sorted(chance.randrange(S, 3 * S) for _ in range(7))
        names = ("issued", "began", "wait_began", "encoded", "exchanged", "ended", "wait_ended")
        row = operation(0, number, 0, 0) | {f"{name}_ns": at for name, at in zip(names, times, strict=True)}
        row["peers"][0] |= {"first_in_ns": times[chance.randrange(3)], "last_in_ns": times[3]}
        rows.append(row)
    ends = sorted(chance.randrange(S, 3 * S) for _ in range(20))
    took = [
        round((end - before) / 1e9, chance.choice((3, 6, 9))) for before, end in zip([S, *ends], ends, strict=False)
    ]
    steps = [
        {"step": number, "ended_ns": end, "seconds": seconds}
        for number, (end, seconds) in enumerate(zip(ends, took, strict=True))
    ]
    trace = traced(tmp_path, [(3.0, report(0, 3.0, operations=rows, steps=steps))], steps=20)
    assert len([one for one in trace.slices if one.lane == "steps"]) == 20


def test_loss_that_is_no_number_is_a_word_in_valid_json(tmp_path: Path) -> None:
    steps = [step(0, 7, 1_400) | {"loss": float("nan")}, step(0, 8, 1_900) | {"loss": float("-inf")}]
    trace = traced(tmp_path, [(2.0, report(0, 2.0, steps=steps))])
    assert [one.args["loss"] for one in trace.slices if one.lane == "steps"] == ["nan", "-inf"]


def test_run_without_steps_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(NoTraceError, match="report_step"):
        traced(tmp_path, [(1.0, report(0, 1.0))])
