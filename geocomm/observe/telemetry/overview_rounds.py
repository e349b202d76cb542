"""Rounds of local steps at one moment, as all sites together see them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from geocomm.observe.telemetry.last_reports import LastReports
from geocomm.observe.telemetry.report import Row
from geocomm.observe.telemetry.run_store import Rank, Received, RunStore

_ROUND_WINDOW_S = 60.0
_OPEN_ROUND_WINDOW_S = 5.0
"""A round under way is in every report, so that one which is in none of these is not open any more."""


class Phase(enum.StrEnum):
    """How far a round of local steps is."""

    DUE = "due"
    """A site's schedule asked for it, and it has not begun."""
    OPEN = "open"
    """It has begun."""
    DONE = "done"
    VOID = "void"
    """No site counted."""
    FAILED = "failed"


@dataclass(frozen=True)
class RoundState:
    """A round of local steps of one fragment, as all sites together see it."""

    fragment: int
    round: int
    """Its number; in an elastic run the version of the fragment that it begins with."""
    elastic: bool
    phase: Phase
    """The phase at the site that is furthest behind."""
    age_seconds: float | None
    """Since it began, or was due, at the first site; of one that is over, since it ended."""
    sites: tuple[str, ...]
    """Sites that take part, as far as they have said so."""
    waits_for: tuple[str, ...]
    """Sites whose frame some other site has not got. Empty where the round does not wait for a frame."""
    counted: tuple[str, ...]
    """Sites that count, once that is decided."""


def round_states(store: RunStore, seen: LastReports) -> Iterator[RoundState]:
    """Rounds under way, oldest first; then the last of each fragment that is over."""
    last = {received.rank: received for received in seen.last if received.report.stats.get("local_steps")}
    told: dict[tuple[bool, int, int], dict[Rank, tuple[Received, Row]]] = {}
    for at, rank, row in store.told("rounds", seen.at - _ROUND_WINDOW_S, seen.at) if last else ():
        if rank not in last:
            continue  # a process that was there before
        if _phase(row) not in (Phase.DUE, Phase.OPEN) or last[rank].at - at < _OPEN_ROUND_WINDOW_S:
            told.setdefault((row["elastic"], row["fragment"], row["round"]), {})[rank] = (last[rank], row)
    states = [_round(seen.at, *key, list(rows.values())) for key, rows in told.items()]
    running = [state for state in states if state.phase in (Phase.DUE, Phase.OPEN)]
    over: dict[int, RoundState] = {}
    for state in sorted(states, key=lambda state: state.round):
        if state not in running:
            over[state.fragment] = state
    yield from sorted(running, key=lambda state: -(state.age_seconds or 0.0))
    yield from (over[fragment] for fragment in sorted(over))


def _round(at: float, elastic: bool, fragment: int, number: int, told: list[tuple[Received, Row]]) -> RoundState:
    phases = {_phase(row) for _, row in told}
    phase = next(one for one in (Phase.FAILED, Phase.DUE, Phase.OPEN, Phase.VOID, Phase.DONE) if one in phases)
    running = phase in (Phase.DUE, Phase.OPEN)
    ages: list[float] = []
    for received, row in told:
        names = ("due_ns", "begun_ns") if running else ("applied_ns", "averaged_ns", "listed_ns", "begun_ns")
        when_ns = next((row[name] for name in names if row[name] is not None), None)
        if when_ns is not None:
            ages.append((received.report.now_ns - when_ns) / 1e9 + at - received.at)
    waiting = [(received.report.site, row) for received, row in told if _phase(row) is Phase.OPEN]
    missing = {
        peer["site"]
        for _, row in waiting
        for peer in row["peers"]
        if peer["arrived_ns"] is None and (row["counted"] is None or peer["site"] in row["counted"])
    }
    return RoundState(
        fragment=fragment,
        round=number,
        elastic=elastic,
        phase=phase,
        age_seconds=(max(ages) if running else min(ages)) if ages else None,
        sites=tuple(
            sorted({received.report.site for received, _ in told} | {p["site"] for _, r in told for p in r["peers"]})
        ),
        waits_for=tuple(sorted(missing)),
        counted=tuple(sorted({site for _, row in told for site in row["counted"] or ()})),
    )


def _phase(row: Row) -> Phase:
    if row["failed"]:
        return Phase.FAILED
    if row["counted"] == []:
        return Phase.VOID
    if row["applied_ns"] is not None:
        return Phase.DONE
    return Phase.DUE if row["begun_ns"] is None else Phase.OPEN
