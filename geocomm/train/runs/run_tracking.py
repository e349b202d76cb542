"""From the entries of a run to its trackers: scalars, links, and the verdict at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from geocomm.metrics.counters import stats
from geocomm.train.runs.run_verdict import RunVerdict
from geocomm.train.runs.tracker_threads import TrackerThreads
from geocomm.train.runs.trackers import Tracker

_SUMS = ("bytes_sent", "bytes_received", "retransmitted_segments", "resumes", "outages")
_RATES = {"bytes_sent": "sent_bps", "bytes_received": "received_bps"}


class RunTracking:
    """Mirrors what RunLog writes. Nothing here raises because of a tracker."""

    def __init__(self, trackers: Mapping[str, Tracker], total_steps: int, every: int) -> None:
        """every: steps between two readings of the links."""
        self._trackers = TrackerThreads(trackers)
        self._links = LinkScalars(lambda: stats()["peers"])
        self._verdict = RunVerdict(total_steps)
        self._every = every

    def entry(self, kind: str, entry: Mapping[str, Any]) -> None:
        """An entry of metrics.jsonl."""
        self._verdict.add(kind, entry)
        if kind in ("step", "sites", "eval"):
            scalars = _scalars(kind, entry)
            if kind == "step" and entry["step"] % self._every == 0:
                scalars |= self._links.read()
            self._trackers.log(scalars, entry["step"])
        elif kind == "end":
            self._trackers.text("verdict", self._verdict.text(entry["step"], entry["complete"]), entry["step"])

    def close(self) -> None:
        """The run is over, or failed."""
        self._trackers.close()


class LinkScalars:
    """The links of `geocomm.stats()` for a tracker: numbers for each other site. Rates are between two readings."""

    def __init__(
        self, peers: Callable[[], Sequence[Mapping[str, Any]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """peers: rows as stats()["peers"] has them; clock: seconds."""
        self._peers = peers
        self._clock = clock
        self._before: dict[str, dict[str, float]] = {}
        self._when = clock()

    def read(self) -> dict[str, float]:
        """`link/SITE/…`: totals over the peers at that site, bits per second, the longest round trip in seconds."""
        now, sites = self._clock(), self._by_site()
        elapsed = now - self._when
        scalars: dict[str, float] = {}
        for site, values in sites.items():
            scalars |= {f"link/{site}/{name}": value for name, value in values.items()}
            before = self._before.get(site)
            if before is not None and elapsed > 0:
                for total, rate in _RATES.items():
                    # Links begin anew with each process group: totals may fall.
                    scalars[f"link/{site}/{rate}"] = max(0.0, values[total] - before[total]) * 8 / elapsed
        self._before, self._when = sites, now
        return scalars

    def _by_site(self) -> dict[str, dict[str, float]]:
        sites: dict[str, dict[str, float]] = {}
        for peer in self._peers():
            if peer["site"] is None:
                continue
            values = sites.setdefault(peer["site"], dict.fromkeys((*_SUMS, "rtt_seconds"), 0.0))
            for name in _SUMS:
                values[name] += peer[name]
            values["rtt_seconds"] = max(values["rtt_seconds"], peer["rtt_us"] * 1e-6)
        return sites


def _scalars(kind: str, entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an entry, by names such as step/loss, sync/nmse, site-paris/tokens_per_second."""
    values = {f"{kind}/{name}": value for name, value in entry.items() if name != "step"}
    values |= {f"sync/{name}": value for name, value in entry.get("sync", {}).items()}
    for site, row in entry.get("sites", {}).items():
        values |= {f"site-{site}/{name}": value for name, value in row.items()}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
