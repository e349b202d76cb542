"""The links between sites at one moment: all pairs of their ranks together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from geocomm.observe.telemetry.last_reports import LastReports
from geocomm.observe.telemetry.report import Report, Row, known, share, total, words
from geocomm.observe.telemetry.run_store import Received


@dataclass(frozen=True)
class LinkState:
    """What one site sends another: all pairs of their ranks together. Counters are since their processes started."""

    source: str
    target: str
    bytes_per_second: float | None
    """By the sender; by the receiver where the sender is not heard. Without TCP and IP headers."""
    bytes_sent: int
    busy_share: float | None
    """The share of the time in which TCP had data in flight. The busiest pair of ranks, its streams' mean."""
    stalled_by_receiver_share: float | None
    """The share of the busy time in which the receive windows held data back."""
    stalled_by_send_buffer_share: float | None
    """The share of the busy time in which the send buffers here held data back."""
    retransmitted_share: float | None
    """The share of repeats among the bytes that TCP sent of late."""
    tcp_bytes_sent: int
    """Repeats included."""
    retransmitted_bytes: int
    rtt_seconds: float | None
    """The longest of the last heartbeats, either way."""
    least_rtt_seconds: float | None
    outages: int
    """Times that all connections of a pair were lost and are there again, as this end saw it."""
    most_outages: int
    """The outages of the pair of ranks that had most."""
    outage_seconds: float
    is_down: bool
    """A pair that was connected has no connection now, as this end sees it."""
    resumes: int
    """Connections made again."""
    streams: int
    """Connected now."""
    planned_bytes_per_second: float | None
    """What the link table of the groups says; None where it was not measured or written."""
    congestion_control: str
    cipher: str
    """The cipher of TLS; empty: plaintext."""
    transport: str
    clock_offset_seconds: float | None
    """The target's time of day less the source's, at the pair of ranks whose clocks are furthest apart."""
    clock_error_seconds: float | None
    """How wrong that may be."""


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
    for way, (there, back) in links.items():
        yield _link(way, there, back, planned.get(way), clocks.get(way), is_down=way in down)


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


def _link(
    way: Direction,
    there: list[PairOfRanks],
    back: list[PairOfRanks],
    planned: float | None,
    clock: tuple[float, float] | None,
    *,
    is_down: bool,
) -> LinkState:
    """there: as the ranks of `source` see it; back: as those of `target` do."""
    rated = [pair for pair in there if pair.seconds]
    busy_us = sum(pair.grown("busy_us") for pair in rated)
    rows = [pair.now for pair in there]
    return LinkState(
        source=way[0],
        target=way[1],
        bytes_per_second=bytes_per_second(there, back),
        bytes_sent=sum(row["bytes_sent"] for row in rows) if rows else sum(p.now["bytes_received"] for p in back),
        busy_share=max(known(_busy_share(pair) for pair in there), default=None),
        stalled_by_receiver_share=share(sum(pair.grown("stalled_by_receiver_us") for pair in rated), busy_us),
        stalled_by_send_buffer_share=share(sum(pair.grown("stalled_by_send_buffer_us") for pair in rated), busy_us),
        retransmitted_share=share(
            sum(pair.grown("retransmitted_bytes") for pair in rated),
            sum(pair.grown("tcp_bytes_sent") for pair in rated),
        ),
        rtt_seconds=rtt_seconds(there + back),
        least_rtt_seconds=min((p.now["min_rtt_us"] / 1e6 for p in there + back if p.now["min_rtt_us"]), default=None),
        tcp_bytes_sent=sum(row["tcp_bytes_sent"] for row in rows),
        retransmitted_bytes=sum(row["retransmitted_bytes"] for row in rows),
        outages=sum(row["outages"] for row in rows),
        most_outages=max((row["outages"] for row in rows), default=0),
        outage_seconds=sum(row["outage_us"] for row in rows) / 1e6,
        is_down=is_down,
        resumes=sum(row["resumes"] for row in rows),
        streams=sum(row["streams"] for row in rows),
        planned_bytes_per_second=planned,
        congestion_control=words(row["congestion_control"] for row in rows),
        cipher=words(row["cipher"] for row in rows),
        transport=words(row["transport"] for row in rows),
        clock_offset_seconds=clock and clock[0],
        clock_error_seconds=clock and clock[1],
    )


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
