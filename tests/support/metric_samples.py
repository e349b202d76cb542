"""Metrics of all sites as Prometheus keeps them, by name and labels, and rows of a run made of such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geocomm.observe.telemetry.numbers import Labels, NumberRow
from geocomm.observe.telemetry.overview import Overview
from geocomm.observe.telemetry.overview_links import LinkState
from geocomm.observe.telemetry.overview_sites import SiteOverview
from geocomm.observe.telemetry.run_numbers import (
    Heard,
    LeaderNumbers,
    MemberNumbers,
    RecentEvents,
    Rows,
    StoreNumbers,
    metric_rows,
)
from geocomm.observe.telemetry.store_folder import StoreFolder

KINDS: tuple[type[NumberRow], ...] = (
    *(Heard, SiteOverview, RecentEvents, LinkState, StoreNumbers, LeaderNumbers),
    MemberNumbers,
)
Samples = Mapping[str, Mapping[Labels, float]]


def samples(seen: Overview, folder: StoreFolder) -> Samples:
    """What `/metrics` has at that moment."""
    found: dict[str, dict[Labels, float]] = {}
    for row in metric_rows(seen, folder):
        series = found.setdefault(row.name + ("_total" if row.counter else ""), {})
        for values, value in row.values:
            if value is not None:
                series[tuple(sorted(zip(row.labels, values, strict=True)))] = float(value)
    return found


class _Row(NumberRow):
    """A row of which only these numbers are known."""

    def __getattr__(self, field: str) -> None:
        return None


def rows_of(now: Samples) -> Rows:
    """The rows that would have these metrics."""
    found: dict[type[NumberRow], dict[Labels, Any]] = {}
    fields = {kind.metric(name): (kind, name) for kind in KINDS for name, one in kind.numbers().items() if one.metric}
    for metric, series in now.items():
        if metric == "up":  # of Prometheus itself
            continue
        kind, field = fields[metric]
        for labels, value in series.items():
            setattr(found.setdefault(kind, {}).setdefault(labels, _Row()), field, value)
    return found
