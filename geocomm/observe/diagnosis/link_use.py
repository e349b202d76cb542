"""What the counters of ranks say of their links, and of their CPUs, in a window of time."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from geocomm.observe.telemetry.report import Row
from geocomm.observe.telemetry.run_store import Received

Place = tuple[str, int]
"""A rank: its site and its number."""
_STALE = 2
"""The first rates of a window are from before it: TCP tells the last one that it saw."""
_OF_THE_MEAN = 0.3
"""Losses are where the share of bytes that are lost is more than so much of the mean."""
_FEW_RATES = 5
"""The least samples: of fewer nothing is said."""


@dataclass(frozen=True)
class LinkUse:
    """What TCP said of the bytes from one rank to another in the window."""

    source: Place
    target: Place
    bytes_sent: int = 0
    retransmitted: int = 0
    busy_s: float = 0.0
    receiver_limited_s: float = 0.0
    buffer_limited_s: float = 0.0
    rtt_s: float = 0.0
    """The median of the heartbeats' last round trips; 0: not known."""
    min_rtt_s: float = 0.0
    best_rate: float = 0.0
    """The most that TCP was seen to deliver with enough to send, in bytes per second; 0: it never was."""
    good_rate: float = 0.0
    """What it delivered with enough to send, in the best fifth of the time; 0: not known."""
    earlier_rate: float = 0.0
    """The same of the time before; 0: not known."""
    congestion_control: str = ""
    streams: int = 0
    spread: float = 1.0
    """Share of the bytes that were sent while about as many were lost as in the mean. Little: all were lost at once."""


def peers(report: Received) -> Iterable[Mapping[str, Any]]:
    """The rows of a report's links to ranks that are known."""
    return (peer for peer in report.report.stats.get("peers", ()) if peer.get("rank") is not None and peer["site"])


def link_uses(
    place: Place, reports: Sequence[Received], earlier: Sequence[Received], began_ns: float, ended_ns: float
) -> tuple[list[LinkUse], float]:
    """What a rank's counters say of the time between two moments of its clock: of each link; and which share of the
    bytes that it sent it passed on for others.

    reports: in the order of time, and some of before. earlier: some of long before."""
    inside = around(reports, began_ns, ended_ns)
    before = bool(inside) and inside[0].report.now_ns <= began_ns
    links = [_link_use(place, target, told, before and len(told) > 1) for target, told in _rows(inside).items()]
    long_ago = _rows(earlier)
    links = [replace(link, earlier_rate=_good_rate(long_ago.get(link.target, ()))) for link in links]
    if not inside:
        return links, 0.0
    nothing: Row = {}
    first, end = inside[0].report.stats if before else nothing, inside[-1].report.stats
    relayed, sent = (end.get(name, 0) - first.get(name, 0) for name in ("relayed_bytes", "wire_bytes_sent"))
    return links, relayed / sent if sent > 0 else 0.0


def around(reports: Sequence[Received], began_ns: float, ended_ns: float) -> list[Received]:
    """Reports between two moments of a rank's clock, with the last one before them and the first one after."""
    before = [report for report in reports if report.report.now_ns <= began_ns]
    inside = [report for report in reports if began_ns < report.report.now_ns < ended_ns]
    after = [report for report in reports if report.report.now_ns >= ended_ns]
    return [*before[-1:], *inside, *after[:1]]


def _rows(reports: Iterable[Received]) -> dict[Place, list[Mapping[str, Any]]]:
    found: dict[Place, list[Mapping[str, Any]]] = defaultdict(list)
    for report in reports:
        for peer in peers(report):
            found[str(peer["site"]), int(peer["rank"])].append(peer)
    return found


def cpu_lost(told: Sequence[Received]) -> tuple[float, float]:
    """Of a rank's reports, one after the other: the share of its machine's CPU time that the host of a virtual machine
    gave to others, and the share of the periods of its cgroup's CPU limit in which that was used up."""
    if len(told) < 2:
        return 0.0, 0.0
    first, end = told[0].report, told[-1].report
    seconds = (end.now_ns - first.now_ns) / 1e9

    def grown(name: str) -> float:
        return max(0.0, end.stats.get(name, 0) - first.stats.get(name, 0))

    stolen, periods = grown("cpu_stolen_seconds"), grown("cpu_periods")
    return (
        min(1.0, stolen / seconds) if seconds > 0 else 0.0,
        min(1.0, grown("cpu_throttled_periods") / periods) if periods else 0.0,
    )


def _good_rate(told: Iterable[Mapping[str, Any]]) -> float:
    rates = sorted(rate for peer in told if (rate := peer.get("delivery_rate", 0)))
    return float(rates[4 * len(rates) // 5]) if len(rates) >= _FEW_RATES else 0.0


def _link_use(place: Place, target: Place, told: Sequence[Mapping[str, Any]], grew: bool) -> LinkUse:
    """told: its rows. grew: the first is from before the window, whose counters do not count."""
    nothing: Mapping[str, Any] = {}
    first, end = told[0] if grew else nothing, told[-1]

    def grown(name: str) -> int:
        return max(0, int(end.get(name, 0)) - int(first.get(name, 0)))

    round_trips = [peer["rtt_us"] for peer in told if peer.get("rtt_us")]
    return LinkUse(
        place,
        target,
        bytes_sent=grown("tcp_bytes_sent"),
        retransmitted=grown("retransmitted_bytes"),
        busy_s=grown("busy_us") / 1e6,
        receiver_limited_s=grown("stalled_by_receiver_us") / 1e6,
        buffer_limited_s=grown("stalled_by_send_buffer_us") / 1e6,
        rtt_s=statistics.median(round_trips) / 1e6 if round_trips else 0.0,
        min_rtt_s=end.get("min_rtt_us", 0) / 1e6,
        best_rate=float(max(peer.get("delivery_rate", 0) or 0 for peer in (told[_STALE:] or told))),
        good_rate=_good_rate(told),
        congestion_control=str(end.get("congestion_control", "")),
        streams=max(peer.get("streams", 0) or 0 for peer in told),
        spread=_spread(told),
    )


def _spread(told: Sequence[Mapping[str, Any]]) -> float:
    """Over which share of the bytes the losses are spread; 1: not known."""
    grown = [
        tuple(max(0, later.get(name, 0) - one.get(name, 0)) for name in ("tcp_bytes_sent", "retransmitted_bytes"))
        for one, later in itertools.pairwise(told)
    ]
    sent, lost = (sum(column) for column in zip(*grown, strict=True)) if grown else (0, 0)
    if len(grown) < _FEW_RATES or not lost:
        return 1.0
    return sum(of for of, bad in grown if bad > _OF_THE_MEAN * lost / sent * of) / sent
