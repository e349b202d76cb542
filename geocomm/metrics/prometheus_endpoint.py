"""The Prometheus endpoint of a process: `geocomm.stats()`, read when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from geocomm.core.errors import UnsupportedError
from geocomm.core.installation import install_command
from geocomm.metrics import schema
from geocomm.metrics.schema import Metric, MetricKind

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusFamily


class MetricsServer:
    """Serves until close(), from a daemon thread; the counters are read in the thread of each scrape."""

    def __init__(self, address: str, port: int, rank: int, site: str, read_stats: Callable[[], dict[str, Any]]) -> None:
        """OSError where it cannot listen."""
        require_prometheus_client()
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(_StatsCollector(str(rank), site, read_stats))
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
        raise UnsupportedError(
            "option metrics_port (GEOCOMM_METRICS_PORT) needs the package prometheus-client: "
            f"{install_command('metrics')}, or leave the option out"
        ) from None


class _StatsCollector:
    """What prometheus_client asks at each scrape. Names are a contract: dashboards are made of them."""

    def __init__(self, rank: str, site: str, read_stats: Callable[[], dict[str, Any]]) -> None:
        self._own = (site, rank)
        self._read_stats = read_stats

    def describe(self) -> Iterator[PrometheusFamily]:
        return iter(())

    def collect(self) -> Iterator[PrometheusFamily]:
        stats = self._read_stats()
        yield from _families(schema.COUNTERS, {self._own: [stats]})
        yield from _families(
            schema.PEERS, {(*self._own, *peer): rows for peer, rows in _by_peer(stats["peers"]).items()}
        )
        hooks = {(*self._own, f"{row['kind']}{index}"): [row] for index, row in enumerate(stats["gradients"])}
        yield from _families(schema.GRADIENTS, hooks)
        # Of a step that did not count, buckets have no NMSE.
        buckets = {labels: [row for row in hook["buckets"] if "nmse" in row] for labels, (hook,) in hooks.items()}
        yield from _families(schema.BUCKETS, buckets)
        runs = {(*self._own, str(index)): [row] for index, row in enumerate(stats["local_steps"])}
        yield from _families(schema.LOCAL_STEPS, runs)


_Rows = Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]]
"""By the values of a scope's labels, the rows of stats() that they stand for."""


def _families(metrics: Sequence[Metric], rows_of: _Rows) -> Iterator[PrometheusFamily]:
    """A family for each number that the schema shows there, and one for all of its texts."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    shown = [metric for metric in metrics if metric.in_prometheus]
    for metric in shown:
        if metric.kind is MetricKind.TEXT:
            continue
        new_family = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = new_family(metric.family, _sentence(metric.help), labels=metric.labels)
        for labels, rows in rows_of.items():
            value = _value(metric, [row[metric.name] for row in rows])
            if value is not None:
                family.add_metric(labels, value * metric.factor)
        yield family
    texts = [metric for metric in shown if metric.kind is MetricKind.TEXT]
    if texts:
        scope = texts[0].scope
        told = "; ".join(f"{metric.name}: {metric.help}" for metric in texts)
        info = GaugeMetricFamily(
            schema.info_family(scope), f"Always 1; its labels tell {told}", labels=(*scope.labels, *schema.names(texts))
        )
        for labels, rows in rows_of.items():
            info.add_metric((*labels, *(rows[-1][metric.name] for metric in texts)), 1)
        yield info


def _value(metric: Metric, values: Sequence[Any]) -> float | None:
    """One number for all rows of the same labels: two links to a peer that restarted, the buckets of a hook."""
    if metric in schema.BUCKETS:
        return max(values, default=None)
    if metric.kind is MetricKind.GAUGE and metric.is_time:
        return values[-1]
    if values == [None]:
        return None
    return sum(map(_number, values))


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
