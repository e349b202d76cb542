"""What the page shows, as JSON: the state of now, the steps before it, and series over time."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pydantic_core import to_jsonable_python

from geocomm._version import __version__
from geocomm.metrics.sources import worst_nmse
from geocomm.observe.alerts.alert_log import firing
from geocomm.observe.diagnosis.bottleneck import Diagnosis
from geocomm.observe.diagnosis.verdict import Cause
from geocomm.observe.telemetry.overview import Overview, overview
from geocomm.observe.telemetry.overview_links import both_ends, bytes_per_second, rtt_seconds
from geocomm.observe.telemetry.report import Row, known, mean, share, total
from geocomm.observe.telemetry.run_numbers import metric_names
from geocomm.observe.telemetry.run_store import Rank, Received, RunStore
from geocomm.observe.telemetry.store_folder import StoreFolder

MOST_LINES = 16
"""Sites, and pairs of sites, of one answer."""
_MOST_POINTS = 300
_MOST_OF_CURVES = 12_000
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
        points = max(10, min(_MOST_POINTS, _MOST_OF_CURVES // ranks))
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


_MOST = 60
_MOST_REPORTS = 4000
"""That are read at first: with many ranks, and long steps, these have fewer steps than the most."""
_LATE_S = 0.5
"""So long after it came may a report stand in the store."""
_NAMES = ("at", "seconds", "input_seconds", "exposed_seconds", "checkpoint_seconds")


class LastSteps:
    """Reads them from a run store. Reports that it has read it does not read again."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._read_to: float | None = None
        self._steps: dict[str, dict[int, dict[int, Row]]] = defaultdict(dict)

    def read(self, at: float, since: float = 0.0) -> dict[str, list[dict[str, float]]]:
        """By site, up to `at` (Unix seconds, no less than the time before): the number of each step, when it was
        reported, and the median over its ranks of `seconds` and of the parts that are known. since: at first, without
        those that were reported before."""
        since = max(since, self._store.begin_of_last(_MOST_REPORTS, at)) if self._read_to is None else self._read_to
        self._read_to = at - _LATE_S
        for reported, rank, row in self._store.told("steps", since, at):
            self._take(self._steps[rank.site], rank.rank, {**row, "at": round(reported, 1)})
        return {
            site: [{"step": step} | _medians(rows.values()) for step, rows in self._steps[site].items()]
            for site in sorted(self._steps)
        }

    @staticmethod
    def _take(steps: dict[int, dict[int, Row]], rank: int, row: Row) -> None:
        rows = steps.setdefault(row["step"], {})
        if rank in rows:  # made once more, after a restart
            steps[row["step"]] = steps.pop(row["step"])
        rows[rank] = row
        if len(steps) > _MOST:
            del steps[next(iter(steps))]


def _medians(rows: Iterable[Row]) -> dict[str, float]:
    known = {name: [row[name] for row in rows if name in row] for name in _NAMES}
    return {name: statistics.median(values) for name, values in known.items() if values}


def page_state(store: RunStore, steps: LastSteps, at: float) -> dict[str, Any]:
    """The run at `at`, in Unix seconds; numbers that are not finite are None."""
    folder = StoreFolder.look(store.path.parent)
    seen = overview(store, at, folder.collected_since)
    return plain({
        "version": __version__,
        "metrics": metric_names(),
        "at": at,
        **_head(seen),
        "sites": [{**vars(site), "life": site.life,
                   "report_age_seconds": site.report_age_seconds} for site in seen.sites],
        "links": seen.links,
        "rounds": seen.rounds,
        "events": seen.events,
        "options": seen.options,
        "members": _members(folder),
        "data_left_tokens": folder.left_tokens,
        "data_repeated_tokens": folder.repeated_tokens,
        "alerts": [{"severity": one["severity"], "text": one["text"]} for one in firing(store.path.parent, at)],
        "steps": steps.read(at),
    })  # fmt: skip


def verdicts(found: Diagnosis) -> list[dict[str, Any]]:
    """What slows the last steps most, first, as `geocomm why --json` has it."""
    return [one.row() for one in found.verdicts if one.cause is not Cause.UNKNOWN or one.saved_seconds]


def _head(seen: Overview) -> dict[str, Any]:
    names = ("step", "of_steps", "tokens_per_second", "loss", "held_out_loss", "seconds_left", "standstill_seconds")
    return {name: getattr(seen, name) for name in names}


def _members(folder: StoreFolder) -> list[dict[str, Any]] | None:
    """Sites of an elastic run as its journal has them; None: the run is not elastic."""
    if folder.members is None:
        return None
    dealt = folder.dealt_tokens
    return [
        {"site": one.name, "standing": one.standing, "rounds": one.rounds, "dealt": dealt.get(one.name)}
        for one in folder.members
    ]


def plain(value: Any) -> Any:
    """Dataclasses and other values for JSON, in which there is no NaN."""
    return to_jsonable_python(value, inf_nan_mode="null")
