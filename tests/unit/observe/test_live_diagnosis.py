"""What is shown of a run while it goes on: another cause only once two windows have said it."""

from __future__ import annotations

from dataclasses import replace

from geocomm.observe.diagnosis.bottleneck import LiveDiagnosis, bottleneck_metric
from geocomm.observe.diagnosis.run_window import RunWindow
from geocomm.observe.diagnosis.verdict import Cause
from support.invented_run import Run

SLOW_SITE = Run(compute=(0.1, 0.3)).window()
FAR = Run(delay=0.2, size=1000, operations=4).window()
HALF_S = FAR.step_count * FAR.step_seconds / 2


def shown(live: LiveDiagnosis, window: RunWindow, heard: float, *, over: bool = False) -> Cause:
    return live.after(replace(window, last_heard=heard, over=over)).verdict.cause


def test_another_cause_is_shown_once_two_windows_with_few_common_steps_say_it() -> None:
    live = LiveDiagnosis()
    assert shown(live, SLOW_SITE, 100) is Cause.STRAGGLER
    assert shown(live, FAR, 110) is Cause.STRAGGLER
    assert shown(live, FAR, 110) is Cause.STRAGGLER  # the same one
    assert shown(live, FAR, 109 + HALF_S) is Cause.STRAGGLER
    assert shown(live, FAR, 111 + HALF_S) is Cause.LATENCY


def test_a_cause_that_comes_and_goes_is_not_shown() -> None:
    live = LiveDiagnosis()
    for number in range(10):
        assert shown(live, SLOW_SITE if number % 2 == 0 else FAR, 100 + 2 * HALF_S * number) is Cause.STRAGGLER


def test_numbers_of_the_same_cause_are_new_at_once_and_the_end_of_a_run_is_its_last_window() -> None:
    live = LiveDiagnosis()
    first = live.after(replace(SLOW_SITE, last_heard=100)).verdict.saved_seconds
    more = Run(compute=(0.1, 0.5)).window()
    assert live.after(replace(more, last_heard=101)).verdict.saved_seconds > 1.5 * first
    assert shown(live, FAR, 102, over=True) is Cause.LATENCY


def test_metric_has_each_cause_and_where_it_is() -> None:
    row = bottleneck_metric(LiveDiagnosis().after(SLOW_SITE))
    ((labels, seconds), *_) = row.values
    assert (row.labels, labels) == (("cause", "where"), ("straggler site", "b"))
    assert seconds is not None
    assert seconds > 0.1
