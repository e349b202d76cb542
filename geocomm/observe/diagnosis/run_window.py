"""The last steps of a run, as its run store has them: steps, operations and links of all ranks, on one clock."""

from __future__ import annotations

import itertools
import math
import statistics
import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from geocomm.core.units import DAY_S
from geocomm.observe.diagnosis.link_use import LinkUse, Place, around, cpu_lost, link_uses, peers
from geocomm.observe.diagnosis.rank_clocks import rank_clocks
from geocomm.observe.diagnosis.round_waits import RoundPace, RoundWait, round_pace, round_waits
from geocomm.observe.diagnosis.step_times import Change, WarmUp, find_change, steps_since, warm_up
from geocomm.observe.telemetry.last_reports import SILENT_SECONDS
from geocomm.observe.telemetry.overview_sites import egress_dollars
from geocomm.observe.telemetry.run_store import Rank, Received, RunStore

_LOOK_BACK_S = (120.0, 600.0, 3600.0)
"""The store has operations of an hour."""
_EARLIER_S, _EARLIER_EVERY_S = 3600.0, 120.0
"""So far back, and at these intervals, is looked for what links carried before."""
_IN_A_ROW = 10
"""So many of the newest steps are enough. Where reports were lost, the longest row of steps says more than fewer."""
_LATE_REPORT_S = 1.6
"""Reports come once a second."""
_LAST_REPORTS = 10
"""In which a run of local steps tells of itself: the very last one may be from after its end."""
_LEAST_STEP_S = 1e-6
"""What took less was no step."""
_OF_A_SILENT_LINE = ("outage_us", "bytes_received", "busy_us", "stalled_by_receiver_us")
_SILENT_SHARE = 0.8
"""The share of the time between two reports: a line that carries anything acknowledges some of it meanwhile."""

Key = tuple[Any, ...]
"""The key of an operation: the same at all ranks."""


@dataclass(frozen=True)
class Step:
    """A step of one rank. Seconds."""

    number: int
    began: float
    ended: float
    input: float | None = None
    exposed: float | None = None
    checkpoint: float | None = None
    tokens: int | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


@dataclass(frozen=True)
class Operation:
    """A collective at one rank; seconds of the window's clock, as `geocomm.op_log` has them."""

    key: Key
    kind: str
    codec: str
    issued: float
    began: float
    encoded: float
    exchanged: float
    ended: float
    wait_began: float | None
    wait_ended: float | None
    coding: float
    raw_bytes: int
    """The bytes of the tensor."""
    raw_bytes_received: int
    """Before coding."""
    bytes_received: int
    arrivals: Mapping[Place, float]
    """When the last byte of each peer came."""
    of_regions: frozenset[Place] = frozenset()
    """The peers that send sums of their regions, for which they wait."""

    def moved(self, by: float) -> Operation:
        """The operation, later by this time."""
        return replace(
            self,
            issued=self.issued + by,
            began=self.began + by,
            encoded=self.encoded + by,
            exchanged=self.exchanged + by,
            ended=self.ended + by,
            wait_began=None if self.wait_began is None else self.wait_began + by,
            wait_ended=None if self.wait_ended is None else self.wait_ended + by,
            arrivals={place: at + by for place, at in self.arrivals.items()},
        )


@dataclass(frozen=True)
class Outage:
    """All connections between two sites were lost, until they were there again. Seconds of the window's clock."""

    between: str
    """The two sites, as "a - b"."""
    began: float
    ended: float


@dataclass(frozen=True)
class RankWindow:
    """What one rank said."""

    place: Place
    steps: Sequence[Step]
    operations: Sequence[Operation]
    clock_error: float | None = 0.0
    """How many seconds its times may be wrong on the window's clock; None: they are by its machine's time of day."""
    relayed: float = 0.0
    """Share of the bytes it sent to other sites that it passed on for others."""
    stops: Sequence[tuple[float, float]] = ()
    """Times in which the process has not reported: it was stopped, or had no turn."""
    stolen: float = 0.0
    """Share of its machine's CPU time that the host of a virtual machine gave to others."""
    throttled: float = 0.0
    """Share of the periods of its cgroup's CPU limit in which that was used up."""


@dataclass(frozen=True)
class RunWindow:
    """The last steps of a run."""

    ranks: Sequence[RankWindow]
    links: Sequence[LinkUse] = ()
    of_ranks: int = 0
    """How many there are, as far as known: those that report, and those that they speak with."""
    lost: int = 0
    """Reports that never came, and operations that were not kept."""
    steps_known: bool = True
    """Whether the program tells of its steps; else the operations' time is taken as one step."""
    outages: Sequence[Outage] = ()
    """That are over."""
    last_heard: float = 0.0
    """Unix seconds of the collector's clock."""
    over: bool = False
    """All ranks have ended."""
    waited_by_site: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds a step for which local steps stood still for rounds; empty: it is no run of local steps."""
    tokens_by_site: Mapping[str, float] = field(default_factory=dict[str, float])
    """That each site counted in a step of them."""
    rounds: Sequence[RoundWait] = ()
    """The rounds of local steps, in the time that was read for the steps."""
    pace: RoundPace | None = None
    """The pace of these rounds; None: it is no run of local steps, or none has ended."""
    elastic: bool = False
    egress_dollars_per_day: float | None = None
    """What all that report send to other sites costs, at their prices; None: no site has told its price."""
    warm_up: WarmUp | None = None
    """What came before the steps, and is none of them; None: the program's first steps are not looked at."""
    change: Change | None = None
    """Why there are no older steps; None: they are as many as was asked for, or as there are."""

    @property
    def step_count(self) -> int:
        """Steps that all ranks of it have."""
        return max((len(rank.steps) for rank in self.ranks), default=0)

    @property
    def step_seconds(self) -> float:
        """The mean."""
        steps = [step.seconds for rank in self.ranks for step in rank.steps]
        return statistics.fmean(steps) if steps else 0.0

    def seconds_by_step(self) -> dict[int, float]:
        """Seconds of each step, the mean of the ranks, by its number."""
        found: dict[int, list[float]] = defaultdict(list)
        for rank in self.ranks:
            for step in rank.steps:
                found[step.number].append(step.seconds)
        return {number: statistics.fmean(seconds) for number, seconds in found.items()}


def read_window(store: RunStore, last: int) -> RunWindow:
    """The last `last` steps in the store that are of one kind: not the warm-up of the program, nor those before a
    change. Without steps, what its operations of the last minutes say.

    Raises NoStoreError or sqlite3.Error."""
    latest = store.latest()
    if not latest:
        return RunWindow([])
    heard = max(received.at for received in latest)
    living = {received.rank: received for received in latest if heard - received.at < SILENT_SECONDS}
    steps: dict[Rank, list[dict[str, Any]]] = {}
    since = 0.0
    for back in _LOOK_BACK_S:
        since = max(0.0, heard - back)
        steps = defaultdict(list)
        for _, rank, row in store.told("steps", since):  # those of local steps may have a number twice
            if rank in living and row.get("seconds", 0.0) >= _LEAST_STEP_S:
                steps[rank].append(row)
        if steps and min(len(rows) for rows in steps.values()) > last:
            break
    operations: dict[Rank, list[dict[str, Any]]] = defaultdict(list)
    for rank, row in store.rows("operations", since):
        if rank in living and row["ended_ns"] is not None and not row["failed"]:
            operations[rank].append(row)
    reports: dict[Rank, list[Received]] = defaultdict(list)
    for received in store.reports(since):
        if received.rank in living:
            reports[received.rank].append(received)
    rounds = [(rank.site, row) for rank, row in store.rows("rounds", since) if rank in living]
    told = [one.report.stats.get("local_steps", ()) for some in reports.values() for one in some[-_LAST_REPORTS:]]
    every = max((run["every"] for runs in told for run in runs), default=0)
    waited = _grown_by_step("waited_seconds", living, reports)
    if waited:
        operations.clear()  # those of rounds, for which no step waits
    earlier: dict[Rank, list[Received]] = defaultdict(list)
    for received in store.sampled(since - _EARLIER_S, since, _EARLIER_EVERY_S):
        earlier[received.rank].append(received)
    window = _window(living, steps, operations, reports, earlier, last, local=bool(waited))
    return replace(
        window,
        waited_by_site=waited,
        tokens_by_site=_grown_by_step("tokens", living, reports),
        rounds=round_waits(rounds),
        pace=round_pace(rounds, every),
        elastic=any(row["elastic"] for _, row in rounds),
    )


def _window(
    living: Mapping[Rank, Received],
    steps: Mapping[Rank, list[dict[str, Any]]],
    operations: Mapping[Rank, list[dict[str, Any]]],
    reports: Mapping[Rank, list[Received]],
    earlier: Mapping[Rank, list[Received]],
    last: int,
    *,
    local: bool,
) -> RunWindow:
    chosen = _choose(living, steps, last, local=local)
    steps, common = chosen.steps, chosen.numbers
    everyone = sorted(living.values(), key=lambda received: (received.report.site, received.report.rank))
    clocks = rank_clocks(itertools.chain(*reports.values()), everyone, _span(everyone[0], steps, common))
    ranks: list[RankWindow] = []
    links: list[LinkUse] = []
    outages: list[Outage] = []
    silences: list[tuple[Place, Outage]] = []
    lost = 0
    for rank, received in living.items():
        place = (rank.site, rank.rank)
        clock = clocks[rank]
        offset, error = clock.offset_ns / 1e9, clock.error_ns / 1e9 if clock.measured else None
        own = [row for row in steps.get(rank, ()) if row["step"] in common]
        rows = sorted(operations.get(rank, ()), key=lambda row: row["issued_ns"])
        once = "ended_ns" if local else "step"  # after a checkpoint was loaded, numbers come again
        told = sorted({row[once]: _step(row, offset) for row in own}.values(), key=lambda step: step.ended)
        if told:
            begin_ns = min(row["ended_ns"] - 1e9 * row["seconds"] for row in own)
            rows = [row for row in rows if row["issued_ns"] >= begin_ns and row["issued_ns"] < own[-1]["ended_ns"]]
        elif not steps and rows:
            began, ended = rows[0]["issued_ns"] / 1e9, max(row["ended_ns"] for row in rows) / 1e9
            told = [Step(0, began - offset, ended - offset)]
        if not told and not rows:
            continue
        began, ended = (told[0].began + offset, told[-1].ended + offset) if told else (0.0, math.inf)
        before = [one for one in reports[rank] if chosen.change is not None and one.report.now_ns < 1e9 * began]
        uses, relayed = link_uses(place, reports[rank], [*earlier[rank], *before], 1e9 * began, 1e9 * ended)
        links += uses
        ranks.append(
            RankWindow(
                place,
                told,
                [_operation(row, offset) for row in rows],
                error,
                relayed,
                _stops(reports[rank], offset),
                *cpu_lost(around(reports[rank], 1e9 * began, 1e9 * ended)),
            )
        )
        counted, silent = _outages(place[0], reports[rank], offset)
        outages += [outage for outage in counted if outage.ended > began - offset]
        silences += [(there, outage) for there, outage in silent if outage.ended > began - offset]
        numbers = [row["number"] for row in rows]
        lost += max(numbers) - min(numbers) + 1 - len(set(numbers)) if numbers else 0
        lost += received.lost
    stopped = {rank.place: rank.stops for rank in ranks}
    outages += [outage for there, outage in silences if not _in_a_stop(outage, stopped.get(there, ()))]
    return RunWindow(
        ranks,
        links,
        of_ranks=_count_of_ranks(living),
        lost=lost,
        steps_known=bool(steps),
        outages=outages,
        last_heard=max(received.at for received in living.values()),
        over=all(received.report.final for received in living.values()),
        egress_dollars_per_day=_egress(living, ranks, links),
        warm_up=chosen.warm_up,
        change=chosen.change,
    )


@dataclass(frozen=True)
class _Chosen:
    """The steps that are looked at."""

    steps: Mapping[Rank, list[dict[str, Any]]]
    """Of each rank, also older ones."""
    numbers: set[int]
    warm_up: WarmUp | None
    change: Change | None = None


def _choose(
    living: Mapping[Rank, Received], steps: Mapping[Rank, list[dict[str, Any]]], last: int, *, local: bool
) -> _Chosen:
    """The last steps that are of one kind."""
    warm: list[WarmUp] = []
    calm: dict[Rank, list[dict[str, Any]]] = {}
    for rank, rows in steps.items():
        took = [row["seconds"] for row in rows]
        made = living[rank].report.training.get("totals", {}).get("steps")
        count = 0 if made is None else warm_up(took, max(0, made - len(rows)))
        calm[rank] = rows[count:]
        if count and len(calm[rank]) < last:
            warm.append(WarmUp(count, sum(took[:count])))
    longest = max(warm, key=lambda one: one.seconds, default=None)
    if local:  # each site has steps of its own
        calm = {rank: rows[-last:] for rank, rows in calm.items()}
        return _Chosen(calm, {row["step"] for rows in calm.values() for row in rows}, longest)
    numbers = sorted(_common_steps(calm, last))
    by_number: dict[int, list[float]] = {number: [] for number in numbers}
    for row in itertools.chain(*calm.values()):
        if row["step"] in by_number:
            by_number[row["step"]].append(row["seconds"])
    mean = [statistics.fmean(by_number[number]) for number in numbers]
    place = find_change(mean)
    if place is None:
        return _Chosen(calm, set(numbers), longest)
    change = Change(numbers[place], statistics.median(mean[:place]), statistics.median(mean[place:]))
    return _Chosen(calm, set(numbers[-steps_since(mean, place) :]), None, change)


def _egress(living: Mapping[Rank, Received], ranks: Sequence[RankWindow], links: Sequence[LinkUse]) -> float | None:
    """Dollars a day, as these steps were."""
    prices = {(rank.site, rank.rank): received.report.egress_dollars_per_gb for rank, received in living.items()}
    spans = {rank.place: rank.steps[-1].ended - rank.steps[0].began for rank in ranks if rank.steps}
    rates = [
        egress_dollars(price, link.bytes_sent / spans[link.source])
        for link in links
        if (price := prices.get(link.source)) is not None and link.target[0] != link.source[0]
        if spans.get(link.source)
    ]
    return DAY_S * sum(rates) if rates else None


def _span(received: Received, steps: Mapping[Rank, list[dict[str, Any]]], common: set[int]) -> tuple[float, float]:
    """From when to when a rank was at these steps, by the collector's clock."""
    ended = [row["ended_ns"] for row in steps.get(received.rank, ()) if row["step"] in common]
    now_ns = received.report.now_ns
    first, last = (min(ended), max(ended)) if ended else (now_ns, now_ns)
    return received.at - (now_ns - first) / 1e9, received.at - (now_ns - last) / 1e9


def _common_steps(steps: Mapping[Rank, list[dict[str, Any]]], last: int) -> set[int]:
    """The last steps that all ranks have reported, in a row."""
    if not steps:
        return set()
    told: list[set[int]] = [{row["step"] for row in rows} for rows in steps.values()]
    common = sorted(told[0].intersection(*told[1:]))[-last:]
    if len(common) < 3:
        return set(common)
    apart = statistics.mode(later - one for one, later in itertools.pairwise(common))
    rows: list[list[int]] = [[common[0]]]  # a replay needs steps in a row
    for one, later in itertools.pairwise(common):
        if later - one == apart:
            rows[-1].append(later)
        else:
            rows.append([later])
    return set(rows[-1] if len(rows[-1]) >= _IN_A_ROW else max(rows, key=len))


def _step(row: Mapping[str, Any], offset: float) -> Step:
    ended = row["ended_ns"] / 1e9 - offset
    return Step(
        row["step"],
        ended - row["seconds"],
        ended,
        row.get("input_seconds"),
        row.get("exposed_seconds"),
        row.get("checkpoint_seconds"),
        row.get("tokens"),
    )


def _operation(row: Mapping[str, Any], offset: float) -> Operation:
    def at(name: str) -> float | None:
        return None if row[name] is None else row[name] / 1e9 - offset

    issued, ended = row["issued_ns"] / 1e9 - offset, row["ended_ns"] / 1e9 - offset
    began = at("began_ns") or issued
    peers = [peer for peer in row["peers"] if peer["last_in_ns"] is not None and peer["rank"] is not None]
    numbers = tuple(sorted(str(peer["peer"]) for peer in row["peers"])) if row["kind"] == "send_recv" else ()
    return Operation(
        key=(row["group"], row["kind"], row["sequence"], *numbers),
        kind=row["kind"],
        codec=row["codec"],
        issued=issued,
        began=began,
        encoded=at("encoded_ns") or began,
        exchanged=at("exchanged_ns") or ended,
        ended=ended,
        wait_began=at("wait_began_ns"),
        wait_ended=at("wait_ended_ns"),
        coding=row["coding_ns"] / 1e9,
        raw_bytes=row["elements"] * _element_bytes(row["dtype"]),
        raw_bytes_received=row["raw_bytes_received"],
        bytes_received=row["wire_bytes_received"],
        arrivals={(str(peer["site"]), int(peer["rank"])): peer["last_in_ns"] / 1e9 - offset for peer in peers},
        of_regions=frozenset((str(peer["site"]), int(peer["rank"])) for peer in peers if peer["sums"]),
    )


def _stops(reports: Sequence[Received], offset: float) -> list[tuple[float, float]]:
    """Times between two reports that followed each other too late."""
    found: list[tuple[float, float]] = []
    for before, after in itertools.pairwise(reports):
        one, next_one = before.report, after.report
        began, ended = one.now_ns / 1e9 - offset, next_one.now_ns / 1e9 - offset
        if next_one.sequence == one.sequence + 1 and ended - began > _LATE_REPORT_S:
            found.append((began, ended))
    return found


def _outages(site: str, reports: Sequence[Received], offset: float) -> tuple[list[Outage], list[tuple[Place, Outage]]]:
    """Times in which a rank's links may have been away, by its counters: those that it counted as outages, once all
    connections were there again; and, with the rank at the other end, those in which data waited for its
    acknowledgement and nothing came at all."""
    counted: list[Outage] = []
    silent: list[tuple[Place, Outage]] = []
    for before, after in itertools.pairwise(reports):
        began, ended = (one.report.now_ns / 1e9 - offset for one in (before, after))
        known = {peer["peer"]: peer for peer in peers(before)}
        for peer in peers(after):
            was = known.get(peer["peer"])
            if was is None or peer["site"] == site:
                continue
            between = " - ".join(sorted((site, str(peer["site"]))))
            grown = {name: peer.get(name, 0) - was.get(name, 0) for name in _OF_A_SILENT_LINE}
            if grown["outage_us"] > 0:
                counted.append(Outage(between, began - grown["outage_us"] / 1e6, ended))
            waited_s = (grown["busy_us"] - grown["stalled_by_receiver_us"]) / 1e6
            if grown["bytes_received"] == 0 and waited_s > _SILENT_SHARE * (ended - began):
                silent.append(((str(peer["site"]), int(peer["rank"])), Outage(between, began, ended)))
    return counted, silent


def _in_a_stop(outage: Outage, stops: Iterable[tuple[float, float]]) -> bool:
    """Whether a process that was stopped is reason enough that nothing came from it."""
    common = (min(outage.ended, ended) - max(outage.began, began) for began, ended in stops)
    return max(common, default=0.0) > (outage.ended - outage.began) / 2


def _element_bytes(dtype: str) -> int:
    """Bytes of an element of a type of csrc/core/dtype.h: its name ends with its bits, but for bool's. Asking torch
    would import it, which is most of what starting `geocomm why` or `geocomm dashboard` takes."""
    return int(dtype.lstrip(string.ascii_lowercase) or 8) // 8


def _count_of_ranks(living: Mapping[Rank, Received]) -> int:
    """Ranks that report, and those that these have links to."""
    found = {(rank.site, rank.rank) for rank in living}
    for received in living.values():
        found |= {(str(peer["site"]), int(peer["rank"])) for peer in peers(received)}
    return len(found)


def _grown_by_step(
    name: str, living: Mapping[Rank, Received], reports: Mapping[Rank, list[Received]]
) -> dict[str, float]:
    """How much a counter of local steps grew in a step, over what was read: of each site the rank with most."""
    grown: dict[str, float] = {}
    for rank in living:
        told = [rows for report in reports[rank] if (rows := report.report.stats.get("local_steps"))]
        if not told:
            continue
        count, more = (
            sum(row.get(one, 0) for row in told[-1]) - (sum(row.get(one, 0) for row in told[0]) if told[1:] else 0)
            for one in ("steps", name)
        )
        if count > 0:
            grown[rank.site] = max(grown.get(rank.site, 0.0), float(more) / count)
    return grown
