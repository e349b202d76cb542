"""The metrics of all sites at one target: sums per site and per pair of sites, so that their number stays small.

Ranks have endpoints of their own for the rest (`metrics.prometheus_endpoint`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from geocomm._version import __version__
from geocomm.metrics.exporters import RowCollector
from geocomm.metrics.metric_rows import MetricRow
from geocomm.observe.telemetry.overview import Overview
from geocomm.observe.telemetry.run_numbers import rows_now
from geocomm.observe.telemetry.store_folder import StoreFolder


def metric_rows(seen: Overview, folder: StoreFolder) -> Iterator[MetricRow]:
    """All of them, but for the version."""
    for kind, rows in rows_now(seen, folder).items():
        labels = tuple(name for name, _ in next(iter(rows))) if rows else kind.LABELS
        for field, number in kind.numbers().items():
            if number.metric is not None:
                values = [(tuple(value for _, value in of), getattr(row, field)) for of, row in rows.items()]
                yield MetricRow(kind.PREFIX + number.metric, number.help, labels, values, number.is_counter)


def prometheus_text(seen: Overview, folder: StoreFolder, more: Sequence[MetricRow] = ()) -> bytes:
    """The text that Prometheus scrapes, with `more`. Needs the package prometheus-client."""
    from prometheus_client import CollectorRegistry, generate_latest

    build = MetricRow("geocomm_build_info", "the version that reads the run store", ("version",), [((__version__,), 1)])
    registry = CollectorRegistry()
    registry.register(RowCollector(lambda: [build, *metric_rows(seen, folder), *more]))
    return generate_latest(registry)
