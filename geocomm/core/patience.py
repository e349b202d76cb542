"""When a wait is worth a word in the log."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_WORD_S = 10.0
"""A wait that takes longer is logged."""
_GROWTH = 3.0


class Patience:
    """When a word on a wait is due: after 10 s, 30 s, 90 s and so on."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """The wait begins now."""
        self._now = now
        self._begun = now()
        self._next_s = FIRST_WORD_S

    @property
    def waited_s(self) -> float:
        """Seconds so far."""
        return self._now() - self._begun

    @property
    def left_s(self) -> float:
        """Seconds until the next word is due; 0 or less: it is due."""
        return self._next_s - self.waited_s

    def put_off(self) -> None:
        """The word was said; the next one comes later."""
        self._next_s *= _GROWTH
