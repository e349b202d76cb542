"""The Prometheus endpoint of a process: `geocomm.stats()`, read when somebody scrapes.

`RowCollector` also serves the metrics of all sites (`observe.telemetry.prometheus_text`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from geocomm.core.installation import install_command
from geocomm.metrics.metric_rows import MetricRow, rows_of_stats

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusFamily


class RowCollector:
    """What prometheus_client asks at each scrape."""

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
