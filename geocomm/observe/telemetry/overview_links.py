"""The links between sites at one moment: all pairs of their ranks together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from geocomm.observe.telemetry.last_reports import LastReports
from geocomm.observe.telemetry.numbers import NumberRow, counter, gauge
from geocomm.observe.telemetry.report import Report, Row, known, share, total, words
from geocomm.observe.telemetry.run_store import Received


@dataclass(frozen=True, kw_only=True)
class LinkState(NumberRow):
    """What one site sends another: all pairs of their ranks together. Counters are since their processes started."""

    PREFIX: ClassVar[str] = "geocomm_site_link_"
    LABELS: ClassVar[tuple[str, ...]] = ("site", "peer_site")

    source: str
    target: str
    is_down: bool
    """A pair that was connected has no connection now, as this end sees it."""
    congestion_control: str
    cipher: str
    """The cipher of TLS; empty: plaintext."""
    transport: str
    bytes_per_second: float | None = gauge(
        "rate_bytes_per_second: rate at which the site sends the other",
        lambda link: bytes_per_second(link.there, link.back),
    )
    planned_bytes_per_second: float | None = gauge(
        "planned_rate_bytes_per_second: rate that the link table has", lambda link: link.planned
    )
    busy_share: float | None = gauge(
        "busy_ratio: share of the time that TCP had data which was not acknowledged",
        lambda link: max(known(_busy_share(pair) for pair in link.there), default=None),
    )
    retransmitted_share: float | None = gauge(
        "retransmitted_ratio: share of the last bytes that TCP sent again",
        lambda link: share(link.grown("retransmitted_bytes"), link.grown("tcp_bytes_sent")),
    )
    stalled_by_receiver_share: float | None = gauge(
        "window_limited_ratio: share of busy time, for receive windows",
        lambda link: share(link.grown("stalled_by_receiver_us"), link.grown("busy_us")),
    )
    stalled_by_send_buffer_share: float | None = gauge(
        "send_buffer_limited_ratio: share of busy time, for send buffers",
        lambda link: share(link.grown("stalled_by_send_buffer_us"), link.grown("busy_us")),
    )
    rtt_seconds: float | None = gauge(
        "rtt_seconds: longest round trip of the last heartbeats",  # either way
        lambda link: rtt_seconds(link.there + link.back),
    )
    least_rtt_seconds: float | None = gauge(
        "least_rtt_seconds: least round trip ever",
        lambda link: min(
            (pair.now["min_rtt_us"] / 1e6 for pair in link.there + link.back if pair.now["min_rtt_us"]), default=None
        ),
    )
    streams: int = gauge("streams: connected streams", lambda link: link.sum("streams"))
    clock_offset_seconds: float | None = gauge(
        "clock_offset_seconds: the peer's time of day less the site's, the largest",
        lambda link: link.clock and link.clock[0],
    )
    clock_error_seconds: float | None = gauge(
        "clock_error_seconds: how wrong the clock offset may be", lambda link: link.clock and link.clock[1]
    )
    bytes_sent: int = counter(
        "sent_bytes: bytes sent since the ranks started",
        lambda link: link.sum("bytes_sent") if link.there else sum(pair.now["bytes_received"] for pair in link.back),
    )
    tcp_bytes_sent: int = counter(
        "tcp_sent_bytes: bytes sent since the ranks started, repeats of TCP included",
        lambda link: link.sum("tcp_bytes_sent"),
    )
    retransmitted_bytes: int = counter(
        "retransmitted_bytes: bytes that TCP sent again", lambda link: link.sum("retransmitted_bytes")
    )
    outages: int = counter("outages: times that a pair of ranks lost all connections", lambda link: link.sum("outages"))
    most_outages: int = counter(
        "worst_pair_outages: outages of the pair of ranks that had most",
        lambda link: max((pair.now["outages"] for pair in link.there), default=0),
    )
    outage_seconds: float = counter("outage_seconds: time of all outages", lambda link: link.sum("outage_us") / 1e6)
    resumes: int = counter("resumes: connections made again", lambda link: link.sum("resumes"))


def far_peers(received: Received) -> list[Row]:
    """The links of a rank to peers at other sites."""
    near = (None, "", received.report.site)
    return [peer for peer in received.report.stats.get("peers", []) if peer.get("site") not in near]


@dataclass(frozen=True)
class PairOfRanks:
    """Two ranks of two sites, as one of them sees their link: its last row, the one before, and the time between."""

    now: Row
    before: Row
    seconds: float | None
    """None: no rates."""

    def grown(self, name: str) -> float:
        """By how much a counter grew; one of a link that is new, or was made anew, began at 0."""
        before = self.before.get(name, 0)
        return self.now[name] - (before if before <= self.now[name] else 0)

    def rate(self, name: str) -> float | None:
        """By how much a counter grew in a second."""
        return self.grown(name) / self.seconds if self.seconds else None


@dataclass(frozen=True)
class _Ends:
    """A link as its ends report it."""

    there: list[PairOfRanks]
    """As the ranks that send see it."""
    back: list[PairOfRanks]
    """As those do that receive."""
    planned: float | None
    clock: tuple[float, float] | None

    def sum(self, name: str) -> int:
        return sum(pair.now[name] for pair in self.there)

    def grown(self, name: str) -> float:
        """By how much a counter grew of late."""
        return sum(pair.grown(name) for pair in self.there if pair.seconds)


Direction = tuple[str, str]
"""The sites (from, to)."""


def both_ends(
    reports: Iterable[tuple[Received | None, Received]],
) -> dict[Direction, tuple[list[PairOfRanks], list[PairOfRanks]]]:
    """The links both ways of each pair of sites: as the ranks see them that send, and as those do that receive.

    reports: of each rank an earlier one of the same process, and the last.
    """
    found: dict[Direction, list[PairOfRanks]] = {}
    for before, last in reports:
        rows = {} if before is None else {peer["peer"]: peer for peer in far_peers(before)}
        seconds = None if before is None else (last.report.now_ns - before.report.now_ns) / 1e9
        for peer in far_peers(last):
            pair = PairOfRanks(peer, rows.get(peer["peer"], {}), seconds)
            for way in ((last.report.site, peer["site"]), (peer["site"], last.report.site)):
                found.setdefault(way, [])
            found[last.report.site, peer["site"]].append(pair)
    return {(source, target): (found[source, target], found[target, source]) for source, target in sorted(found)}


def bytes_per_second(there: Iterable[PairOfRanks], back: Iterable[PairOfRanks]) -> float | None:
    """What one site sends another: as its ranks see it (`there`), or else those of the other (`back`)."""
    sent = total(pair.rate("bytes_sent") for pair in there)
    return total(pair.rate("bytes_received") for pair in back) if sent is None else sent


def rtt_seconds(pairs: Iterable[PairOfRanks]) -> float | None:
    """The longest of the last heartbeats."""
    return max((pair.now["rtt_us"] / 1e6 for pair in pairs if pair.now["rtt_us"]), default=None)


def link_states(seen: LastReports) -> Iterator[LinkState]:
    """Both ways of each pair of sites of which an end is known; by source and target."""
    links = both_ends((seen.before(last) if seen.has_rates(last) else None, last) for last in seen.last)
    planned: dict[Direction, float] = {}
    for received in seen.last:
        planned |= _planned(received.report)
    clocks = _clocks(seen)
    down = _down(seen)
    for (source, target), (there, back) in links.items():
        way = (source, target)
        words_of = {
            name: words(pair.now[name] for pair in there) for name in ("congestion_control", "cipher", "transport")
        }
        numbers = LinkState.added_up(_Ends(there, back, planned.get(way), clocks.get(way)))
        yield LinkState(source=source, target=target, is_down=way in down, **words_of, **numbers)


def _down(seen: LastReports) -> set[Direction]:
    """From the site that sees it: a pair that was connected has no connection now, and neither has ended."""
    ended = {(one.report.site, one.report.rank) for one in seen.last if one.report.final}
    return {
        (received.report.site, peer["site"])
        for received in seen.last
        if not received.report.final
        for peer in far_peers(received)
        if peer["streams"] == 0 and peer["tcp_bytes_sent"] > 0 and (peer["site"], peer.get("rank")) not in ended
    }


def _clocks(seen: LastReports) -> dict[Direction, tuple[float, float]]:
    """What `_clock` says of the pair of ranks whose clocks are furthest apart, by direction."""
    reports = {(received.report.site, received.report.rank): received.report for received in seen.last}
    found: dict[Direction, list[tuple[float, float]]] = {}
    for received in seen.last:
        for peer in far_peers(received):
            if (clock := _clock(received.report, peer, reports)) is not None:
                found.setdefault((received.report.site, peer["site"]), []).append(clock)
    return {way: max(clocks, key=lambda one: abs(one[0]) - one[1]) for way, clocks in found.items()}


def _clock(report: Report, peer: Row, reports: dict[tuple[str, int], Report]) -> tuple[float, float] | None:
    """What a peer's clock shows more than that of the rank, and how wrong that may be. Heartbeats compare their
    monotonic clocks, and each rank's report says what time of day that is."""
    other = reports.get((peer["site"], -1 if peer.get("rank") is None else peer["rank"]))
    if other is None or peer.get("clock_offset_us") is None:
        return None
    days = [one.time - one.now_ns / 1e9 for one in (report, other)]
    return peer["clock_offset_us"] / 1e6 + days[1] - days[0], (peer["clock_error_us"] or 0) / 1e6


def _busy_share(pair: PairOfRanks) -> float | None:
    rate_us = pair.rate("busy_us")
    return None if rate_us is None else min(1.0, rate_us / 1e6 / max(1, pair.now["streams"]))


def _planned(report: Report) -> dict[Direction, float]:
    """Bytes per second by (from, to), of the link tables that say more than an assumption. A site says it of what it
    sends itself."""
    found: dict[Direction, float] = {}
    groups: list[Row] = report.stats["groups"]
    for group in groups:
        policy: Row | None = group["policy"]
        links: Row | None = None if policy is None else policy["links"]
        if links is None or links["source"] == "assumed":
            continue
        for source, rates in zip(links["sites"], links["rate_bps"], strict=False):
            if source == report.site:
                found |= {(source, target): bps / 8 for target, bps in zip(links["sites"], rates, strict=False) if bps}
    return found
