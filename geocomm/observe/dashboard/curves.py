"""Series over time for the page: what each site trained, and what pairs of sites moved."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from geocomm.metrics.sources import worst_nmse
from geocomm.observe.telemetry.overview_links import both_ends, bytes_per_second, rtt_seconds
from geocomm.observe.telemetry.report import Row, known, mean, share, total
from geocomm.observe.telemetry.run_store import Rank, Received, RunStore

MOST_LINES = 16
"""Sites, and pairs of sites, of one answer."""
_MOST_POINTS = 300
_MOST_REPORTS = 12_000
"""That are read for one answer: with many ranks there are fewer points."""
_INTERVALS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
_MOST_KEPT = 4
_DIGITS = 5
_SENT = ("raw_bytes_sent", "wire_bytes_sent")

_Values = dict[str, float | None]
_Point = dict[str, _Values]


class _Points:
    """The points of one interval, as far as they were read."""

    def __init__(self, interval_s: float, first: int) -> None:
        self.interval_s = interval_s
        self.first = first
        self._next = first
        self._before: dict[Rank, Received] = {}
        self.sites: dict[int, _Point] = {}
        self.links: dict[int, _Point] = {}

    def read_on(self, store: RunStore, until: float) -> None:
        """Read what came since. The last point is read again, for more may come that belongs to it."""
        bins: dict[int, list[Received]] = defaultdict(list)
        begin = self._next * self.interval_s - 1e-6
        for received in store.sampled(begin, until, self.interval_s):
            bins[int(received.at / self.interval_s)].append(received)
        for place in sorted(bins):
            pairs = [(self._before.get(received.rank), received) for received in bins[place]]
            self.sites[place] = {
                site: _of_site([(was, now) for was, now in pairs if now.report.site == site])
                for site in {received.report.site for received in bins[place]}
            }
            self.links[place] = {
                " > ".join(way): {
                    "bytes_per_second": bytes_per_second(there, back),
                    "rtt_seconds": rtt_seconds(there + back),
                }
                for way, (there, back) in both_ends(pairs).items()
            }
            if (place + 1) * self.interval_s <= until:
                self._before |= {received.rank: received for received in bins[place]}
                self._next = place + 1

    def forget(self, first: int) -> None:
        """Drop points before `first`."""
        for points in (self.sites, self.links):
            for place in [place for place in points if place < first]:
                del points[place]
        self.first = first


class Curves:
    """Reads series from a run store. Points that it has read it does not read again."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._kept: dict[float, _Points] = {}

    def read(self, since: float, until: float) -> dict[str, Any]:
        """Series from `since` to `until`, in Unix seconds.

        Returns `times`, `interval` (seconds between these), and lists as long as `times` by site (`sites`: loss,
        held_out_loss of the last evaluation, grad_norm, step_seconds, tokens_per_second, the share of the step that is
        exposed, the ratio of bytes before compression by those sent, and nmse, what codecs lose of gradients) and by
        pair of sites (`links`, "a > b": bytes_per_second, rtt_seconds). Of many, those that moved most; `of_sites` and
        `of_links` say how many there are. None: not known.
        """
        interval_s = self._interval_s(until - since)
        first = int(since / interval_s)
        points = self._kept.pop(interval_s, None)
        if points is None or points.first > first:
            points = _Points(interval_s, first)
        self._kept[interval_s] = points  # the last one: it was used last
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        points.read_on(self._store, until)
        points.forget(first)
        times = sorted(points.sites)
        sites, links = ([points[time] for time in times] for points in (points.sites, points.links))
        return {
            "times": [time * interval_s for time in times],
            "interval": interval_s,
            "of_sites": len({site for point in sites for site in point}),
            "of_links": len({link for point in links for link in point}),
            "sites": _series(sites, "tokens_per_second"),
            "links": _series(links, "bytes_per_second"),
        }

    def _interval_s(self, seconds: float) -> float:
        ranks = max(1, len(self._store.latest()))
        points = max(10, min(_MOST_POINTS, _MOST_REPORTS // ranks))
        wanted = seconds / points
        return next((one for one in _INTERVALS_S if one >= wanted), 3600.0 * math.ceil(wanted / 3600))


def _series(points: list[_Point], chosen_by: str) -> dict[str, dict[str, list[float | None]]]:
    """Lists over the points, by key and name; of many keys, those with the largest sums of `chosen_by`."""
    names = {key: list(values) for point in points for key, values in point.items()}
    sums = {key: sum(known(point[key][chosen_by] for point in points if key in point)) for key in names}
    return {
        key: {name: [_short(point.get(key, {}).get(name)) for point in points] for name in names[key]}
        for key in sorted(sorted(names, key=lambda key: -sums[key])[:MOST_LINES])
    }


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")


def _of_site(own: list[tuple[Received | None, Received]]) -> _Values:
    """Values of one site at one time."""
    last = [now.report.training for _, now in own]
    totals = [(_totals(was), _totals(now)) for was, now in own if was is not None]
    steps = [_grown(old, new, new) for old, new in totals]
    moved = [row for row in steps if row.get("steps")]
    found: _Values = {name: mean(row.get(name) for row in last) for name in ("loss", "held_out_loss", "grad_norm")}
    found["step_seconds"] = mean(row["seconds"] / row["steps"] for row in moved if "seconds" in row)
    found["tokens_per_second"] = total(
        row["tokens"] / row["seconds"] for row in moved if row.get("tokens") and row.get("seconds")
    )
    found["exposed"] = share(_sum_of(moved, "exposed_seconds"), _sum_of(moved, "seconds"))
    sent = [_grown(was.report.stats, now.report.stats, _SENT) for was, now in own if was is not None]
    wire_bytes = _sum_of(sent, "wire_bytes_sent")
    found["ratio"] = _sum_of(sent, "raw_bytes_sent") / wire_bytes if wire_bytes else None
    hooks = [hook for _, now in own for hook in now.report.stats.get("gradients", ())]
    found["nmse"] = max(known(map(worst_nmse, hooks)), default=None)
    return found


def _totals(received: Received) -> Row:
    return received.report.training.get("totals", {})


def _sum_of(rows: Iterable[Row], name: str) -> float:
    return sum(row.get(name, 0.0) for row in rows)


def _grown(old: Row, new: Row, names: Iterable[str]) -> Row:
    """By how much totals of a rank grew; those of a new process began at 0."""
    return {name: new[name] - old.get(name, 0) for name in names if name in new}
