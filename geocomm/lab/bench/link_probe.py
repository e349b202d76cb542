"""Measuring the links between sites over geocomm's own channels: `geocomm probe`.

Round k of N - 1: every site sends to the k-th site after it and receives from the k-th before it, so that a link has
its ends to itself. Each link gets ever more data until it is filled for the wanted time. What is sent again then is
mostly the probe's own doing: the queue before the link overflows. So the link is measured once more at a part of its
rate, and only what is sent again there counts as its loss. A last round sends over all links at once, and shows the
sites whose access is less than their links together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.link_table import MOST_BPS, Links, table_of
from geocomm.core.typed_torch import all_gather, barrier, to_list
from geocomm.group.backend.runtime import runtime
from geocomm.group.backend.sites import sites

MESSAGES = 8
"""The messages of a transfer, side by side."""
_SAMPLE_S = 0.005
_FIRST_BYTES = 1 << 20
_MOST_BYTES = 1 << 30
_STEPS = 10
_GROWTH = 8
_PINGS = 8
_SHARED_ACCESS = 0.85
"""Links that together carry less than this part of what each carries alone share an access line. Chosen, with room for
rates that differ from one probe to the next."""
_SEGMENT_BYTES = 1448
_PING, _PONG, _DATA, _SPARSE = 1, 2, 3, 4
_SPARSE_SHARE = 0.3
"""Part of a link's rate that leaves its queue empty. Chosen: others may use the link too."""
_SPARSE_BYTES = 32 << 10
"""The size of one message, less than the queue of any link that is used for training."""
_MOST_SPARSE = 1000

Pair = tuple[int, int]


@dataclass(frozen=True)
class RankPair:
    """Two ranks that measure the link between their sites; the first sends."""

    sender: int
    receiver: int


def rank_pairs(ranks_of_site: Sequence[Sequence[int]], src: int, dst: int, most: int) -> list[RankPair]:
    """The ranks of both sites in pairs, as collectives pair them."""
    pairs = list(zip(ranks_of_site[src], ranks_of_site[dst], strict=False))[:most]
    return [RankPair(sender, receiver) for sender, receiver in pairs]


def next_bytes(sent: int, seconds: float, wanted_s: float) -> int:
    """What to send next between two ranks that took `seconds` for `sent` bytes; 0: it was measured long enough."""
    if seconds >= 0.5 * wanted_s or sent >= _MOST_BYTES:
        return 0
    growth = min(wanted_s / max(seconds, 1e-6), _GROWTH)
    return min(int(sent * growth), _MOST_BYTES)


def rate_of(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(seconds, bits per second) of a transfer, from (time, bytes received so far), in order; the last is its end.

    The rate is that of the middle part: the beginning is the transport's start, the end its last stragglers.
    """
    begin, moved = samples[0][1], samples[-1][1] - samples[0][1]
    after = [(at, count - begin) for at, count in samples if count > begin]
    if len(after) < 2:
        return 0.0, 0.0
    seconds = after[-1][0] - after[0][0]
    middle = [(at, count) for at, count in after if 0.2 * moved <= count <= 0.95 * moved]
    if len(middle) < 2 or middle[-1][1] - middle[0][1] < 0.3 * moved:
        middle = after
    elapsed = middle[-1][0] - middle[0][0]
    return seconds, 8 * (middle[-1][1] - middle[0][1]) / max(elapsed, 1e-9)


def access_limits(alone: Mapping[Pair, float], together: Mapping[Pair, float], sites: int) -> tuple[list[float], ...]:
    """(up, down) of each site, bit/s, from the rates of links alone and all at once; infinite where there is no limit.

    What a site with a limit does not send is no sign of a limit where it does not arrive.
    """
    up: list[float] = []
    for site in range(sites):
        pairs = [(site, other) for other in range(sites) if other != site]
        summed = sum(together[pair] for pair in pairs)
        up.append(summed if summed < _SHARED_ACCESS * sum(alone[pair] for pair in pairs) else float("inf"))
    down: list[float] = []
    for site in range(sites):
        others = [other for other in range(sites) if other != site]
        free = [(other, site) for other in others if up[other] == float("inf")]
        limited = sum(together[pair] for pair in free) < _SHARED_ACCESS * sum(alone[pair] for pair in free)
        down.append(sum(together[other, site] for other in others) if limited else float("inf"))
    return up, down


class LinkProbe:
    """Measures the links of the default process group. Collective: all ranks make one and run it."""

    def __init__(self, seconds: float = 2.0, ranks_per_site: int = 4) -> None:
        """`seconds`: about how long each link is filled; `ranks_per_site`: the most that send at once."""
        if runtime.world is None or not runtime.world.backend.spans_sites:
            raise InvalidArgumentError("the probe needs the default process group at two sites or more")
        self._world = runtime.world
        self._seconds = seconds
        self._most = ranks_per_site
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        found = sites()
        self.names, self._ranks = found.names, found.ranks
        self._rates: dict[Pair, float] = {}
        self._rtts: dict[Pair, float] = {}
        self._loss: dict[Pair, float] = {}
        self.overflow: dict[Pair, float] = {}
        """Share of segments sent again while a link was filled, beyond its loss; by (from, to), on every rank."""

    def run(self) -> Links:
        """All rounds; the same table on every rank."""
        sites = len(self.names)
        for k in range(1, sites):
            pairs = [(site, (site + k) % sites) for site in range(sites)]
            self._ping(pairs)
            self._fill(pairs)
            self._send_sparsely(pairs)
        up = down = None
        if sites > 2:
            up, down = map(_known, access_limits(self._rates, self._together(), sites))
        rates, rtts, loss = self._rates, self._rtts, self._loss
        found = Links(
            tuple(self.names),
            table_of(sites, lambda src, dst: rates[src, dst]),
            table_of(sites, lambda src, dst: min(rtts[src, dst], rtts[dst, src])),
            table_of(sites, lambda src, dst: loss[src, dst]),
            up,
            down,
            source="measured",
        )
        return found.with_near_regions()

    def _rank_pairs(self, pairs: Sequence[Pair]) -> list[tuple[Pair, RankPair]]:
        return [((src, dst), ranks) for src, dst in pairs for ranks in rank_pairs(self._ranks, src, dst, self._most)]

    def _gather(self, values: Sequence[float]) -> list[list[float]]:
        """The rows of all ranks."""
        own = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self._size)]
        all_gather(rows, own)
        return [to_list(row) for row in rows]

    def _ping(self, pairs: Sequence[Pair]) -> None:
        """Round trips: the first rank of each site asks, and answers on a thread of its own."""
        asks = {self._ranks[src][0]: self._ranks[dst][0] for src, dst in pairs}
        answers = {responder: asker for asker, responder in asks.items()}
        best = float("inf")
        answering = threading.Thread(target=self._answer, args=(answers.get(self._rank),))
        answering.start()
        if self._rank in asks:
            byte = torch.zeros(1, dtype=torch.uint8)
            for _ in range(_PINGS):
                begin = time.perf_counter()
                dist.send(byte, asks[self._rank], tag=_PING)
                dist.recv(byte, asks[self._rank], tag=_PONG)
                best = min(best, time.perf_counter() - begin)
        answering.join()
        rows = self._gather([best])
        for src, dst in pairs:
            self._rtts[src, dst] = rows[self._ranks[src][0]][0]

    @staticmethod
    def _answer(asker: int | None) -> None:
        byte = torch.zeros(1, dtype=torch.uint8)
        for _ in range(_PINGS if asker is not None else 0):
            dist.recv(byte, asker, tag=_PING)
            dist.send(byte, asker, tag=_PONG)

    def _fill(self, pairs: Sequence[Pair]) -> None:
        """Rates and losses of links that do not meet."""
        rank_pairs = self._rank_pairs(pairs)
        amounts = {ranks: _FIRST_BYTES for _, ranks in rank_pairs}
        rates: dict[RankPair, float] = {}
        before = self._counters()
        for _ in range(_STEPS):
            results = self._transfer(amounts)
            for ranks, amount in list(amounts.items()):
                seconds, rates[ranks] = results[ranks]
                amounts[ranks] = next_bytes(amount, seconds, self._seconds)
            amounts = {ranks: amount for ranks, amount in amounts.items() if amount > 0}
            if not amounts:
                break
        for pair, ranks in rank_pairs:
            self._rates[pair] = self._rates.get(pair, 0.0) + rates[ranks]
        self._note_resent(pairs, before, self.overflow)

    def _send_sparsely(self, pairs: Sequence[Pair]) -> None:
        """Losses of links whose queues stay empty."""
        rank_pairs = self._rank_pairs(pairs)
        share = {pair: sum(1 for other, _ in rank_pairs if other == pair) for pair, _ in rank_pairs}
        before = self._counters()
        barrier()
        works: list[dist.Work | None] = []
        sends: list[tuple[int, float, int]] = []  # to, seconds from one message to the next, how many
        for pair, ranks in rank_pairs:
            pause_s = 8 * _SPARSE_BYTES * share[pair] / max(_SPARSE_SHARE * self._rates[pair], 1.0)
            count = max(1, min(int(self._seconds / pause_s), _MOST_SPARSE))
            if ranks.sender == self._rank:
                sends.append((ranks.receiver, pause_s, count))
            elif ranks.receiver == self._rank:
                room = torch.empty(_SPARSE_BYTES, dtype=torch.uint8)
                works += [dist.irecv(room.clone(), ranks.sender, tag=_SPARSE) for _ in range(count)]
        message = torch.zeros(_SPARSE_BYTES, dtype=torch.uint8)
        for receiver, pause_s, count in sends:  # a rank sends to one other only: each round is a shift of the sites
            for _ in range(count):
                works.append(dist.isend(message, receiver, tag=_SPARSE))
                time.sleep(pause_s)
        for work in works:
            if work is not None:
                work.wait()
        self._note_resent(pairs, before, self._loss)
        for pair in pairs:
            self.overflow[pair] = max(self.overflow[pair] - self._loss[pair], 0.0)

    def _together(self) -> dict[Pair, float]:
        """Rates of all links at once."""
        sites = len(self.names)
        rank_pairs = self._rank_pairs([(src, dst) for src in range(sites) for dst in range(sites) if src != dst])
        share = {pair: sum(1 for other, _ in rank_pairs if other == pair) for pair, _ in rank_pairs}
        amounts = {
            ranks: min(max(int(self._rates[pair] / 8 * self._seconds / share[pair]), MESSAGES), _MOST_BYTES)
            for pair, ranks in rank_pairs
        }
        results = self._transfer(amounts)
        rates: dict[Pair, float] = {}
        for pair, ranks in rank_pairs:
            rates[pair] = rates.get(pair, 0.0) + results[ranks][1]
        return rates

    def _transfer(self, amounts: Mapping[RankPair, int]) -> dict[RankPair, tuple[float, float]]:
        """All pairs of ranks at once; seconds and rates, as the receivers saw them (`rate_of`)."""
        barrier()
        works: list[dist.Work | None] = []
        samples: dict[RankPair, list[tuple[float, float]]] = {}
        for ranks, amount in amounts.items():
            message = torch.zeros(max(amount // MESSAGES, 1), dtype=torch.uint8)
            if ranks.receiver == self._rank:
                samples[ranks] = []
                works += [dist.irecv(torch.empty_like(message), ranks.sender, tag=_DATA) for _ in range(MESSAGES)]
            elif ranks.sender == self._rank:
                works += [dist.isend(message, ranks.receiver, tag=_DATA) for _ in range(MESSAGES)]
        done = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(samples, done))
        sampler.start()
        try:
            for work in works:
                if work is not None:
                    work.wait()
        finally:
            done.set()
            sampler.join()
        order = list(amounts)
        own = [number for ranks in order for number in (rate_of(samples[ranks]) if ranks in samples else (0.0, 0.0))]
        rows = self._gather(own)
        return {
            ranks: (rows[ranks.receiver][2 * index], rows[ranks.receiver][2 * index + 1])
            for index, ranks in enumerate(order)
        }

    def _sample(self, samples: Mapping[RankPair, list[tuple[float, float]]], done: threading.Event) -> None:
        """(time, bytes received) of each pair whose receiver this rank is, until all is done, and once after that."""
        names = {self._world.infos[ranks.sender].description: ranks for ranks in samples}
        last = False
        while samples and not last:
            last = done.wait(_SAMPLE_S)
            at = time.perf_counter()
            for channel in runtime.channel_stats():
                if ranks := names.get(channel["peer"]):
                    samples[ranks].append((at, float(channel["bytes_received"])))

    def _counters(self) -> dict[int, tuple[float, float]]:
        """Segments that were sent again and bytes sent, by peer rank."""
        channels = {channel["peer"]: channel for channel in runtime.channel_stats()}
        found: dict[int, tuple[float, float]] = {}
        for info in self._world.infos:
            if channel := channels.get(info.description):
                found[info.rank] = float(channel["retransmitted_segments"]), float(channel["bytes_sent"])
        return found

    def _note_resent(
        self, pairs: Sequence[Pair], before: Mapping[int, tuple[float, float]], shares: dict[Pair, float]
    ) -> None:
        """Put into `shares` the part of each link's segments that was sent again since `before`."""
        again = [0.0] * self._size
        sent = [0.0] * self._size
        for peer, (segments, moved) in self._counters().items():
            old = before.get(peer, (0.0, 0.0))
            again[peer], sent[peer] = segments - old[0], moved - old[1]
        rows = self._gather(again + sent)
        for pair, ranks in self._rank_pairs(pairs):
            row = rows[ranks.sender]
            segments = max(row[self._size + ranks.receiver] / _SEGMENT_BYTES, 1.0)
            shares[pair] = max(shares.get(pair, 0.0), min(row[ranks.receiver] / segments, 1.0))


def _known(limits: Sequence[float]) -> tuple[float, ...] | None:
    """The limits as `Links` has them: None if no site has one."""
    if all(limit == float("inf") for limit in limits):
        return None
    return tuple(min(limit, MOST_BPS) for limit in limits)
