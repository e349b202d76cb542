"""`geocomm.stats()` in a file, a line of JSON each time, and a line for each event."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from geocomm.core.message_log import logger
from geocomm.metrics.events import EventReader


class StatsFile:
    """Appends a line of the kind "stats" every `interval_s` and, at close(), a last one with "final": true.

    What happened since the line before comes first, a line per event.

    A thread of its own writes, so a slow disk holds up nobody; what goes wrong with the file costs one line on stderr
    and ends the writing. Each line is one write, so ranks of a machine can share a file.
    """

    _CLOSE_S = 2.0  # what close() waits for the disk

    def __init__(
        self,
        path: str,
        interval_s: float,
        rank: int,
        site: str,
        read_stats: Callable[[], dict[str, Any]],
        events: EventReader,
    ) -> None:
        """`{rank}` in the path stands for the rank."""
        self._path = path.replace("{rank}", str(rank))
        self._interval_s = interval_s
        self._own = {"rank": rank, "site": site}
        self._read_stats = read_stats
        self._events = events
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="geocomm-stats", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The counters must still be readable."""
        self._closing.set()
        self._thread.join(self._CLOSE_S)

    def leave_to_parent(self) -> None:
        """Write nothing in a forked child, which does not have the thread."""

    def _run(self) -> None:
        try:
            # Not truncated: a restarted rank goes on in the file of the one before.
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                final = False
                while not final:
                    final = self._closing.wait(self._interval_s)
                    self._write_news(file, final=final)
            finally:
                os.close(file)
        except Exception as error:  # telemetry never ends a job
            logger().warning(
                f"no more statistics in {self._path}: {error}; the job goes on without (GEOCOMM_STATS_FILE)"
            )

    def _write_news(self, file: int, *, final: bool) -> None:
        for event in self._events.take():
            _write_line(file, event.line())
        _write_line(file, {"kind": "stats", "time": time.time(), **self._own, "final": final, **self._read_stats()})


def _write_line(file: int, record: dict[str, Any]) -> None:
    line = json.dumps(record, default=str).encode() + b"\n"
    if os.write(file, line) != len(line):
        raise OSError("the disk took only a part of a line")
