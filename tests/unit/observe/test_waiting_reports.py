"""What waits while a line is down: of every rank the newest reports, and what has to go is counted."""

from __future__ import annotations

from geocomm.observe.telemetry.collector import MOST_AT_ONCE, WaitingReports
from geocomm.observe.telemetry.report import MOST_TOGETHER, ReportLine
from support.reports import line


def report(rank: int, sequence: int) -> ReportLine:
    return line({"site": "a", "rank": rank, "process": f"{rank:016x}", "sequence": sequence, "time": 1.0, "now_ns": 1})


def taken(waiting: WaitingReports) -> list[tuple[int, int]]:
    """Rank and number of each that waits, in their order."""
    found: list[tuple[int, int]] = []
    while lines := waiting.take():
        assert len(lines) <= MOST_TOGETHER
        found += [(said.rank, said.sequence) for said in (ReportLine.read(one).report for one in lines)]
    return found


def test_all_ranks_of_the_largest_site_wait_for_seconds_and_none_is_dropped() -> None:
    waiting = WaitingReports()
    said = [(rank, second) for second in range(4) for rank in range(4096)]
    assert sum(waiting.add(report(*one)) for one in said) == 0
    assert taken(waiting) == said
    assert len(waiting) == 0


def test_of_a_rank_that_waits_long_the_newest_stay_and_no_other_rank_loses_any() -> None:
    waiting = WaitingReports()
    waiting.add(report(1, 1))
    assert sum(waiting.add(report(0, second)) for second in range(MOST_AT_ONCE + 30)) == 30
    found = taken(waiting)
    assert [second for rank, second in found if rank == 0] == list(range(30, MOST_AT_ONCE + 30))
    assert (1, 1) in found


def test_no_more_bytes_wait_than_may_and_the_oldest_go() -> None:
    size = len(report(0, 1).text)
    waiting = WaitingReports(most_bytes=10 * size)
    dropped = sum(waiting.add(report(rank, 1)) for rank in range(10, 50))
    found = taken(waiting)
    assert dropped + len(found) == 40
    assert [rank for rank, _ in found] == list(range(50 - len(found), 50))
    assert 8 <= len(found) <= 10
    waiting.add(report(0, 1))
    waiting.clear()
    assert taken(waiting) == []
