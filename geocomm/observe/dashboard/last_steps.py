"""The last steps of each site, for the page."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from geocomm.observe.telemetry.report import Row
from geocomm.observe.telemetry.run_store import RunStore

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
