"""What the page shows, as JSON: the state of now, and the steps before it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pydantic_core import to_jsonable_python

from geocomm._version import __version__
from geocomm.observe.alerts.alert_log import firing
from geocomm.observe.diagnosis.bottleneck import Diagnosis
from geocomm.observe.diagnosis.verdict import Cause
from geocomm.observe.telemetry.overview import Overview, overview
from geocomm.observe.telemetry.report import Row
from geocomm.observe.telemetry.run_numbers import metric_names
from geocomm.observe.telemetry.run_store import RunStore
from geocomm.observe.telemetry.store_folder import StoreFolder

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
