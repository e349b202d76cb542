"""The last report of each rank of a run at one moment, and what its process said some seconds before."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from geocomm.observe.telemetry.run_store import Rank, Received, RunStore

SILENT_SECONDS = 15.0
"""A rank whose last report is older has no rates: it may be dead, or stopped, or its line is down."""
_WINDOWS_S = (10.0, 5.0, 2.0)
_STEP_WINDOWS_S = (60.0, 30.0, 15.0, *_WINDOWS_S, 600.0)
"""Rates are over the first of these whose begin the process has seen; of steps: and in which one ended."""


class Life(enum.StrEnum):
    """What is known of a rank."""

    REPORTING = "reporting"
    SILENT = "silent"
    """Its last report is older than SILENT_SECONDS."""
    ENDED = "ended"
    """It has said that it says no more."""


class LastReports:
    """The last report of each rank, and earlier ones of the same process."""

    def __init__(self, store: RunStore, at: float, since: float) -> None:
        """at: the moment, in Unix seconds. since: without ranks that have not reported since then."""
        self._store = store
        self.at = at
        self.last = [received for received in store.latest(until=at) if received.at >= since]
        self._earlier: dict[float, dict[Rank, Received]] = {}
        self._open_waits: dict[Rank, float] | None = None

    def open_wait_seconds(self, received: Received) -> float:
        """How long the program had stood in a wait for an operation that was not over, at its last report."""
        if self._open_waits is None:
            self._open_waits = {one.rank: _open_wait_s(one) for one in self._store.latest(self.at, details=True)}
        return self._open_waits.get(received.rank, 0.0)

    def before(self, received: Received) -> Received | None:
        """The rank's report of some seconds before."""
        return next((one for one in self._before(received, _WINDOWS_S) if one.at < received.at), None)

    def before_steps(self, received: Received) -> Received | None:
        """One since which a step has ended."""
        found = self._before(received, _STEP_WINDOWS_S)
        return next((one for one in found if _steps(one) not in (0, _steps(received))), None)

    def _before(self, received: Received, windows_s: Iterable[float]) -> Iterator[Received]:
        for window_s in windows_s:
            if window_s not in self._earlier:
                self._earlier[window_s] = {one.rank: one for one in self._store.latest(until=self.at - window_s)}
            if (found := self._earlier[window_s].get(received.rank)) is not None:
                yield found

    def life(self, received: Received) -> Life:
        """The state of the rank whose last report this is."""
        if received.report.final:
            return Life.ENDED
        return Life.REPORTING if self.has_rates(received) else Life.SILENT

    def has_rates(self, received: Received) -> bool:
        """Whether its last report is young enough."""
        return self.at - received.at <= SILENT_SECONDS


def _open_wait_s(received: Received) -> float:
    began = [row["wait_began_ns"] for row in received.report.operations if row["ended_ns"] is None]
    waiting = [at for at in began if at is not None]
    return (received.report.now_ns - min(waiting)) / 1e9 if waiting else 0.0


def _steps(received: Received) -> int:
    return received.report.training.get("totals", {}).get("steps", 0)
