"""The same metrics over OTLP, by OpenTelemetry's SDK: where they go to, and how often, say its own OTEL_* variables."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from geocomm._version import __version__
from geocomm.core.installation import install_command
from geocomm.metrics.metric_rows import MetricRow, rows_of_stats

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

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
