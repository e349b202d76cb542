"""The clock by which a process judges the silence of others."""

from __future__ import annotations

from geocomm.core.patience import RunningClock


def test_time_in_which_the_process_was_stopped_counts_one_second() -> None:
    now = 100.0
    clock = RunningClock(lambda: now)
    assert clock() == 0.0
    for _ in range(8):
        now += 0.25
        clock()
    assert clock() == 2.0
    now += 3600
    assert clock() == 3.0
    now += 0.5
    assert clock() == 3.5
