"""Trackers that cannot harm a run: each has a thread of its own, and one that fails is left out."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from typing_extensions import override

from geocomm.core.message_log import tell
from geocomm.train.runs.trackers import Tracker

_MOST_WAITING = 1000
"""Calls that a slow tracker may be behind."""
_CLOSE_SECONDS = 30.0
"""What all trackers together have to send what is left."""


class TrackerThreads(Tracker):
    """Several trackers as one. Nothing here waits for a network, but `close`, and nothing raises."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        """trackers: by name."""
        self._threads = [_TrackerThread(name, tracker) for name, tracker in trackers.items()]

    @override
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        for thread in self._threads:
            thread.call(lambda tracker: tracker.log(scalars, step))

    @override
    def text(self, name: str, text: str, step: int) -> None:
        for thread in self._threads:
            thread.call(lambda tracker: tracker.text(name, text, step))

    @override
    def close(self) -> None:
        """Hand over what is left; at most half a minute, then what is left is lost."""
        for thread in self._threads:
            thread.finish()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(deadline)


class _TrackerThread:
    """Makes the calls of one tracker, in order."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker = tracker
        self._calls: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(_MOST_WAITING)
        self._left_out = False
        # A daemon: a network that never answers must not keep the process.
        self._thread = threading.Thread(target=self._work, name=f"geocomm-{name}", daemon=True)
        self._thread.start()

    def call(self, call: Callable[[Tracker], None]) -> None:
        """Later, in the thread."""
        self._put(call)

    def finish(self) -> None:
        """No more calls come."""
        self._put(None)

    def join(self, deadline: float) -> None:
        """Wait for the calls made so far. deadline: of time.monotonic()."""
        if not self._left_out:
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive():
                self._leave_out(f"did not end within {_CLOSE_SECONDS:g} s: its last numbers may be missing")

    def _put(self, call: Callable[[Tracker], None] | None) -> None:
        if self._left_out:
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._leave_out(f"is {_MOST_WAITING} calls behind, and is left out from here on; the run goes on")

    def _work(self) -> None:
        try:
            while (call := self._calls.get()) is not None and not self._left_out:
                call(self._tracker)
            self._tracker.close()
        except Exception as error:  # each library has its own types
            said = (str(error).strip().splitlines() or [""])[0]
            self._leave_out(f"failed, and is left out from here on; the run goes on ({type(error).__name__}: {said})")

    def _leave_out(self, why: str) -> None:
        self._left_out = True
        tell("train", f"logging.trackers: '{self._name}' {why}")
