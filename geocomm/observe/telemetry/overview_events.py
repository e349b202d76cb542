"""Events of a run: what several ranks of a site saw alike is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from geocomm.observe.telemetry.report import Row

_MOST_EVENTS = 50
_SAME_EVENT_S = 10.0


@dataclass(frozen=True)
class EventState:
    """Something that happened."""

    at: float
    """Unix seconds of the collector's clock, when it was reported."""
    site: str
    ranks: tuple[int, ...]
    """Those that said the same."""
    kind: str
    """One of `geocomm.metrics.events.KINDS`."""
    fields: Row


def event_states(rows: Iterable[Row]) -> Iterator[EventState]:
    """The events of `RunStore.events`, newest first, at most 50. Reads no more rows than these need."""
    found: list[EventState] = []
    for row in rows:
        fields = {name: value for name, value in row.items() if name not in ("at", "site", "rank", "kind", "time")}
        for number, known in enumerate(found):
            alike = (known.site, known.kind, known.fields) == (row["site"], row["kind"], fields)
            if alike and known.at - row["at"] < _SAME_EVENT_S:
                found[number] = dataclasses.replace(known, ranks=tuple(sorted({*known.ranks, row["rank"]})))
                break
        else:
            if len(found) == _MOST_EVENTS:
                break
            found.append(EventState(row["at"], row["site"], (row["rank"],), row["kind"], fields))
    yield from found


def moments(rows: Iterable[Row]) -> Iterator[float]:
    """When the events of `RunStore.events` were reported, the last first; what several ranks reported at once is one,
    of when the first of them did."""
    first = last = None
    for row in rows:
        if last is None or last - row["at"] >= _SAME_EVENT_S:
            if first is not None:
                yield first
            last = row["at"]
        first = row["at"]
    if first is not None:
        yield first
