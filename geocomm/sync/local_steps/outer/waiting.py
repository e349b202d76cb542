"""Waiting for another site, with a word to the log about whom."""

from __future__ import annotations

from collections.abc import Callable

from geocomm.core.message_log import logger
from geocomm.core.patience import Patience


def say(patience: Patience, what: str, whom: str) -> None:
    """Log the wait, and put off the next word."""
    logger().warning(f"local steps: {what} has waited {patience.waited_s:.0f} s for {whom}")
    patience.put_off()


def wait_for(is_done: Callable[[float], bool], what: str, whom: Callable[[], str]) -> None:
    """Wait until `is_done(seconds)`, which waits at most that long, says True. Log whom the wait is for, now and
    then."""
    patience = Patience()
    while not is_done(max(patience.left_s, 0.0)):
        if patience.left_s <= 0:
            say(patience, what, whom())
