"""The picture of a run at one moment: sums per site and per pair of sites, open rounds, last events.

The terminal view, the page and the metrics of all sites are drawn from it. Rates come from two reports of the same
process. None means that a value is not known.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from geocomm.telemetry.report import Report, Row
from geocomm.telemetry.run_store import Rank, Received, RunStore

SILENT_SECONDS = 15.0
"""A rank whose last report is older has no rates: it may be dead, or stopped, or its line is down."""
_WINDOWS_S = (10.0, 5.0, 2.0)
_STEP_WINDOWS_S = (60.0, 30.0, 15.0, *_WINDOWS_S, 600.0)
"""Rates are over the first of these whose begin the process has seen; of steps: and in which one ended."""
_ROUND_WINDOW_S = 60.0
_OPEN_ROUND_WINDOW_S = 5.0
"""A round under way is in every report, so that one which is in none of these is not open any more."""
_EVENT_WINDOW_S = 86400.0
RECENT_EVENT_SECONDS = 600.0
_MOST_EVENTS = 50
_SAME_EVENT_S = 10.0


class Life(enum.StrEnum):
    """What is known of a rank."""

    REPORTING = "reporting"
    SILENT = "silent"
    """Its last report is older than SILENT_SECONDS."""
    ENDED = "ended"
    """It has said that it says no more."""


@dataclass(frozen=True)
class RankState:
    """One rank."""

    site: str
    rank: int
    """In the run; in an elastic run, of the site."""
    host: str
    life: Life
    report_age_seconds: float
    """Since its last report came."""
    step: int | None
    """The last training step that ended."""
    step_age_seconds: float | None
    """Since then."""
    step_seconds: float | None
    """Of its last steps, in the mean."""
    tokens_per_second: float | None
    exposed_share: float | None
    """Of its time: that it stood still for collectives between sites, or for results of local steps."""


@dataclass(frozen=True)
class SiteState:
    """A site: its ranks together. Rates are of those that report."""

    name: str
    ranks: tuple[RankState, ...]
    step: int | None
    """The last training step that all its reporting ranks have ended."""
    of_steps: int | None
    """How many steps the run shall have."""
    step_seconds: float | None
    """Of the last steps, in the median of its ranks."""
    mean_step_seconds: float | None
    """Of all steps of its processes, likewise. Not known before the second."""
    step_age_seconds: float | None
    """Since its last step ended, at the rank that is furthest behind."""
    tokens_per_second: float | None
    """Of all its ranks."""
    exposed_share: float | None
    """The mean of its ranks."""
    loss: float | None
    """The mean of what its ranks said last."""
    bytes_sent: int
    """To other sites, since its processes started."""
    ranks_not_finite: int
    """Ranks whose last loss is NaN or infinite."""
    rounds_not_finite: int
    """Rounds of local steps that left its weights out: NaN or infinite."""
    reports: int
    """That its processes have made."""
    reports_dropped: int
    """Of these, those that its collector did not take."""
    certificate_ends: float | None
    """Unix seconds; of the rank whose certificate expires first."""
    checkpoint_age_seconds: float | None
    """Since the last checkpoint that it wrote within a day."""
    checkpoint_interval_seconds: float | None
    """Between that and the one before."""
    recent_events: dict[str, int]
    """By kind, how many of the last ten minutes; what its ranks saw alike counts once."""

    @property
    def ranks_reporting(self) -> int:
        """How many of its ranks report."""
        return sum(rank.life is Life.REPORTING for rank in self.ranks)

    @property
    def life(self) -> Life:
        """Of its ranks together: silent if one is, or else ended if all have."""
        lives = {rank.life for rank in self.ranks}
        return next(life for life in (Life.SILENT, Life.REPORTING, Life.ENDED) if life in lives)

    @property
    def report_age_seconds(self) -> float:
        """Since the last report of the rank that was heard longest ago, among those that have not ended."""
        ages = [rank.report_age_seconds for rank in self.ranks if rank.life is not Life.ENDED]
        return max(ages) if ages else min(rank.report_age_seconds for rank in self.ranks)


@dataclass(frozen=True)
class LinkState:
    """What one site sends another: all pairs of their ranks together. Counters are since their processes started."""

    source: str
    target: str
    bytes_per_second: float | None
    """By the sender; by the receiver where the sender is not heard. Without TCP and IP headers."""
    bytes_sent: int
    busy_share: float | None
    """Of the time: that TCP had data which was not acknowledged. Of the busiest pair of ranks, its streams' mean."""
    stalled_by_receiver_share: float | None
    """Of the busy time: that the receive windows held data back."""
    stalled_by_send_buffer_share: float | None
    """Of the busy time: that the send buffers here held data back."""
    retransmitted_share: float | None
    """Of the bytes that TCP sent of late."""
    tcp_bytes_sent: int
    """Repeats included."""
    retransmitted_bytes: int
    rtt_seconds: float | None
    """The longest of the last heartbeats, either way."""
    least_rtt_seconds: float | None
    outages: int
    """Times that all connections of a pair were lost and are there again, as this end saw it."""
    most_outages: int
    """Of these, those of the pair of ranks that had most."""
    outage_seconds: float
    resumes: int
    """Connections made again."""
    streams: int
    """Connected now."""
    planned_bytes_per_second: float | None
    """What the link table of the groups says; None where it was not measured or written."""
    congestion_control: str
    cipher: str
    """Of TLS; empty: plaintext."""
    transport: str
    clock_offset_seconds: float | None
    """Of the pair of ranks whose clocks are furthest apart: the target's time of day less the source's."""
    clock_error_seconds: float | None
    """How wrong that may be."""


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
    """Of the site that is furthest behind."""
    age_seconds: float | None
    """Since it began, or was due, at the first site; of one that is over, since it ended."""
    sites: tuple[str, ...]
    """Sites that take part, as far as they have said so."""
    waits_for: tuple[str, ...]
    """Sites whose frame some other site has not got. Empty where the round does not wait for a frame."""
    counted: tuple[str, ...]
    """Sites that count, once that is decided."""


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


@dataclass(frozen=True)
class Overview:
    """A run at one moment."""

    at: float
    """Unix seconds of the collector's clock."""
    sites: tuple[SiteState, ...]
    """By name."""
    links: tuple[LinkState, ...]
    """Both ways of each pair of sites of which an end is known; by source and target."""
    rounds: tuple[RoundState, ...]
    """Those under way, oldest first; then the last of each fragment that is over."""
    events: tuple[EventState, ...]
    """Of the last day, newest first, at most 50."""

    @property
    def step(self) -> int | None:
        """The last step of the site that is furthest."""
        return max((site.step for site in self.sites if site.step is not None), default=None)

    @property
    def of_steps(self) -> int | None:
        """How many steps the run shall have."""
        return max((site.of_steps for site in self.sites if site.of_steps is not None), default=None)

    @property
    def tokens_per_second(self) -> float | None:
        """Of all sites."""
        return _sum(site.tokens_per_second for site in self.sites)

    @property
    def loss(self) -> float | None:
        """The mean of the sites."""
        return _mean(site.loss for site in self.sites if site.life is not Life.SILENT)

    @property
    def seconds_left(self) -> float | None:
        """Until the last step, at the pace of the slowest site that reports."""
        step, of_steps = self.step, self.of_steps
        pace = max((site.step_seconds for site in self.sites if site.step_seconds is not None), default=None)
        return None if step is None or of_steps is None or pace is None else max(0, of_steps - step) * pace


def moment(store: RunStore, now: float) -> float:
    """The moment to look at: `now`, or the last report of a run that says no more, to see what was so then."""
    span = store.span()
    return now if span is None or now - span[1] <= SILENT_SECONDS else span[1]


def overview(store: RunStore, at: float, since: float = 0.0) -> Overview:
    """The picture at `at`, in Unix seconds: now, or any moment that the store still has. since: without ranks that
    have not reported since then."""
    seen = _Seen(store, at, since)
    rows = [row for row in store.events(since=at - _EVENT_WINDOW_S) if row["at"] <= at]
    return Overview(
        at, tuple(_sites(seen, rows)), tuple(_links(seen)), tuple(_rounds(store, seen)), tuple(_events(rows))
    )


class _Seen:
    """The last report of each rank, and earlier ones of the same process."""

    def __init__(self, store: RunStore, at: float, since: float) -> None:
        self._store = store
        self.at = at
        self.last = [received for received in store.latest(until=at) if received.at >= since]
        self._earlier: dict[float, dict[Rank, Received]] = {}

    def before(self, received: Received) -> Received | None:
        """Of some seconds ago."""
        return next((one for one in self._before(received, _WINDOWS_S) if one.at < received.at), None)

    def before_steps(self, received: Received) -> Received | None:
        """One since which a step has ended."""
        found = self._before(received, _STEP_WINDOWS_S)
        return next((one for one in found if _steps(one) not in (0, _steps(received))), None)

    def _before(self, received: Received, windows_s: Iterable[float]) -> Iterator[Received]:
        for window_s in windows_s:
            if window_s not in self._earlier:
                self._earlier[window_s] = {one.rank: one for one in self._store.latest(until=self.at - window_s)}
            if (found := self._earlier[window_s].get(received.rank)) is not None:
                yield found

    def life(self, received: Received) -> Life:
        if received.report.final:
            return Life.ENDED
        return Life.REPORTING if self.has_rates(received) else Life.SILENT

    def has_rates(self, received: Received) -> bool:
        return self.at - received.at <= SILENT_SECONDS


def _steps(received: Received) -> int:
    return received.report.training.get("totals", {}).get("steps", 0)


def _sites(seen: _Seen, events: list[Row]) -> Iterator[SiteState]:
    for name in sorted({received.report.site for received in seen.last}):
        own = [received for received in seen.last if received.report.site == name]
        ranks = tuple(_rank(seen, received) for received in own)
        heard = [rank for rank in ranks if rank.life is Life.REPORTING] or list(ranks)
        training = [received.report.training for received in own]
        losses = [one["loss"] for one in training if isinstance(one.get("loss"), float)]
        stats = [received.report.stats for received in own]
        checkpoints = _moments(row for row in events if row["site"] == name and row["kind"] == "checkpoint")
        yield SiteState(
            name=name,
            ranks=ranks,
            step=min((rank.step for rank in heard if rank.step is not None), default=None),
            of_steps=max((one["of_steps"] for one in training if one.get("of_steps") is not None), default=None),
            step_seconds=_median(rank.step_seconds for rank in heard),
            mean_step_seconds=_median(_mean_step_s(one.get("totals", {})) for one in training),
            step_age_seconds=max(
                (rank.step_age_seconds for rank in heard if rank.step_age_seconds is not None), default=None
            ),
            tokens_per_second=_sum(rank.tokens_per_second for rank in heard),
            exposed_share=_mean(rank.exposed_share for rank in heard),
            loss=_mean(one.get("loss") for one in training),
            bytes_sent=sum(peer["bytes_sent"] for received in own for peer in _peers(received) if peer["site"] != name),
            ranks_not_finite=sum(not math.isfinite(loss) for loss in losses),
            rounds_not_finite=sum(
                run.get("rounds_not_finite", 0) for one in stats for run in one.get("local_steps", ())
            ),
            reports=sum(received.report.sequence for received in own),
            reports_dropped=sum(one.get("reports_dropped", 0) for one in stats),
            certificate_ends=min(_known(received.report.certificate_ends for received in own), default=None),
            checkpoint_age_seconds=seen.at - checkpoints[-1] if checkpoints else None,
            checkpoint_interval_seconds=checkpoints[-1] - checkpoints[-2] if len(checkpoints) > 1 else None,
            recent_events=dict(
                collections.Counter(
                    event.kind
                    for event in _events([row for row in events if row["site"] == name])
                    if seen.at - event.at <= RECENT_EVENT_SECONDS
                )
            ),
        )


def _mean_step_s(totals: Row) -> float | None:
    if totals.get("steps", 0) < 2 or "seconds" not in totals:
        return None
    return totals["seconds"] / (totals["steps"] - 1)  # what the first one took is not known where the program is silent


def _moments(rows: Iterable[Row]) -> list[float]:
    """When they were reported; those of several ranks at once are one."""
    found: list[float] = []
    for row in rows:
        if not found or row["at"] - found[-1] >= _SAME_EVENT_S:
            found.append(row["at"])
    return found


def _rank(seen: _Seen, received: Received) -> RankState:
    report = received.report
    age = max(0.0, seen.at - received.at)
    ended_ns: int | None = report.training.get("ended_ns")
    step_seconds = tokens_per_second = exposed_share = None
    if seen.has_rates(received) and (before := seen.before_steps(received)) is not None:
        step_seconds, tokens_per_second = _pace(before.report, report)
    if seen.has_rates(received) and (before := seen.before(received)) is not None:
        stood_s = _stood_still_s(report.stats) - _stood_still_s(before.report.stats)
        exposed_share = _share(stood_s, (report.now_ns - before.report.now_ns) / 1e9)
    return RankState(
        site=report.site,
        rank=report.rank,
        host=report.host,
        life=seen.life(received),
        report_age_seconds=age,
        step=report.training.get("step"),
        step_age_seconds=None if ended_ns is None else (report.now_ns - ended_ns) / 1e9 + age,
        step_seconds=step_seconds,
        tokens_per_second=tokens_per_second,
        exposed_share=exposed_share,
    )


def _pace(before: Report, report: Report) -> tuple[float, float | None]:
    """Seconds of a step, and tokens per second."""
    was: Row = before.training["totals"]
    now: Row = report.training["totals"]
    ended_ns: int = report.training["ended_ns"]
    seconds = (ended_ns - before.training["ended_ns"]) / 1e9
    step_seconds = seconds / (now["steps"] - was["steps"])
    if "tokens" not in now:
        return step_seconds, None
    # A step that takes longer than the ones before counts with what it has taken so far.
    late_s = max(0.0, (report.now_ns - ended_ns) / 1e9 - step_seconds)
    return step_seconds, (now["tokens"] - was.get("tokens", 0)) / (seconds + late_s)


def _stood_still_s(stats: Row) -> float:
    return stats.get("exposed_seconds", 0.0) + sum(run.get("waited_seconds", 0.0) for run in stats["local_steps"])


def _peers(received: Received) -> list[Row]:
    """The links of a rank to peers whose site is known."""
    return [peer for peer in received.report.stats.get("peers", []) if peer.get("site")]


@dataclass
class _Pair:
    """Two ranks of two sites, as one of them sees their link: its last row, the one before, and the time between."""

    now: Row
    before: Row
    seconds: float | None
    """None: no rates."""

    def grown(self, name: str) -> float:
        """By how much a counter grew; one of a link that is new, or was made anew, began at 0."""
        before = self.before.get(name, 0)
        return self.now[name] - (before if before <= self.now[name] else 0)


def _links(seen: _Seen) -> Iterator[LinkState]:
    pairs: dict[tuple[str, str], list[_Pair]] = {}
    clocks: dict[tuple[str, str], list[tuple[float, float]]] = {}
    reports = {(received.report.site, received.report.rank): received.report for received in seen.last}
    planned: dict[tuple[str, str], float] = {}
    for received in seen.last:
        before = seen.before(received) if seen.has_rates(received) else None
        rows = {} if before is None else {peer["peer"]: peer for peer in _peers(before)}
        seconds = None if before is None else (received.report.now_ns - before.report.now_ns) / 1e9
        for peer in _peers(received):
            if peer["site"] != received.report.site:
                pair = _Pair(peer, rows.get(peer["peer"], {}), seconds)
                pairs.setdefault((received.report.site, peer["site"]), []).append(pair)
                if (clock := _clock(received.report, peer, reports)) is not None:
                    clocks.setdefault((received.report.site, peer["site"]), []).append(clock)
        planned |= _planned(received.report.stats)
    for source, target in sorted(pairs.keys() | {(b, a) for a, b in pairs}):
        yield _link(
            source,
            target,
            pairs.get((source, target), []),
            pairs.get((target, source), []),
            planned.get((source, target)),
            max(clocks.get((source, target), []), key=lambda one: abs(one[0]) - one[1], default=(None, None)),
        )


def _clock(report: Report, peer: Row, reports: dict[tuple[str, int], Report]) -> tuple[float, float] | None:
    """What a peer's clock shows more than that of the rank, and how wrong that may be. Heartbeats compare their
    monotonic clocks, and each rank's report says what time of day that is."""
    other = reports.get((peer["site"], -1 if peer.get("rank") is None else peer["rank"]))
    if other is None or peer.get("clock_offset_us") is None:
        return None
    days = [one.time - one.now_ns / 1e9 for one in (report, other)]
    return peer["clock_offset_us"] / 1e6 + days[1] - days[0], (peer["clock_error_us"] or 0) / 1e6


def _link(
    source: str,
    target: str,
    there: list[_Pair],
    back: list[_Pair],
    planned: float | None,
    clock: tuple[float, float] | tuple[None, None],
) -> LinkState:
    """there: as the ranks of `source` see it; back: as those of `target` do."""
    rated = [pair for pair in there if pair.seconds]
    heard = [pair for pair in back if pair.seconds]
    if rated:
        rate = sum(pair.grown("bytes_sent") / pair.seconds for pair in rated if pair.seconds)
    else:
        rate = _sum(pair.grown("bytes_received") / pair.seconds for pair in heard if pair.seconds)
    busy_us = sum(pair.grown("busy_us") for pair in rated)
    rows, seen_rows = [pair.now for pair in there], [pair.now for pair in there + back]
    return LinkState(
        source=source,
        target=target,
        bytes_per_second=rate,
        bytes_sent=sum(row["bytes_sent"] for row in rows) if rows else sum(p.now["bytes_received"] for p in back),
        busy_share=max(
            (
                min(1.0, pair.grown("busy_us") / 1e6 / pair.seconds / max(1, pair.now["streams"]))
                for pair in rated
                if pair.seconds
            ),
            default=None,
        ),
        stalled_by_receiver_share=_share(sum(pair.grown("stalled_by_receiver_us") for pair in rated), busy_us),
        stalled_by_send_buffer_share=_share(sum(pair.grown("stalled_by_send_buffer_us") for pair in rated), busy_us),
        retransmitted_share=_share(
            sum(pair.grown("retransmitted_bytes") for pair in rated),
            sum(pair.grown("tcp_bytes_sent") for pair in rated),
        ),
        rtt_seconds=max((row["rtt_us"] / 1e6 for row in seen_rows if row["rtt_us"]), default=None),
        least_rtt_seconds=min((row["min_rtt_us"] / 1e6 for row in seen_rows if row["min_rtt_us"]), default=None),
        tcp_bytes_sent=sum(row["tcp_bytes_sent"] for row in rows),
        retransmitted_bytes=sum(row["retransmitted_bytes"] for row in rows),
        outages=sum(row["outages"] for row in rows),
        most_outages=max((row["outages"] for row in rows), default=0),
        outage_seconds=sum(row["outage_us"] for row in rows) / 1e6,
        resumes=sum(row["resumes"] for row in rows),
        streams=sum(row["streams"] for row in rows),
        planned_bytes_per_second=planned,
        congestion_control=_words(row["congestion_control"] for row in rows),
        cipher=_words(row["cipher"] for row in rows),
        transport=_words(row["transport"] for row in rows),
        clock_offset_seconds=clock[0],
        clock_error_seconds=clock[1],
    )


def _planned(stats: Row) -> dict[tuple[str, str], float]:
    """Bytes per second by (from, to), of the link tables that say more than an assumption."""
    found: dict[tuple[str, str], float] = {}
    groups: list[Row] = stats.get("groups", [])
    for group in groups:
        links: Row = group.get("policy", {}).get("links") or {}
        if links.get("source", "assumed") == "assumed":
            continue
        for source, rates in zip(links["sites"], links["rate_bps"], strict=True):
            found |= {(source, target): bps / 8 for target, bps in zip(links["sites"], rates, strict=True) if bps}
    return found


def _rounds(store: RunStore, seen: _Seen) -> Iterator[RoundState]:
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


def _events(rows: list[Row]) -> Iterator[EventState]:
    """What several ranks of a site say alike, as ranks do of a policy, is one event."""
    found: list[EventState] = []
    for row in reversed(rows):
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


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _sum(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.fmean(known) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.median(known) if known else None


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None


def _words(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values if value}))
