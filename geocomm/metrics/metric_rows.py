"""`geocomm.stats()` as metrics with labels, which Prometheus and OpenTelemetry get alike.

`MetricRow` also makes the metrics of all sites (`observe.telemetry.prometheus_text`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from geocomm.metrics import schema
from geocomm.metrics.schema import Metric, MetricKind


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


def rows_of_stats(stats: Mapping[str, Any], own: tuple[str, str]) -> Iterator[MetricRow]:
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
