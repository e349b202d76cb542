"""Which ends of a site's ranks have it give up."""

from __future__ import annotations

from pathlib import Path

from geocomm.core.run_dir import RunDir
from geocomm.elastic.rank_starts import LONGEST_PAUSE_S, MOST_FRUITLESS_STARTS, RankStarts, say_ended_by_run


def test_a_site_gives_up_after_so_many_starts_that_fail_and_waits_longer_before_each(tmp_path: Path) -> None:
    starts, waits = RankStarts(RunDir(tmp_path)), list[float | None]()
    for _ in range(MOST_FRUITLESS_STARTS):
        starts.begins(counted=3)
        waits.append(starts.ended(counted=3))
    assert waits.pop() is None
    given = [wait for wait in waits if wait is not None]
    assert len(given) == MOST_FRUITLESS_STARTS - 1
    assert all(2**number / 2 <= wait <= 2**number for number, wait in enumerate(given))


def test_a_frame_that_counts_forgets_what_failed_before(tmp_path: Path) -> None:
    starts = RankStarts(RunDir(tmp_path))
    for counted in range(3 * MOST_FRUITLESS_STARTS):
        starts.begins(counted)
        gained = counted % (MOST_FRUITLESS_STARTS - 1) == 0
        wait = starts.ended(counted + gained)
        assert wait == 0.0 if gained else wait


def test_ends_by_the_run_are_no_failures_and_are_waited_after_all_the_same(tmp_path: Path) -> None:
    files, wait = RunDir(tmp_path), None
    starts = RankStarts(files)
    for _ in range(4 * MOST_FRUITLESS_STARTS):
        starts.begins(counted=0)
        say_ended_by_run(files, "what they have is void")
        wait = starts.ended(counted=0)
        assert wait is not None
    assert wait is not None
    assert wait >= LONGEST_PAUSE_S / 2
    for failures in range(1, MOST_FRUITLESS_STARTS + 1):  # it was said of the ranks before
        starts.begins(counted=0)
        assert (starts.ended(counted=0) is None) == (failures == MOST_FRUITLESS_STARTS)


def test_ranks_end_also_where_the_disk_does_not_take_why(tmp_path: Path) -> None:
    say_ended_by_run(RunDir(tmp_path / "none"), "what they have is void")
    assert not (tmp_path / "none").exists()
