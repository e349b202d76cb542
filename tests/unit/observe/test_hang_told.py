"""What hangs, of constructed reports: after the run, missing bytes, messages, rounds of local steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geocomm.cli.hang import told
from geocomm.observe.diagnosis.stuck_operations import find_hang
from geocomm.observe.telemetry.overview import moment
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import RunStore
from support.reports import keep

S = 10**9
NOW = 5000.0


def operation(sequence: int, issued_s: float, ended_s: float | None = None, **more: Any) -> dict[str, Any]:
    own = {"number": sequence, "group": 7, "sequence": sequence, "kind": "broadcast", "dtype": "float32", "elements": 9}
    times = {"issued_ns": int(issued_s * S), "began_ns": int(issued_s * S), "ended_ns": ended_s and int(ended_s * S)}
    return {**own, **times, "failed": False, "peers": [], **more}


def sender(rank: int, first_s: float | None = None) -> dict[str, Any]:
    first_ns = None if first_s is None else int(first_s * S)
    return {"peer": f"rank {rank}", "rank": rank, "site": "ab"[rank], "first_in_ns": first_ns, "last_in_ns": None}


def said(folder: Path, *reports: tuple[int, float, dict[str, Any]]) -> list[str]:
    """The lines for reports: rank, second, what is in it."""
    store = RunStore(folder, write=True)
    for number, (rank, second, content) in enumerate(reports):
        own = {"site": "ab"[rank], "rank": rank, "process": f"{rank:016x}", "sequence": number, "time": second}
        stats = {"peers": [], "local_steps": [{}], "groups": []}
        report = Report.model_validate({**own, "now_ns": int(second * S), "stats": stats, **content})
        keep(store, report, second)
    return list(told(find_hang(store, moment(store, NOW), 10), NOW))


def test_receiver_waits_for_the_rest_of_what_a_root_has_sent_and_forgotten(tmp_path: Path) -> None:
    waits = operation(3, NOW - 60, peers=[sender(0, NOW - 50)])
    assert said(
        tmp_path,
        (0, NOW - 60, {"operations": [operation(3, NOW - 62, NOW - 61)]}),
        (0, NOW - 30, {"operations": [operation(4, NOW - 31, NOW - 30.5)]}),
        (0, NOW, {}),
        (1, NOW, {"operations": [waits, operation(4, NOW - 40)]}),
    ) == [
        "broadcast 3 (float32, 9 elements) is under way; it was called 62 s ago.",
        "  rank 1 (site b) waits for the rest from rank 0 (site a), since 60 s.",
        "  1 later operations of the group are under way behind it.",
    ]


def test_run_that_was_killed_is_seen_as_it_was_at_its_last_report(tmp_path: Path) -> None:
    lines = said(
        tmp_path,
        (0, NOW - 3630, {"operations": [operation(1, NOW - 3630)]}),
        (0, NOW - 3600, {"operations": [operation(1, NOW - 3630, peers=[sender(1)])]}),
        (1, NOW - 3600, {}),
    )
    assert lines == [
        "The last report came 60 min ago. What follows was so then.",
        "broadcast 1 (float32, 9 elements) is under way; it was called 30 s ago.",
        "  rank 1 (site b) has not come: it reports, so its program is elsewhere; no operation of it is known.",
        "  rank 0 (site a) waits for bytes from rank 1 (site b), since 30 s.",
    ]


def test_message_is_not_taken_for_a_collective_of_its_number(tmp_path: Path) -> None:
    message = operation(1, NOW - 20, kind="send_recv", dtype="uint8", elements=0, peers=[sender(1)])
    other = operation(1, NOW - 30.5, NOW - 30)
    assert said(tmp_path, (0, NOW, {"operations": [message]}), (1, NOW - 25, {"operations": [other]})) == [
        "send_recv 1 (uint8) is under way; it was called 20 s ago.",
        "  rank 1 (site b) has not come: it has been silent for 25 s; its last operation was "
        "broadcast 1 (float32, 9 elements), which ended 30 s ago.",
        "  rank 0 (site a) waits for bytes from rank 1 (site b), since 20 s.",
    ]


def test_open_round_names_the_site_that_it_waits_for_and_a_silent_rank_is_named_too(tmp_path: Path) -> None:
    times = dict.fromkeys(("listed_ns", "averaged_ns", "applied_ns", "counted"))
    peers = [{"site": "b", "arrived_ns": None}]
    row = {"number": 1, "elastic": False, "fragment": 2, "round": 5, "failed": False, "peers": peers, **times}
    row |= {"due_ns": int((NOW - 40) * S), "begun_ns": int((NOW - 39) * S)}
    assert said(tmp_path, (0, NOW, {"rounds": [row]}), (1, NOW - 30, {})) == [
        "round 5 of fragment 2 has been under way for 40 s: it waits for b.",
        "rank 1 (site b) has been silent for 30 s.",
    ]
