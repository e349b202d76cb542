"""The Prometheus endpoint of a process: `geocomm.stats()`, read when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from geocomm.errors import UnsupportedError
from geocomm.live_handles import worst_nmse

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Key of stats() → what it is, for the counters of the process.
_PROCESS = {
    "operations": "Collectives that crossed sites",
    "raw_bytes_sent": "Tensor bytes that messages to other sites stood for",
    "wire_bytes_sent": "Bytes of the messages to other sites",
    "raw_bytes_received": "Tensor bytes that messages from other sites stood for",
    "wire_bytes_received": "Bytes of the messages from other sites",
    "relayed_bytes": "Of the bytes sent, those that are passed on between other sites",
    "exposed_seconds": "Time that callers spent waiting for collectives",
}
# Key of a row of stats()["peers"] → what it is.
_LINK = {
    "bytes_sent": "Bytes sent to the peer, without those of TCP and IP",
    "bytes_received": "Bytes received from the peer, without those of TCP and IP",
    "payload_sent": "Of the bytes sent, those of collectives",
    "payload_received": "Of the bytes received, those of collectives",
    "retransmitted_segments": "Segments that TCP sent again",
    "resumes": "Connections made again after a loss",
    "resent_segments": "Pieces that geocomm sent again because of lost connections",
    "acks": "Acknowledgements received",
}
_LINK_MICROSECONDS = {
    "stalled_by_receiver": "Time in which the peer's receive window held back data, all streams together",
    "stalled_by_send_buffer": "Time in which the send buffers here held back data, all streams together",
}


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
        """In a forked child, which has the listener but not the thread."""
        self._server.socket.close()


def require_prometheus_client() -> None:
    """UnsupportedError where the package is missing."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            "option metrics_port (GEOCOMM_METRICS_PORT) needs the package prometheus-client: "
            "pip install 'geocomm[metrics]', or leave the option out"
        ) from None


class _StatsCollector:
    """What prometheus_client asks at each scrape. Names are a contract: dashboards are made of them."""

    def __init__(self, rank: str, site: str, read_stats: Callable[[], dict[str, Any]]) -> None:
        self._own = (site, rank)
        self._read_stats = read_stats

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self._read_stats()
        for key, text in _PROCESS.items():
            family = CounterMetricFamily(f"geocomm_{key}", text, labels=("site", "rank"))
            family.add_metric(self._own, stats[key])
            yield family
        links = _by_peer(stats["peers"])
        labels = ("site", "rank", "peer", "peer_site")
        for key, text in _LINK.items():
            family = CounterMetricFamily(f"geocomm_link_{key}", text, labels=labels)
            for peer, rows in links.items():
                family.add_metric((*self._own, *peer), sum(row[key] for row in rows))
            yield family
        for key, text in _LINK_MICROSECONDS.items():
            family = CounterMetricFamily(f"geocomm_link_{key}_seconds", text, labels=labels)
            for peer, rows in links.items():
                family.add_metric((*self._own, *peer), sum(row[f"{key}_us"] for row in rows) * 1e-6)
            yield family
        rtt = GaugeMetricFamily("geocomm_link_rtt_seconds", "Round trip to the peer", labels=labels)
        streams = GaugeMetricFamily("geocomm_link_streams", "Data streams that are connected now", labels=labels)
        info = GaugeMetricFamily(
            "geocomm_link_info", "Always 1; its label says more of the link", labels=(*labels, "congestion_control")
        )
        for peer, rows in links.items():
            rtt.add_metric((*self._own, *peer), rows[-1]["rtt_us"] * 1e-6)
            streams.add_metric((*self._own, *peer), sum(row["streams"] for row in rows))
            info.add_metric((*self._own, *peer, rows[-1]["congestion_control"]), 1)
        yield from (rtt, streams, info)
        yield from _gradient_families(self._own, stats["gradients"])


def _gradient_families(own: tuple[str, str], hooks: list[dict[str, Any]]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = ("site", "rank", "hook")
    steps = CounterMetricFamily("geocomm_gradient_steps", "Steps of the gradient hook", labels=labels)
    skipped = CounterMetricFamily(
        "geocomm_gradient_skipped_steps", "Steps whose residuals were put back", labels=labels
    )
    fallbacks = CounterMetricFamily("geocomm_gradient_fallbacks", "Changes to a finer codec", labels=labels)
    nmse = GaugeMetricFamily(
        "geocomm_gradient_nmse",
        "What the codec lost in the last step, of the squares, in the worst bucket",
        labels=labels,
    )
    info = GaugeMetricFamily(
        "geocomm_gradient_info", "Always 1; its label is the codec of the next step", labels=(*labels, "codec")
    )
    for index, row in enumerate(hooks):
        at = (*own, f"{row['kind']}{index}")
        steps.add_metric(at, row["steps"])
        skipped.add_metric(at, row["skipped_steps"])
        fallbacks.add_metric(at, len(row["fallbacks"]))
        error = worst_nmse(row)
        if error is not None:
            nmse.add_metric(at, error)
        info.add_metric((*at, row["codec"]), 1)
    yield from (steps, skipped, fallbacks, nmse, info)


def _by_peer(peers: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of each peer, by its labels: two while a restarted peer takes the place of the old one."""
    links: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in peers:
        name = row["peer"] if row["rank"] is None else str(row["rank"])
        links.setdefault((name, row["site"] or ""), []).append(row)
    return links
