"""The Prometheus endpoint of a process: `geocomm.stats()`, read when somebody scrapes.

`MetricRow` and `RowCollector` also make the metrics of all sites (`observe.telemetry.prometheus_text`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from geocomm.core.installation import install_command
from geocomm.metrics import schema
from geocomm.metrics.schema import Metric, MetricKind

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusFamily


@dataclass(frozen=True)
class MetricRow:
    """One metric with its values by label."""

    name: str
    """Without `_total`."""
    help: str
    labels: tuple[str, ...]
    values: Sequence[tuple[tuple[str, ...], float | None]]
    """Of each its labels' values; None: not known."""
    counter: bool = False


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
        registry.register(RowCollector(lambda: _rows_of_stats(read_stats(), (site, str(rank)))))
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


def _rows_of_stats(stats: Mapping[str, Any], own: tuple[str, str]) -> Iterator[MetricRow]:
    """own: site and rank. Names are a contract: dashboards are made of them."""
    yield from _rows(schema.COUNTERS, {own: [stats]})
    yield from _rows(schema.PEERS, {(*own, *peer): rows for peer, rows in _by_peer(stats["peers"]).items()})
    hooks = {(*own, f"{row['kind']}{index}"): [row] for index, row in enumerate(stats["gradients"])}
    yield from _rows(schema.GRADIENTS, hooks)
    # Of a step that did not count, buckets have no NMSE.
    buckets = {labels: [row for row in hook["buckets"] if "nmse" in row] for labels, (hook,) in hooks.items()}
    yield from _rows(schema.BUCKETS, buckets)
    runs = {(*own, str(index)): [row] for index, row in enumerate(stats["local_steps"])}
    yield from _rows(schema.LOCAL_STEPS, runs)


_Told = Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]]
"""By the values of a scope's labels, the rows of stats() that they stand for."""


def _rows(metrics: Sequence[Metric], told: _Told) -> Iterator[MetricRow]:
    """A row for each number that the schema shows there, and one for all of its texts."""
    shown = [metric for metric in metrics if metric.in_prometheus]
    for metric in shown:
        if metric.kind is not MetricKind.TEXT:
            values = [(labels, _value(metric, [row[metric.name] for row in rows])) for labels, rows in told.items()]
            counter = metric.kind is MetricKind.COUNTER
            yield MetricRow(metric.family, _sentence(metric.help), metric.labels, values, counter)
    texts = [metric for metric in shown if metric.kind is MetricKind.TEXT]
    if texts:
        scope = texts[0].scope
        meanings = "; ".join(f"{metric.name}: {metric.help}" for metric in texts)
        yield MetricRow(
            schema.info_family(scope),
            f"Always 1; its labels tell {meanings}",
            (*scope.labels, *schema.names(texts)),
            [((*labels, *(rows[-1][metric.name] for metric in texts)), 1) for labels, rows in told.items()],
        )


def _value(metric: Metric, values: Sequence[Any]) -> float | None:
    """One number for all rows of the same labels: two links to a peer that restarted, the buckets of a hook."""
    if metric in schema.BUCKETS:
        value = max(values, default=None)
    elif metric.kind is MetricKind.GAUGE and metric.is_time:
        value = values[-1]
    else:
        value = None if values == [None] else sum(map(_number, values))
    return None if value is None else value * metric.factor


def _number(value: Any) -> float:
    """The value, or of a list its length."""
    return len(cast("list[Any]", value)) if isinstance(value, list) else value


def _sentence(phrase: str) -> str:
    return phrase[0].upper() + phrase[1:]


def _by_peer(peers: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of each peer, by its labels: two while a restarted peer takes the place of the old one."""
    links: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in peers:
        name = row["peer"] if row["rank"] is None else str(row["rank"])
        links.setdefault((name, row["site"] or ""), []).append(row)
    return links
