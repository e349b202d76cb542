"""From the entries of a run to its trackers: scalars, links, and the verdict at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geocomm.metrics.counters import stats
from geocomm.train.runs.link_scalars import LinkScalars
from geocomm.train.runs.run_verdict import RunVerdict
from geocomm.train.runs.tracker_threads import TrackerThreads
from geocomm.train.runs.trackers import Tracker


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


def _scalars(kind: str, entry: Mapping[str, Any]) -> dict[str, float]:
    """Its numbers, by names such as step/loss, sync/nmse, site-paris/tokens_per_second."""
    values = {f"{kind}/{name}": value for name, value in entry.items() if name != "step"}
    values |= {f"sync/{name}": value for name, value in entry.get("sync", {}).items()}
    for site, row in entry.get("sites", {}).items():
        values |= {f"site-{site}/{name}": value for name, value in row.items()}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
