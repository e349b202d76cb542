"""Series over time for the page: what each site trained, and what each pair of sites moved."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from geocomm.telemetry.report import Row
from geocomm.telemetry.run_store import Rank, Received, RunStore

MOST_POINTS = 300
_MOST_REPORTS = 12_000
"""That are read for one answer: with many ranks there are fewer points."""
_SHARES = ("input", "exposed", "checkpoint")


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
    seconds = _sum(row.get("seconds", 0.0) for row in moved)
    found: dict[str, float | None] = {name: _mean([row.get(name) for row in last]) for name in ("loss", "grad_norm")}
    found["step_seconds"] = _mean([row["seconds"] / row["steps"] for row in moved if "seconds" in row])
    found["tokens_per_second"] = _sum(
        row["tokens"] / row["seconds"] for row in moved if row.get("tokens") and row.get("seconds")
    )
    for share in _SHARES:
        part = _sum(row.get(f"{share}_seconds", 0.0) for row in moved)
        found[share] = None if not seconds or part is None else min(1.0, part / seconds)
    return found


def _grown(was: Received, now: Received) -> Row:
    """By how much the totals of a rank's training grew; counters of a new process began at 0."""
    old: Row = was.report.training.get("totals", {})
    new: Row = now.report.training.get("totals", {})
    return {name: value - old.get(name, 0) for name, value in new.items()}


def _of_links(pairs: Iterable[tuple[Received | None, Received]]) -> dict[str, dict[str, float | None]]:
    """Values of each pair of sites at one time."""
    found: dict[str, dict[str, float | None]] = {}
    for was, now in pairs:
        seconds = 0.0 if was is None else (now.report.now_ns - was.report.now_ns) / 1e9
        old = {} if was is None else {row["peer"]: row for row in was.report.stats.get("peers", [])}
        for row in now.report.stats.get("peers", []):
            site = row.get("site")
            if not site or site == now.report.site:
                continue
            values = found.setdefault(f"{now.report.site} > {site}", {"bytes_per_second": None, "rtt_seconds": None})
            if seconds > 0:
                sent_before = old.get(row["peer"], {}).get("bytes_sent", 0)
                sent = row["bytes_sent"] - (sent_before if sent_before <= row["bytes_sent"] else 0)
                _merge(values, "bytes_per_second", sent / seconds, lambda a, b: a + b)
            if row.get("rtt_us"):
                _merge(values, "rtt_seconds", row["rtt_us"] / 1e6, max)
    return found


def _merge(values: dict[str, float | None], name: str, value: float, join: Callable[[float, float], float]) -> None:
    known = values[name]
    values[name] = value if known is None else join(known, value)


def _sum(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
