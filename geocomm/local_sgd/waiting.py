"""Waiting for another site, with a word to the log about whom."""

from __future__ import annotations

import time
from collections.abc import Callable

from geocomm.core.message_log import logger

FIRST_WORD_S = 10.0
"""A wait that takes longer is logged."""
_GROWTH = 3.0


class Patience:
    """When a wait is to be logged: after 10 s, 30 s, 90 s and so on."""

    def __init__(self) -> None:
        """The wait begins now."""
        self._begun = time.monotonic()
        self._next_s = FIRST_WORD_S

    @property
    def waited_s(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._begun

    @property
    def left_s(self) -> float:
        """Seconds until the next word is due; 0 or less: it is due."""
        return self._next_s - self.waited_s

    def say(self, what: str, whom: str) -> None:
        """Log the wait, and put off the next word."""
        logger().warning(f"local steps: {what} has waited {self.waited_s:.0f} s for {whom}")
        self._next_s *= _GROWTH


def wait_for(is_done: Callable[[float], bool], what: str, whom: Callable[[], str]) -> None:
    """Wait until `is_done(seconds)`, which waits at most so long, says True. Log whom the wait is for, now and then."""
    patience = Patience()
    while not is_done(max(patience.left_s, 0.0)):
        if patience.left_s <= 0:
            patience.say(what, whom())
