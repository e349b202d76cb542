"""Counters on their way out of the process: the Prometheus endpoint, the stats file, and reports to the collector."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from geocomm.core.environment import egress_budget, egress_price
from geocomm.core.message_log import logger
from geocomm.core.options import Options, metrics_listen_port
from geocomm.core.site import UNNAMED_SITE
from geocomm.metrics.counters import stats
from geocomm.metrics.events import EventReader, events

if TYPE_CHECKING:
    from geocomm.metrics.prometheus_endpoint import MetricsServer
    from geocomm.metrics.report_sender import ReportSender


def check_reporting(options: Options) -> None:
    """UnsupportedError for what is asked for and not installed; InvalidArgumentError for what is no price."""
    egress_price()
    egress_budget()
    if options.metrics_port is not None:
        from geocomm.metrics.prometheus_endpoint import require_prometheus_client

        require_prometheus_client()


class Reporting:
    """Keeps at most one of each in a process, from its first process group to its last."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Without any."""
        self._lock = threading.Lock()
        self._parts: list[MetricsServer | StatsFile | ReportSender] = []
        self._events = EventReader(events)  # goes on where the last file ended

    def start(self, options: Options, rank: int, collector: Callable[[], str | None]) -> None:
        """Start what the options ask for, unless it runs already: the first group's count. Never raises OSError.

        collector: says which socket takes reports; None: there are none.
        """
        with self._lock:
            if self._parts:
                return
            site = options.site or ""
            if options.metrics_port is not None:
                self._serve(options, rank, site)
            if options.stats_file is not None:
                interval_s = options.stats_interval.total_seconds()
                self._parts.append(StatsFile(options.stats_file, interval_s, rank, site, stats, self._events))
            if (path := collector()) is not None:
                from geocomm.metrics.report_sender import ReportSender

                reported = EventReader(events)
                self._parts.append(ReportSender(path, rank, site or UNNAMED_SITE, stats, reported, options))

    def _serve(self, options: Options, rank: int, site: str) -> None:
        from geocomm.metrics.prometheus_endpoint import MetricsServer

        port = metrics_listen_port(options)
        try:
            self._parts.append(MetricsServer(options.metrics_address, port, rank, site, stats))
        except (OSError, OverflowError) as error:
            logger().warning(
                f"rank {rank} has no metrics at {options.metrics_address}:{port}: {error}; the job "
                "goes on without (GEOCOMM_METRICS_PORT + LOCAL_RANK, GEOCOMM_METRICS_ADDRESS)"
            )

    def stop(self) -> None:
        """The last line, while there is something to count; then quiet."""
        with self._lock:
            parts, self._parts = self._parts, []
            for part in parts:
                part.close()

    def leave_to_parent(self) -> None:
        """Let go of what the parent has, in a forked child, and begin anew."""
        for part in self._parts:
            part.leave_to_parent()
        self.begin()


reporting = Reporting()
"""This process's."""
os.register_at_fork(after_in_child=reporting.leave_to_parent)


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
