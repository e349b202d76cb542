"""A run whose times are computed from what its sites and links are like, as its telemetry would tell it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geocomm.observe.diagnosis.bottleneck import Diagnosis, diagnose
from geocomm.observe.diagnosis.link_use import LinkUse, Place
from geocomm.observe.diagnosis.run_window import Operation, RankWindow, RunWindow, Step, read_window
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import RunStore
from support.reports import keep

STEPS = 20
_TURNS = 4
"""Chunks of an owner by regions, each with another head."""


@dataclass(frozen=True)
class Run:
    """Sites "a", "b", ... with a rank each: they load, compute, and reduce, one operation after the other."""

    compute: Sequence[float] = (0.1, 0.1)
    """Seconds of each site."""
    load: Sequence[float] = (0.0, 0.0, 0.0)
    save: float = 0.0
    operations: int = 2
    size: int = 1 << 20
    rate: float = 50e6
    delay: float = 0.005
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of links that are not as the others, by the names of two sites, such as "ab"; of one direction, such as "a>b"."""
    delays: Mapping[str, float] = field(default_factory=dict[str, float])
    owners: bool = False
    """Each site sums up a part and sends the result to all; else each sends all others the whole."""
    shares: Sequence[float] = ()
    """Of the tensor, that each owner sums up; empty: all the same."""
    regions: Sequence[int] = ()
    """Of the sites, all of them equally large: operations are reduce-scatters by regions."""
    coding: float = 0.0
    repairs: Sequence[float] = (1.0,)
    """By what the times of a link's messages on it are multiplied, one after the other, again and again."""
    counters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of all links."""
    pauses: Mapping[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """Seconds of a step, at a site, both by number."""
    held: Mapping[int, float] = field(default_factory=dict[int, float])
    """By step: seconds for which the first operation's messages lie on the way."""
    slower: tuple[int, float] = (STEPS, 1.0)
    """From this step on, by what the times of all messages are multiplied."""
    steps: int = STEPS
    cpu_lost: Mapping[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    """By site: the shares of CPU time that are stolen, and of periods that are throttled."""

    def window(self) -> RunWindow:
        """All its steps, with what links are like, as a reader of its telemetry would have them."""
        return _Simulation(self).window()

    def said(self) -> Diagnosis:
        """The verdicts on that."""
        return diagnose(self.window())

    def read(self, folder: Path, last: int = 50) -> RunWindow:
        """What is read of the run from a store of its reports, which come once a second."""
        write_store(self, folder)
        return read_window(RunStore(folder), last)


@dataclass(frozen=True)
class _Sent:
    """A message: when its last byte left, how many there were, and how long that took."""

    left: float
    size: float
    seconds: float


class _Simulation:
    """One run, from its begin to its end."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._places: list[Place] = [("abcdefgh"[i], i) for i in range(len(run.compute))]
        self._free: dict[tuple[int, int], float] = defaultdict(float)
        self.sent: dict[tuple[int, int], list[_Sent]] = defaultdict(list)
        """From a site to another one, by their numbers."""
        self._slower, self._held = 1.0, 0.0
        self._repairs = defaultdict[tuple[int, int], Iterator[float]](lambda: itertools.cycle(run.repairs))

    def window(self) -> RunWindow:
        run, count = self._run, len(self._places)
        now = [0.0] * count
        steps: list[list[Step]] = [[] for _ in self._places]
        rows: list[list[Operation]] = [[] for _ in self._places]
        for number in range(run.steps):
            began, exposed = list(now), [0.0] * count
            now = [now[i] + run.compute[i] + run.load[i] + run.pauses.get((number, i), 0.0) for i in range(count)]
            self._slower = run.slower[1] if number >= run.slower[0] else 1.0
            for k in range(run.operations):
                issued = list(now)
                self._held = run.held.get(number, 0.0) if k == 0 else 0.0
                arrived = self._exchange(issued)
                now = [max(issued[i] + run.coding, *arrived[i].values()) + run.coding / 8 for i in range(count)]
                for i in range(count):
                    exposed[i] += now[i] - issued[i]
                    rows[i].append(self._operation(i, number * run.operations + k, issued[i], now[i], arrived[i]))
            now = [at + run.save for at in now]
            for i in range(count):
                steps[i].append(Step(number, began[i], now[i], run.load[i], exposed[i], run.save))
        ranks = [
            RankWindow(place, steps[i], rows[i], clock_error=0.001 * (i > 0)) for i, place in enumerate(self._places)
        ]
        return RunWindow(ranks, [*self._links()], of_ranks=count)

    def _pair(self, i: int, j: int) -> str:
        return "".join(sorted((self._places[i][0], self._places[j][0])))

    def _delay(self, i: int, j: int) -> float:
        return self._run.delays.get(self._pair(i, j), self._run.delay)

    def _send(self, i: int, j: int, ready: float, size: float) -> float:
        """When it is there. One message after the other."""
        one_way = self._run.rates.get(f"{self._places[i][0]}>{self._places[j][0]}")
        rate = self._run.rates.get(self._pair(i, j), self._run.rate) if one_way is None else one_way
        seconds = size / rate * next(self._repairs[i, j])
        left = max(ready, self._free[i, j]) + seconds * self._slower + self._held
        self.sent[i, j].append(_Sent(left, size, seconds * self._slower))
        self._free[i, j] = left
        return left + self._delay(i, j)

    def _exchange(self, issued: Sequence[float]) -> list[dict[int, float]]:
        """When each site has all of each other one."""
        run, sites = self._run, range(len(issued))
        ways = [(i, j) for i in sites for j in sites if i != j]
        arrived: list[dict[int, float]] = [{} for _ in sites]
        if run.regions:
            return self._scatter(issued)
        if not run.owners:
            for i, j in ways:
                sent = self._send(i, j, issued[i], run.size)
                arrived[j][i] = max(sent, issued[i] + run.coding + self._delay(i, j), issued[j])
            return arrived
        chunks = self._chunks()
        size = run.size / sum(chunks)
        summed: dict[tuple[int, int], float] = defaultdict(float)
        for i, j in ways:
            for k in range(chunks[j]):
                arrived[j][i] = max(self._send(i, j, issued[i], size), issued[j])
                summed[j, k] = max(summed[j, k], arrived[j][i])
        for i, j in ways:
            for k in range(chunks[i]):
                arrived[j][i] = max(self._send(i, j, summed[i, k], size), issued[j])
        return arrived

    def _scatter(self, issued: Sequence[float]) -> list[dict[int, float]]:
        """By regions: for a chunk of an owner a site of each other region, its head, adds up the chunks of its own."""
        run, sites = self._run, range(len(issued))
        arrived: list[dict[int, float]] = [{} for _ in sites]
        size = run.size / len(sites) / _TURNS
        summed: dict[tuple[int, int, int], float] = {}

        def send(i: int, j: int, ready: float) -> float:
            at = max(self._send(i, j, ready, size), issued[j])
            arrived[j][i] = max(at, arrived[j].get(i, 0.0))
            return at

        for turn, owner, site in itertools.product(range(_TURNS), sites, sites):
            region = [one for one in sites if run.regions[one] == run.regions[site]]
            head = owner if owner in region else region[(owner + turn) % len(region)]
            at = issued[site] if site == head else send(site, head, issued[site])
            summed[head, owner, turn] = max(at, summed.get((head, owner, turn), 0.0))
        for (head, owner, _), ready in summed.items():
            if head != owner:
                send(head, owner, ready)
        return arrived

    def _chunks(self) -> list[int]:
        """How many each site owns."""
        count = len(self._places)
        part = self._run.size / count
        of_part = max(1, math.ceil(part / (1 << 20)), min(4, int(part / (1 << 16))))  # as reduce_plan.cc
        return [round(count * of_part * share) for share in self._run.shares or count * (1 / count,)]

    def _operation(self, i: int, number: int, issued: float, ended: float, arrived: Mapping[int, float]) -> Operation:
        run, others = self._run, len(arrived)
        # What owners get: the others' parts, and of each of them its own.
        chunks, sites = self._chunks(), len(self._places)
        owned = run.size * chunks[i] / sum(chunks)
        received = round(run.size + (sites - 2) * owned) if run.owners else others * run.size
        if run.regions:
            received = run.size * (sites - 1) // sites
        other_regions = [j for j in arrived if run.regions and run.regions[j] != run.regions[i]]
        return Operation(
            key=(1, number),
            kind="reduce_scatter" if run.regions else "all_reduce",
            codec="int8",
            issued=issued,
            began=issued,
            encoded=issued + run.coding,
            exchanged=ended,
            ended=ended,
            wait_began=issued,
            wait_ended=ended,
            coding=2 * run.coding,
            raw_bytes=run.size,
            raw_bytes_received=received,
            bytes_received=received,
            arrivals={self._places[j]: at for j, at in arrived.items()},
            of_regions=frozenset(self._places[j] for j in other_regions),
        )

    def _links(self) -> list[LinkUse]:
        found: list[LinkUse] = []
        for i, here in enumerate(self._places):
            for j, there in enumerate(self._places):
                if i != j:
                    round_trip = 2 * self._delay(i, j)
                    plain = {"bytes_sent": 10**8, "busy_s": 8.0, "rtt_s": round_trip, "streams": 2}
                    best = self._run.rates.get(self._pair(i, j), self._run.rates.get(f"{here[0]}>{there[0]}"))
                    best_rate = {} if best is None else {"best_rate": best}
                    known: dict[str, Any] = {**plain, **self._run.counters, **best_rate}
                    found.append(LinkUse(here, there, min_rtt_s=round_trip, **known))
        return found


def write_store(run: Run, folder: Path, ahead_s: Sequence[float] = ()) -> None:
    """Reports of a run, one a second, of ranks whose clocks are ahead by so much and know that to 5 ms."""
    simulation = _Simulation(run)
    window = simulation.window()
    clocks = ahead_s or [0.0] * len(window.ranks)
    store = RunStore(folder, write=True)
    for second in range(1, math.ceil(max(rank.steps[-1].ended for rank in window.ranks)) + 1):
        for number, rank in enumerate(window.ranks):
            report = _Report(window, number, clocks, second)
            stolen, throttled = run.cpu_lost.get(number, (0.0, 0.0))
            stats = {
                "peers": [
                    report.peer(other) | _counters(simulation.sent[number, other], second)
                    for other in range(len(window.ranks))
                    if other != number
                ],
                "local_steps": [],
                "cpu_stolen_seconds": stolen * second,
                "cpu_periods": 10 * second,
                "cpu_throttled_periods": 10 * throttled * second,
            }
            said = {
                "site": rank.place[0],
                "rank": number,
                "process": f"{number:016x}",
                "sequence": second,
                "time": 0.0,
                "now_ns": report.ns(second),
                "stats": stats,
                "training": {"totals": {"steps": sum(one.ended <= second for one in rank.steps)}},
                "steps": report.steps(),
                "operations": report.operations(),
            }
            keep(store, Report.model_validate(said), 1e9 + second)


def _counters(sent: Sequence[_Sent], second: int) -> dict[str, Any]:
    """What TCP says of a link in this second."""
    gone = [one for one in sent if one.left <= second]
    last = gone[-1].size / gone[-1].seconds if gone else 0.0
    return {
        "tcp_bytes_sent": round(sum(one.size for one in gone)),
        "busy_us": round(1e6 * sum(one.seconds for one in gone)),
        "delivery_rate": round(last),
        "streams": 2,
    }


@dataclass(frozen=True)
class _Report:
    """What a rank says in one second."""

    window: RunWindow
    number: int
    ahead_s: Sequence[float]
    second: int

    def ns(self, at: float | None) -> int | None:
        return None if at is None else int((at + self.ahead_s[self.number]) * 1e9)

    def new(self, ended: float) -> bool:
        return self.second - 1 < ended <= self.second

    def peer(self, other: int) -> dict[str, Any]:
        here, there = (self.window.ranks[number].place for number in (self.number, other))
        link = next(link for link in self.window.links if (link.source, link.target) == (here, there))
        return {
            "rank": there[1],
            "site": there[0],
            "peer": f"rank {there[1]}",
            "min_rtt_us": round(link.min_rtt_s * 1e6),
            "rtt_us": round(link.rtt_s * 1e6),
            "clock_offset_us": round((self.ahead_s[other] - self.ahead_s[self.number]) * 1e6),
            "clock_error_us": 5000,
        }

    def steps(self) -> list[dict[str, Any]]:
        return [
            {
                "step": step.number,
                "ended_ns": self.ns(step.ended),
                "seconds": step.seconds,
                "exposed_seconds": step.exposed,
            }
            for step in self.window.ranks[self.number].steps
            if self.new(step.ended)
        ]

    def operations(self) -> list[dict[str, Any]]:
        return [
            {
                "number": k + 1,
                "group": 1,
                "sequence": k,
                "kind": one.kind,
                "codec": one.codec,
                "dtype": "float32",
                "elements": one.raw_bytes // 4,
                "failed": False,
                "raw_bytes_received": one.raw_bytes_received,
                "wire_bytes_sent": one.bytes_received,
                "wire_bytes_received": one.bytes_received,
                "coding_ns": 0,
                "peers": [
                    self.peer(there[1]) | {"last_in_ns": self.ns(at), "sums": there in one.of_regions}
                    for there, at in one.arrivals.items()
                ],
                **{
                    f"{name}_ns": self.ns(getattr(one, name))
                    for name in ("issued", "began", "encoded", "exchanged", "ended", "wait_began", "wait_ended")
                },
            }
            for k, one in enumerate(self.window.ranks[self.number].operations)
            if self.new(one.ended)
        ]
