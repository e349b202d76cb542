"""What slows a run that goes on, for those who look again and again: the page, the terminal view, the metrics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from geocomm.metrics.schema import MetricRow
from geocomm.observe.diagnosis.bottleneck import Diagnosis, diagnose
from geocomm.observe.diagnosis.run_window import RunWindow, read_window
from geocomm.observe.diagnosis.verdict import Cause

if TYPE_CHECKING:
    from geocomm.observe.telemetry.run_store import RunStore

_STEPS, _LEAST_STEPS = 50, 5
_MOST_MESSAGES = 20_000
"""The most messages of a window: the replays of more take seconds, so that fewer steps are looked at."""


class LiveDiagnosis:
    """The last diagnosis of a run. Another first cause is shown only when two windows agree on it, of which the second
    has at least half of its time after the first. Used by one thread at a time."""

    def __init__(self) -> None:
        self._steps = _STEPS
        self.shown: Diagnosis | None = None
        """What stands; None: nothing was looked at yet."""
        self._other: tuple[Cause, str] | None = None
        self._since = 0.0

    def look(self, store: RunStore) -> Diagnosis:
        """What stands now. Raises sqlite3.Error."""
        window = read_window(store, self._steps)
        messages = sum(len(operation.arrivals) for rank in window.ranks for operation in rank.operations)
        if messages > _MOST_MESSAGES and self._steps > _LEAST_STEPS:
            self._steps = max(_LEAST_STEPS, math.floor(self._steps * _MOST_MESSAGES / messages))
            window = read_window(store, self._steps)
        return self.after(window)

    def after(self, window: RunWindow) -> Diagnosis:
        """What stands after this window."""
        found = diagnose(window)
        if self.shown is not None and not window.over and _first(found) != _first(self.shown):
            if _first(found) != self._other:
                self._other, self._since = _first(found), window.last_heard
            new_s = window.last_heard - self._since
            if new_s == 0 or new_s < window.step_count * window.step_seconds / 2:
                return self.shown
        self.shown, self._other = found, None
        return found


def _first(found: Diagnosis) -> tuple[Cause, str]:
    return found.verdict.cause, found.verdict.where


def bottleneck_metric(found: Diagnosis) -> MetricRow:
    """The causes that were named, for Prometheus."""
    return MetricRow(
        "geocomm_bottleneck_seconds",
        "by how much a step would be shorter without this cause, of geocomm why",
        ("cause", "where"),
        [((str(one.cause), one.where), one.saved_seconds) for one in found.verdicts],
    )
