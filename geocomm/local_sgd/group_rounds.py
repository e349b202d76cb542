"""Rounds over the geocomm backend: between the sites of the default process group."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from geocomm.backend.runtime import runtime
from geocomm.backend.site_group import site_group
from geocomm.core.errors import InvalidArgumentError, OperationTimeoutError, PeerLostError, ReplicaMismatchError
from geocomm.local_sgd.delta_frames import DeltaFrames, average_frames, encode_delta
from geocomm.local_sgd.fragments import Fragment
from geocomm.local_sgd.host_memory import Scratch
from geocomm.local_sgd.pace import LineClock
from geocomm.local_sgd.rounds import Average, Coding, Offer, Terms, check_terms, decide
from geocomm.local_sgd.site_ranks import SiteRanks
from geocomm.membership import roll_call

Result = TypeVar("Result")
_DIGEST_BYTES = 16
_FIRST = 0
"""The fragment whose owner is the first rank of its site."""
_UNDER_WAY = 4
"""Rounds of a lane that are exchanged at a time. Fragments may be due four times in the time that a round takes."""
# All ranks make their rounds together, so the n-th of one belongs to the n-th of another.
_NUMBERS = itertools.count()


class GroupRounds:
    """The rounds of one rank. Every rank of the default process group makes one, at the same time (collective).

    The ranks of a site train one model. Lane i has the i-th rank of every site, as far as all sites have one. Fragment
    f takes lane f % lanes, whose ranks own it: so the ranks of a site share the work and the memory.

    Threads exchange the frames of all sites, so that a round holds up no step; several rounds of a lane are under way
    at a time, each in a process group of its own, since every one takes two round trips at least. Every site
    decodes the same frames in the same order: averages have equal bits everywhere, and equal those of SimulatedSites.
    Each site sends its frame to every other one, which suits a few sites.
    """

    def __init__(self, *, timeout_s: float = 300.0) -> None:
        """timeout_s: how long `agree` waits for the other ranks.

        Raises InvalidArgumentError where the default process group is not geocomm's, or has one site only.
        """
        world = runtime.world
        if world is None or world.backend.closed:
            raise InvalidArgumentError(
                'local steps need the default process group: init_process_group("geocomm") before local_steps()'
            )
        ranks_of = world.ranks_of_sites
        if len(ranks_of) < 2:
            raise InvalidArgumentError(
                "local steps need two sites or more, and all ranks are at one; GEOCOMM_SITE names the site of a rank"
            )
        self._world = world
        self._rank = dist.get_rank()
        self._sites = tuple(ranks_of)
        self._site = world.infos[self._rank].site or ""
        self._timeout = timedelta(seconds=timeout_s)
        lane_count = min(len(ranks) for ranks in ranks_of.values())
        place = ranks_of[self._site].index(self._rank)
        # Collective: every rank makes all groups, in the same order.
        lanes = [
            [_new_group([ranks[lane] for ranks in ranks_of.values()]) for _ in range(_UNDER_WAY)]
            for lane in range(lane_count)
        ]
        own = lanes[place] if place < lane_count else []
        self._exchanges = [_Exchange(group, f"geocomm-rounds{i}") for i, group in enumerate(own) if group is not None]
        self._turns = itertools.cycle(self._exchanges)
        # Beside the lanes: a site may have begun more rounds than another when they ask each other something.
        self._first_ranks = _new_group([ranks[0] for ranks in ranks_of.values()])
        # All ranks ask for it, or none: it may be made here.
        inside = site_group() if max(map(len, ranks_of.values())) > 1 else None
        self.ranks = SiteRanks(inside if len(ranks_of[self._site]) > 1 else None, place, lane_count)
        self._number = next(_NUMBERS)
        self._agreements = 0
        self._offers: dict[int, Offer] = {}
        self._digests = _Digests(self._sites)
        self._line = LineClock()
        self._scratch = Scratch()

    @property
    def site(self) -> str:
        """The name of this site."""
        return self._site

    @property
    def line_seconds(self) -> float:
        """See `Rounds`."""
        return self._line.seconds

    def sites_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """See `Rounds`."""
        return tuple(dict.fromkeys(self._world.infos[rank].site or "" for rank in ranks))

    def agree(self, terms: Terms) -> None:
        """See `Rounds`. Raises OperationTimeoutError for ranks that do not come."""
        records = self._call({name: dict(value) for name, value in vars(terms).items()})
        for info, record in zip(self._world.infos, records, strict=True):
            if "error" in record:
                raise InvalidArgumentError(f"local steps: {self._name(info.rank)} cannot begin: {record['error']}")
        check_terms([(self._name(rank), Terms(**record)) for rank, record in enumerate(records)])

    def refuse(self, reason: str) -> None:
        """See `Rounds`."""
        self._agreements += 1
        roll_call.publish(self._world.store, self._call_name(), self._rank, {"error": reason})

    def propose(self, offer: Offer) -> None:
        """See `Rounds`."""
        self._offers[offer.round] = offer

    def reduce(
        self, number: int, fragment: Fragment, delta: torch.Tensor, residual: torch.Tensor | None, coding: Coding
    ) -> LaneReduction:
        """See `Rounds`."""
        offer, digest = self._offers.pop(number), self._digests.latest
        exchanged = next(self._turns).submit(
            lambda group: self._exchange(group, offer, digest, fragment, delta, residual, coding)
        )
        return LaneReduction(exchanged)

    def furthest(self, number: int) -> int:
        """See `Rounds`."""
        said = None
        if self._first_ranks is not None:
            largest = torch.tensor([number])
            try:
                dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._first_ranks)
            except Exception:  # every rank of the site has to hear of it
                self.ranks.tell(_FIRST, [-1], 1)
                raise
            said = [int(largest)]
        (found,) = self.ranks.tell(_FIRST, said, 1)
        if found < 0:
            raise PeerLostError("local steps: the first rank of this site could not ask the others; it has the error")
        return found

    def commit(self, number: int, digest: str) -> None:
        """See `Rounds`."""
        self._digests.add(number, digest)

    def close(self) -> None:
        """See `Rounds`. Ends the threads, and the process groups between the sites."""
        try:
            if self._first_ranks is not None:
                latest = _all_gather(self._first_ranks, _header_of_digest(self._digests.latest))
                for site, said in zip(self._sites, latest, strict=True):
                    self._digests.check(site, *_digest_of_header(said))
        finally:
            for exchange in self._exchanges:
                exchange.end()
            for group in (self._first_ranks, *(exchange.group for exchange in self._exchanges)):
                if group is not None:
                    dist.destroy_process_group(group)

    def _exchange(
        self,
        group: dist.ProcessGroup,
        offer: Offer,
        digest: tuple[int, str] | None,
        fragment: Fragment,
        delta: torch.Tensor,
        residual: torch.Tensor | None,
        coding: Coding,
    ) -> Average:
        """A round between the ranks of a lane. Runs in a thread of an `_Exchange`."""
        place = (self._sites.index(self._site), len(self._sites))
        with self._line.running():
            frames, new_residual = encode_delta(
                offer.round, fragment, delta, residual, coding, place=place, counts=offer.weight > 0
            )
        header = torch.tensor([*asdict(offer).values(), *frames.sizes], dtype=torch.float64)
        headers = _all_gather(group, torch.cat([header.view(torch.uint8), _header_of_digest(digest)]))
        offers: list[tuple[str, Offer]] = []
        sizes: list[tuple[int, int]] = []
        for site, said in zip(self._sites, headers, strict=True):
            *numbers, norm, last, coded, exact = said[: header.nbytes].view(torch.float64).tolist()
            offers.append((site, Offer(*map(int, numbers), squared_norm=norm, last=bool(last))))
            sizes.append((int(coded), int(exact)))
            self._digests.check(site, *_digest_of_header(said[header.nbytes :]))
        entry = decide(offers)
        longest = max(map(sum, sizes))
        padded = torch.zeros(longest, dtype=torch.uint8)
        own = [frame for frame in (frames.coded, frames.exact) if frame is not None]
        torch.cat(own, out=padded[: frames.wire_bytes])
        values = None
        with self._line.running():  # all sites are there now
            gathered = _all_gather(group, padded)
            if any(entry.weights):
                said = [
                    DeltaFrames(
                        one[:coded] if coded else None,
                        one[coded : coded + exact] if exact else None,
                    )
                    for one, (coded, exact) in zip(gathered, sizes, strict=True)
                ]
                values = delta  # it is in the frames by now
                average_frames(said, fragment, entry.weights, coding.averaging, self._scratch, values)
        return Average(entry, values, new_residual, frames.wire_bytes)

    def _call(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        self._agreements += 1
        size = len(self._world.infos)
        try:
            return roll_call.exchange(self._world.store, self._call_name(), self._rank, size, record, self._timeout)
        except roll_call.Absent as absent:
            missing = ", ".join(self._name(rank) for rank in absent.ranks)
            raise OperationTimeoutError(
                f"local steps: {missing} did not call local_steps() within {self._timeout.total_seconds():g} s; every "
                "rank of every site calls it"
            ) from absent

    def _call_name(self) -> str:
        return f"local_steps/{self._number}/{self._agreements}"

    def _name(self, rank: int) -> str:
        site = self._world.infos[rank].site or ""
        alone = sum(info.site == site for info in self._world.infos) == 1
        return site if alone else f"{site} (rank {rank})"


class LaneReduction:
    """A round that is under way."""

    def __init__(self, exchanged: Future[Average]) -> None:
        self._exchanged = exchanged

    def is_done(self) -> bool:
        """See `Reduction`."""
        return self._exchanged.done()

    def wait(self) -> Average:
        """See `Reduction`."""
        return self._exchanged.result()


class _Digests:
    """What this rank has committed, compared with what the other sites say in the headers of later rounds."""

    def __init__(self, sites: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._own: dict[int, str] = {}
        self._said: dict[int, list[tuple[str, str]]] = {}
        self._keep = 64  # a site is never so many rounds behind: a fragment has one round under way
        self.latest: tuple[int, str] | None = None

    def add(self, number: int, digest: str) -> None:
        """Raises ReplicaMismatchError where a site has said something else."""
        with self._lock:
            self._own[number] = digest
            self._own.pop(number - self._keep, None)
            self.latest = (number, digest)
            said = self._said.pop(number, [])
        for site, other in said:
            self._compare(site, number, other, digest)

    def check(self, site: str, number: int, digest: str) -> None:
        """What a site has said; number -1: nothing yet."""
        if number < 0:
            return
        with self._lock:
            own = self._own.get(number)
            if own is None and (self.latest is None or number > self.latest[0]):
                self._said.setdefault(number, []).append((site, digest))
        if own is not None:
            self._compare(site, number, digest, own)

    @staticmethod
    def _compare(site: str, number: int, digest: str, own: str) -> None:
        if digest != own:
            raise ReplicaMismatchError(
                f"local steps: after round {number} the anchor of site {site!r} is {digest}, and here it is {own}. "
                "Resume from a checkpoint; if it comes again, a machine computes wrongly"
            )


class _Exchange:
    """Runs exchanges over one process group, one after the other, in a thread of their own.

    The thread is a daemon: a process that ends does not wait for a line that is down.
    """

    def __init__(self, group: dist.ProcessGroup, name: str) -> None:
        self.group = group
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[dist.ProcessGroup], Any], Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        self._started = False

    def submit(self, call: Callable[[dist.ProcessGroup], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        self._calls.put((call, future))
        if not self._started:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._started = True
        return future

    def end(self) -> None:
        """After what was submitted."""
        self._calls.put(None)

    def _run(self) -> None:
        while (submitted := self._calls.get()) is not None:
            call, future = submitted
            try:
                future.set_result(call(self.group))
            except BaseException as error:  # it is raised where the result is asked for
                future.set_exception(error)


def _new_group(ranks: list[int]) -> dist.ProcessGroup | None:
    """None at ranks that are not in it."""
    group = dist.new_group(ranks)
    return group if isinstance(group, dist.ProcessGroup) else None


def _all_gather(group: dist.ProcessGroup, own: torch.Tensor) -> list[torch.Tensor]:
    """The 1-D tensors of all ranks of the group, which are as long as this one, in their order."""
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, own, group=group)
    return found


def _header_of_digest(latest: tuple[int, str] | None) -> torch.Tensor:
    number, digest = latest or (-1, "00" * _DIGEST_BYTES)
    return torch.cat(
        [
            torch.tensor([number], dtype=torch.int64).view(torch.uint8),
            torch.frombuffer(bytearray.fromhex(digest), dtype=torch.uint8),
        ]
    )


def _digest_of_header(header: torch.Tensor) -> tuple[int, str]:
    number = int(header[:8].clone().view(torch.int64))
    return number, bytes(header[8 : 8 + _DIGEST_BYTES].tolist()).hex()
