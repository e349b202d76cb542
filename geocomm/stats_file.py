"""`geocomm.stats()` in a file, a line of JSON each time."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any


class StatsFile:
    """Appends a line every `interval_s` and, at close(), a last one with "final": true.

    A thread of its own writes, so a slow disk holds up nobody; what goes wrong with the file costs one line on stderr
    and ends the writing. Each line is one write, so ranks of a machine can share a file.
    """

    _CLOSE_S = 2.0  # what close() waits for the disk

    def __init__(
        self, path: str, interval_s: float, rank: int, site: str, read_stats: Callable[[], dict[str, Any]]
    ) -> None:
        """`{rank}` in the path stands for the rank."""
        self._path = path.replace("{rank}", str(rank))
        self._interval_s = interval_s
        self._own = {"rank": rank, "site": site}
        self._read_stats = read_stats
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="geocomm-stats", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The counters must still be readable."""
        self._closing.set()
        self._thread.join(self._CLOSE_S)

    def leave_to_parent(self) -> None:
        """In a forked child, which does not have the thread: nothing is written there."""

    def _run(self) -> None:
        try:
            # Not truncated: a restarted rank goes on in the file of the one before.
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                final = False
                while not final:
                    final = self._closing.wait(self._interval_s)
                    self._write_line(file, final=final)
            finally:
                os.close(file)
        except Exception as error:  # telemetry never ends a job
            print(
                f"geocomm: WARNING: no more statistics in {self._path}: {error}; the job goes on without "
                "(GEOCOMM_STATS_FILE)",
                file=sys.stderr,
                flush=True,
            )

    def _write_line(self, file: int, *, final: bool) -> None:
        record = {"time": time.time(), **self._own, "final": final, **self._read_stats()}
        line = json.dumps(record, default=str).encode() + b"\n"
        if os.write(file, line) != len(line):
            raise OSError("the disk took only a part of a line")
