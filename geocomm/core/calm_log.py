"""A log that nobody can flood: who makes the same event happen again and again does not fill the disk."""

from __future__ import annotations

import time
from collections.abc import Callable

_MOST_KINDS = 1000


class CalmLog:
    """Logs at most one line in so many seconds of each kind, with the number of those left out before it."""

    def __init__(self, log: Callable[[str], None], interval_s: float, beginning: int = 0) -> None:
        """beginning: lines of which so many characters are alike are of one kind; 0: all are."""
        self._log, self._interval_s, self._beginning = log, interval_s, beginning
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, message: str) -> None:
        now, kind = time.monotonic(), message[: self._beginning]
        if now - self._last.get(kind, float("-inf")) < self._interval_s:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        if len(self._last) >= _MOST_KINDS:
            self._last.clear()
        left_out = self._left_out.pop(kind, 0)
        self._last[kind] = now
        self._log(message + (f" (and {left_out} more such events)" if left_out else ""))
