"""A thread that does calls one after another, at once or later: what it alone uses needs no lock."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable

from geocomm.core.native import native


class CallThread:
    """Calls may be posted before `start`. One that raises ends none of the others."""

    def __init__(self, name: str, failed: Callable[[BaseException], None] = lambda _: None) -> None:
        """failed: is called on the thread with what a call has raised."""
        self.failure: BaseException | None = None
        """What a call has raised first."""
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def start(self) -> None:
        """Begin to do the calls. Idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        """Have a call done after those before it. From any thread."""
        self._calls.put(call)

    def post_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Have a call done in `seconds` seconds. From a call, or before `start`."""
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), call))

    def stop(self) -> None:
        """End once the calls that were posted are done; no later ones are. Idempotent."""
        self._calls.put(None)

    def _run(self) -> None:
        native().wait_in_background()  # what this thread waits for holds up no step
        while True:
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                self._do(heapq.heappop(self._later)[2])
            wait_s = max(0.0, self._later[0][0] - now) if self._later else None
            try:
                call = self._calls.get(timeout=wait_s)
            except queue.Empty:
                continue
            if call is None:
                return
            self._do(call)

    def _do(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self.failure = self.failure or error
            self._failed(error)
