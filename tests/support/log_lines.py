"""The lines of a log that are there on each machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest


def lines_but_waits(text: str) -> list[str]:
    """Without those on waits of a job for its ranks, which a busy machine adds."""
    return [line for line in text.splitlines() if "geocomm warning: waiting for " not in line]


@contextmanager
def once_said(caplog: pytest.LogCaptureFixture, line: str, then: Callable[[], None]) -> Generator[None]:
    """Do `then` beside the block once the log has `line`, which it comes to have before the block ends."""
    over, found = threading.Event(), threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            if line in caplog.text:
                found.set()
                break
        then()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert found.is_set(), f"{line!r} is not in the log:\n{caplog.text}"
