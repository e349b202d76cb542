"""Counters on their way out of the process: the Prometheus endpoint, OTLP, and reports to the collector."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from geocomm.core.environment import egress_budget, egress_price
from geocomm.core.message_log import logger
from geocomm.core.options import Options, metrics_listen_port
from geocomm.core.site import UNNAMED_SITE
from geocomm.metrics.counters import stats
from geocomm.metrics.events import EventReader, events

if TYPE_CHECKING:
    from geocomm.metrics.otlp_export import OtlpExport
    from geocomm.metrics.prometheus_endpoint import MetricsServer
    from geocomm.metrics.report_sender import ReportSender


def check_reporting(options: Options) -> None:
    """UnsupportedError for what is asked for and not installed; InvalidArgumentError for what is no price."""
    egress_price()
    egress_budget()
    if options.metrics_port is not None:
        from geocomm.metrics.prometheus_endpoint import require_prometheus_client

        require_prometheus_client()
    if options.metrics_otlp:
        from geocomm.metrics.otlp_export import require_otlp_exporter

        require_otlp_exporter()


class Reporting:
    """Keeps at most one of each in a process, from its first process group to its last."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Without any."""
        self._lock = threading.Lock()
        self._parts: list[MetricsServer | OtlpExport | ReportSender] = []

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
            if options.metrics_otlp:
                from geocomm.metrics.otlp_export import OtlpExport

                self._parts.append(OtlpExport(rank, site, stats))
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
        """The last report, while there is something to count; then quiet."""
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
