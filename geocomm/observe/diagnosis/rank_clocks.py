"""The clocks of ranks brought together: how far each machine's monotonic clock is from that of one rank.

Links measure it with their heartbeats: each report says where between two bounds the peer's clock is
(`csrc/transport/link/clock_offset.h`). All reports about two ranks, from either side, leave what their bounds have in
common. From rank to rank the errors add up, so the way with the least error counts.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from geocomm.observe.diagnosis.link_use import peers
from geocomm.observe.telemetry.run_store import Rank, Received

_DRIFT = 1e-4
"""Two clocks drift apart by no more than this share of the time."""
_CUT_NS = 1000
"""Reports give whole microseconds."""
_SAME_START_S = 0.1
"""Ranks of one machine tell the same time of day at which its monotonic clock was 0, but for what two calls take."""
_UNDER_WAY_S = 1.0
"""So long may the fastest report of a rank be under way to the collector."""


@dataclass(frozen=True)
class Clock:
    """The monotonic clock of a rank's machine."""

    offset_ns: int
    """It less that of the reference."""
    error_ns: int
    """By so much that may be wrong."""
    measured: bool = True
    """By links. Else it is from the machines' times of day, and its error from when their reports came."""

    def to_reference(self, at_ns: int) -> int:
        """A moment of this clock on the reference's clock."""
        return at_ns - self.offset_ns


@dataclass(frozen=True)
class _Bounds:
    """The clock of one rank less that of another is between the two, in ns, at one moment."""

    at: float
    low: float
    high: float


def rank_clocks(reports: Iterable[Received], last: Sequence[Received], span: tuple[float, float]) -> dict[Rank, Clock]:
    """The clock of each rank of `last` against that of the first of them.

    reports: what is known of their links. span: of the collector's time, in Unix seconds, in which offsets shall hold;
    their errors allow for the drift until its ends."""
    own = {(received.report.site, received.report.rank): received.rank for received in last}
    ranks = set(own.values())
    told: dict[tuple[Rank, Rank], list[_Bounds]] = defaultdict(list)
    shifts: dict[Rank, float] = {}
    for received in itertools.chain(reports, last):
        here = received.rank
        if here not in ranks:
            continue
        shifts[here] = min(shifts.get(here, float("inf")), received.at - received.report.time)
        for peer in peers(received):
            there = own.get((peer["site"], peer["rank"]))
            if there is None or there == here or None in (peer["clock_offset_us"], peer["clock_error_us"]):
                continue
            offset, error = 1000 * peer["clock_offset_us"], 1000 * abs(peer["clock_error_us"]) + _CUT_NS
            if (there, here) in told:
                told[there, here].append(_Bounds(received.at, -offset - error, -offset + error))
            else:
                told[here, there].append(_Bounds(received.at, offset - error, offset + error))
    edges: dict[Rank, list[tuple[Rank, Clock]]] = defaultdict(list)
    for (here, there), bounds in told.items():
        _join(edges, here, there, _common(bounds, span))
    for one, other in _on_one_machine(last):
        _join(edges, one, other, Clock(0, 0))
    found = _nearest(last[0].rank, edges)
    first = last[0]
    for received in last:
        of_day = received.report.now_ns - first.report.now_ns - _ns(received.report.time - first.report.time)
        error = _ns(abs(shifts[received.rank] - shifts[first.rank]) + _UNDER_WAY_S)
        found.setdefault(received.rank, Clock(of_day, error, measured=False))
    return found


def _common(bounds: Sequence[_Bounds], span: tuple[float, float]) -> Clock:
    """What all bounds say together in the middle of the span. Where they contradict each other, as after a machine has
    slept, the newer ones count."""
    middle = (span[0] + span[1]) / 2
    low, high = float("-inf"), float("inf")
    for one in sorted(bounds, key=lambda one: -one.at):
        drift = _DRIFT * 1e9 * abs(middle - one.at)
        if max(low, one.low - drift) > min(high, one.high + drift):
            break
        low, high = max(low, one.low - drift), min(high, one.high + drift)
    half_span = _DRIFT * 1e9 * (span[1] - span[0]) / 2
    return Clock(round((low + high) / 2), round((high - low) / 2 + half_span))


def _on_one_machine(last: Sequence[Received]) -> Iterable[tuple[Rank, Rank]]:
    """Each rank with the first of its machine: hosts of one name that tell the same start of their clocks."""
    first: dict[tuple[str, str], list[tuple[float, Rank]]] = defaultdict(list)
    for received in last:
        report = received.report
        if not report.host:
            continue
        start, machines = report.time - report.now_ns / 1e9, first[report.site, report.host]
        known = next((rank for at, rank in machines if abs(at - start) < _SAME_START_S), None)
        if known is None:
            machines.append((start, received.rank))
        else:
            yield known, received.rank


def _join(edges: dict[Rank, list[tuple[Rank, Clock]]], here: Rank, there: Rank, clock: Clock) -> None:
    edges[here].append((there, clock))
    edges[there].append((here, Clock(-clock.offset_ns, clock.error_ns)))


def _nearest(reference: Rank, edges: Mapping[Rank, Sequence[tuple[Rank, Clock]]]) -> dict[Rank, Clock]:
    """Dijkstra's shortest paths, of which errors are the lengths."""
    found: dict[Rank, Clock] = {}
    open_ends = {reference: Clock(0, 0)}
    while open_ends:
        here = min(open_ends, key=lambda rank: open_ends[rank].error_ns)
        clock = found[here] = open_ends.pop(here)
        for there, more in edges.get(here, ()):
            further = Clock(clock.offset_ns + more.offset_ns, clock.error_ns + more.error_ns)
            if there not in found and (there not in open_ends or further.error_ns < open_ends[there].error_ns):
                open_ends[there] = further
    return found


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
