"""A clock by which a process judges the silence of others, though it was stopped itself."""

from __future__ import annotations

from collections.abc import Callable


class RunningClock:
    """Seconds in which this process could hear: of each time between two looks, `most_s` at most count.

    What others said while it was stopped, or got no CPU, lies in its sockets, and it reads that after its timers. It is
    looked at several times within `most_s`.
    """

    def __init__(self, now: Callable[[], float], most_s: float = 1.0) -> None:
        self._now, self._most_s = now, most_s
        self._looked = now()
        self._seconds = 0.0

    def __call__(self) -> float:
        now = self._now()
        self._seconds += min(now - self._looked, self._most_s)
        self._looked = now
        return self._seconds
