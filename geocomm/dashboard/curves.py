"""Series over time for the page: what each site trained, and what each pair of sites moved."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from geocomm.telemetry.known_values import mean, share, total
from geocomm.telemetry.overview_links import both_ends, bytes_per_second, rtt_seconds
from geocomm.telemetry.report import Row
from geocomm.telemetry.run_store import Rank, Received, RunStore

MOST_POINTS = 300
_MOST_REPORTS = 12_000
"""That are read for one answer: with many ranks there are fewer points."""
_PARTS = ("input", "exposed", "checkpoint")


def curves(store: RunStore, since: float, until: float) -> dict[str, Any]:
    """Series from `since` to `until`, in Unix seconds.

    Returns `times`, and lists as long as it by site (`sites`: loss, grad_norm, step_seconds, tokens_per_second, and the
    shares of the step input, exposed and checkpoint) and by pair of sites (`links`, "a > b": bytes_per_second,
    rtt_seconds). None: not known.
    """
    if until <= since:
        return {"times": [], "sites": {}, "links": {}}
    ranks = max(1, len(store.latest(until)))
    points = max(10, min(MOST_POINTS, _MOST_REPORTS // ranks))
    interval_s = max(1.0, (until - since) / points)
    bins: dict[int, list[Received]] = defaultdict(list)
    for received in store.sampled(since, until, interval_s):
        bins[int(received.at / interval_s)].append(received)
    times = sorted(bins)
    sites: dict[str, dict[str, list[float | None]]] = {}
    links: dict[str, dict[str, list[float | None]]] = {}
    before: dict[Rank, Received] = {}
    for place, time in enumerate(times):
        pairs = [(before.get(received.rank), received) for received in bins[time]]
        for site in {received.report.site for received in bins[time]}:
            own = [(was, now) for was, now in pairs if now.report.site == site]
            for name, value in _of_site(own).items():
                _put(sites.setdefault(site, {}), name, place, value, len(times))
        for link, values in _of_links(pairs).items():
            for name, value in values.items():
                _put(links.setdefault(link, {}), name, place, value, len(times))
        before |= {received.rank: received for received in bins[time]}
    return {"times": [time * interval_s for time in times], "sites": sites, "links": links}


def _put(series: dict[str, list[float | None]], name: str, place: int, value: float | None, length: int) -> None:
    series.setdefault(name, [None] * length)[place] = value if value is None or math.isfinite(value) else None


def _of_site(own: list[tuple[Received | None, Received]]) -> dict[str, float | None]:
    """Values of one site at one time."""
    last = [now.report.training for _, now in own]
    steps: list[Row] = [_grown(was, now) for was, now in own if was is not None]
    moved = [row for row in steps if row.get("steps")]
    seconds = sum(row.get("seconds", 0.0) for row in moved)
    found: dict[str, float | None] = {name: mean(row.get(name) for row in last) for name in ("loss", "grad_norm")}
    found["step_seconds"] = mean(row["seconds"] / row["steps"] for row in moved if "seconds" in row)
    found["tokens_per_second"] = total(
        row["tokens"] / row["seconds"] for row in moved if row.get("tokens") and row.get("seconds")
    )
    for part in _PARTS:
        found[part] = share(sum(row.get(f"{part}_seconds", 0.0) for row in moved), seconds)
    return found


def _grown(was: Received, now: Received) -> Row:
    """By how much the totals of a rank's training grew; counters of a new process began at 0."""
    old: Row = was.report.training.get("totals", {})
    new: Row = now.report.training.get("totals", {})
    return {name: value - old.get(name, 0) for name, value in new.items()}


def _of_links(pairs: Iterable[tuple[Received | None, Received]]) -> dict[str, dict[str, float | None]]:
    """Values of each pair of sites at one time."""
    return {
        " > ".join(way): {"bytes_per_second": bytes_per_second(there, back), "rtt_seconds": rtt_seconds(there + back)}
        for way, (there, back) in both_ends(pairs).items()
    }
