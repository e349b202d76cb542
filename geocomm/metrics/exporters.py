"""Counters on their way out of the process: the Prometheus endpoint, OTLP, and reports to the collector."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from geocomm._version import __version__
from geocomm.core.environment import egress_budget, egress_price
from geocomm.core.installation import install_command
from geocomm.core.message_log import logger
from geocomm.core.options import Options, metrics_listen_port
from geocomm.core.site import UNNAMED_SITE
from geocomm.metrics.counters import stats
from geocomm.metrics.events import EventReader, events
from geocomm.metrics.schema import MetricRow, rows_of_stats

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from prometheus_client.core import Metric as PrometheusFamily

    from geocomm.metrics.report_sender import ReportSender


class RowCollector:
    """What prometheus_client asks at each scrape, of a process or of all sites (`observe.telemetry.run_numbers`)."""

    def __init__(self, read: Callable[[], Iterable[MetricRow]]) -> None:
        self._read = read

    def collect(self) -> Iterator[PrometheusFamily]:
        """A family for each row."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for row in self._read():
            family = (CounterMetricFamily if row.counter else GaugeMetricFamily)(row.name, row.help, labels=row.labels)
            for labels, value in row.values:
                if value is not None:
                    family.add_metric(labels, value)
            yield family


class MetricsServer:
    """Serves until close(), from a daemon thread; the counters are read in the thread of each scrape."""

    def __init__(self, address: str, port: int, rank: int, site: str, read_stats: Callable[[], dict[str, Any]]) -> None:
        """OSError where it cannot listen."""
        require_prometheus_client()
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(RowCollector(lambda: rows_of_stats(read_stats(), (site, str(rank)))))
        self._server, self._thread = start_http_server(port, address, registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def leave_to_parent(self) -> None:
        """Close the listener in a forked child, which does not have the thread."""
        self._server.socket.close()


def require_prometheus_client() -> None:
    """UnsupportedError where the package is missing."""
    try:
        import prometheus_client  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        from geocomm.core.errors import UnsupportedError  # imports torch; a row does not need it

        raise UnsupportedError(
            "option metrics_port (GEOCOMM_METRICS_PORT) needs the package prometheus-client: "
            f"{install_command('metrics')}, or leave the option out"
        ) from None


_SAME_COLLECTION_S = 1.0
"""Within it the instruments of a collection share one reading of the counters."""


class OtlpExport:
    """Sends the counters until close(), from a daemon thread of the SDK, which logs what cannot be sent."""

    def __init__(self, rank: int, site: str, read_stats: Callable[[], dict[str, Any]]) -> None:
        require_otlp_exporter()
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        self._process = os.getpid()
        self._read: Callable[[], list[MetricRow]] = lambda: list(rows_of_stats(read_stats(), (site, str(rank))))
        self._rows: dict[str, MetricRow] = {}
        self._read_at = 0.0
        resource = Resource.create()
        if str(resource.attributes["service.name"]).startswith("unknown_service"):  # the user has named none
            resource = resource.merge(Resource({"service.name": "geocomm"}))
        self._provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource)
        meter = self._provider.get_meter("geocomm", __version__)
        for row in self._read():  # those without values, too
            make = meter.create_observable_counter if row.counter else meter.create_observable_gauge
            make(row.name, [partial(self._observe, row.name)], description=row.help)

    def close(self) -> None:
        """After one more export."""
        self._provider.shutdown()

    def leave_to_parent(self) -> None:
        """Nothing is held. The SDK starts its thread again in a forked child, where _observe() has nothing to tell."""

    def _observe(self, name: str, _: CallbackOptions) -> Iterable[Observation]:
        if os.getpid() != self._process:
            return ()
        if time.monotonic() - self._read_at > _SAME_COLLECTION_S:
            self._rows = {row.name: row for row in self._read()}
            self._read_at = time.monotonic()
        return _observations(self._rows[name])


def _observations(row: MetricRow) -> Iterator[Observation]:
    from opentelemetry.metrics import Observation

    for labels, value in row.values:
        if value is not None:
            yield Observation(value, dict(zip(row.labels, labels, strict=True)))


def require_otlp_exporter() -> None:
    """UnsupportedError where the packages are missing."""
    try:
        import_module("opentelemetry.exporter.otlp.proto.http")
        import_module("opentelemetry.sdk.metrics")
    except ImportError:
        from geocomm.core.errors import UnsupportedError

        raise UnsupportedError(
            "option metrics_otlp (GEOCOMM_METRICS_OTLP) needs OpenTelemetry's exporter: "
            f"{install_command('otel')}, or leave the option out"
        ) from None


def check_reporting(options: Options) -> None:
    """UnsupportedError for what is asked for and not installed; InvalidArgumentError for what is no price."""
    egress_price()
    egress_budget()
    if options.metrics_port is not None:
        require_prometheus_client()
    if options.metrics_otlp:
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
                self._parts.append(OtlpExport(rank, site, stats))
            if (path := collector()) is not None:
                from geocomm.metrics.report_sender import ReportSender

                reported = EventReader(events)
                self._parts.append(ReportSender(path, rank, site or UNNAMED_SITE, stats, reported, options))

    def _serve(self, options: Options, rank: int, site: str) -> None:
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
