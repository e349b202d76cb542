"""Several sites in one process: rounds with the real codecs and no network, for experiments and tests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from typing_extensions import override

from geocomm.core.errors import InvalidArgumentError, OperationTimeoutError, PeerLostError, ReplicaMismatchError
from geocomm.core.link_table import Links
from geocomm.group.planning.regions import Regions
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.site_group import SiteGroup
from geocomm.sync.local_steps.outer.delta_frames import DeltaFrames, average_frames, encode_delta, through_frames
from geocomm.sync.local_steps.outer.rounds import (
    Average,
    Coding,
    Entry,
    Reduction,
    Rounds,
    SiteOffer,
    Terms,
    check_terms,
    decide,
)

Result = TypeVar("Result")
Said = TypeVar("Said")


@dataclass
class _Board:
    """What the sites have said about one round."""

    offers: dict[str, SiteOffer] = field(default_factory=dict[str, SiteOffer])
    frames: dict[str, DeltaFrames] = field(default_factory=dict[str, DeltaFrames])
    digests: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class _Waiting:
    """What a site waits for."""

    is_there: Callable[[], bool]
    gives_up: bool


class SimulatedSites:
    """Sites that share a process, to try local steps without a network: the codecs, arithmetic and bits of real ones.

    Each site trains on its own thread, one at a time: the turn changes where a site waits. Every site decodes the
    frames of all sites by itself, in the same order. A site that ends early fails the rounds of the others.

    Args:
        names: Of the sites, in the order in which deltas are added.
        late: How many optimizer steps the result of a round is late at a site, given the site and the round's number.
            Default: 0.
        timeout_s: The most that a site waits, in seconds.
        links: What `reduce="auto"` and regions follow from, with the same sites. Default: nothing is known of them.

    Raises:
        InvalidArgumentError: There is no name, two are equal, or `links` has no such site.

    Example:
        Two sites, of which the second gets every result two steps late:

            sites = geocomm.SimulatedSites(["a", "b"], late=lambda site, number: 2 * (site == "b"))
            ends = sites.run(lambda rounds: train(rounds.site, rounds))
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        late: Callable[[str, int], int] | None = None,
        timeout_s: float = 600.0,
        links: Links | None = None,
    ) -> None:
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(f"sites are {list(names)}; give one or more different names")
        self.names = tuple(names)
        self.links = None if links is None else links.select(self.names)
        self.committed: list[Entry] = []
        """The entries of the rounds that all sites have committed, in their order."""
        self.late: Callable[[str, int], int] = late or (lambda _site, _round: 0)
        self._timeout_s = timeout_s
        self._turn = threading.Condition()
        self._boards: dict[int, _Board] = {}
        self._meetings: dict[str, dict[str, Any]] = {}
        self._left: set[str] = set()
        self._waiting: dict[str, _Waiting] = {}

    def run(self, train: Callable[[Rounds], Result]) -> list[Result]:
        """Call `train` once for each site. What it raises at the first site that fails, this raises too.

        The generator of torch.manual_seed is one for all sites.

        Args:
            train: Trains one site. It is given what `geocomm.local_steps` takes as `rounds`, whose `site` is the name.

        Returns:
            What `train` returned, in the order of the names.
        """
        results: dict[str, Result] = {}
        failures: list[BaseException] = []

        def run_site(name: str) -> None:
            with self._turn:
                try:
                    results[name] = train(SimulatedRounds(self, name))
                except BaseException as failure:  # it is raised in the caller's thread
                    failures.append(failure)
                finally:
                    self._left.add(name)
                    self._turn.notify_all()

        self._boards, self._meetings, self._left, self._waiting = {}, {}, set(), {}
        threads = [threading.Thread(target=run_site, args=(name,), name=f"site-{name}") for name in self.names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [results[name] for name in self.names]

    def meet(self, site: str, name: str, what: Said) -> dict[str, Said]:
        """What all sites say in the meeting of this name."""
        said = self._meetings.setdefault(name, {})
        said[site] = what
        self.wait_for(site, said, name)
        return said

    def board(self, number: int) -> _Board:
        """What is said about a round."""
        return self._boards.setdefault(number, _Board())

    def decide(self, number: int) -> Entry:
        """The entry of a round, whose offers are all there."""
        return decide([(name, self.board(number).offers[name]) for name in self.names])

    def commit(self, site: str, number: int, digest: str) -> None:
        """What a site's fragment is after a round."""
        board = self.board(number)
        board.digests[site] = digest
        for name, other in board.digests.items():
            if other != digest:
                raise ReplicaMismatchError(
                    f"local steps: after round {number} the fragment is {digest} at site {site!r} and {other} at site "
                    f"{name!r}"
                )
        if len(board.digests) == len(self.names):
            if board.offers:
                self.committed.append(self.decide(number))
            del self._boards[number]

    def has_arrived(self, site: str, number: int) -> bool:
        """Whether the frames of all sites are there, once the others have run as far as they can without this one."""
        frames = self.board(number).frames
        self._turn.notify_all()
        self._wait(site, lambda: not self._missing(frames), gives_up=True)
        missing = self._missing(frames)
        return not missing or bool(missing & self._left)  # then waiting for them raises

    def _missing(self, said: Mapping[str, object]) -> set[str]:
        return {name for name in self.names if name not in said}

    def wait_for(self, site: str, said: Mapping[str, object], what: str) -> None:
        """Until every site has said something; the turn is another's meanwhile."""
        self._turn.notify_all()
        ended = self._wait(site, lambda: not self._missing(said) or bool(self._missing(said) & self._left))
        missing = self._missing(said)
        if not missing:
            return
        if not ended:
            raise OperationTimeoutError(f"{what}: nothing from sites {sorted(missing)} in {self._timeout_s:g} s")
        raise PeerLostError(f"{what}: sites {sorted(missing & self._left)} ended before it")

    def _wait(self, site: str, is_there: Callable[[], bool], *, gives_up: bool = False) -> bool:
        """Wait until something is there.

        gives_up: or until no site can go on, if this is the first of those that give up. So equal runs take equal
        turns.
        """
        self._waiting[site] = _Waiting(is_there, gives_up)

        def none_goes_on() -> bool:
            stuck = {name for name, one in self._waiting.items() if not one.is_there()}
            first = next((name for name in self.names if name in stuck and self._waiting[name].gives_up), None)
            return first == site and stuck | self._left >= set(self.names)

        ended = self._turn.wait_for(lambda: is_there() or (gives_up and none_goes_on()), self._timeout_s)
        del self._waiting[site]
        self._turn.notify_all()
        return ended


class SimulatedRounds(Rounds):
    """The rounds of one simulated site."""

    def __init__(self, sites: SimulatedSites, site: str) -> None:
        """Begin at the first round of the site of this name."""
        self.site, self.site_count, self.ranks = site, len(sites.names), SiteGroup()
        self._sites = sites
        self._meetings = Counter[str]()

    @property
    @override
    def line_seconds(self) -> float:
        """There is no line."""
        return 0.0

    @property
    @override
    def links(self) -> Links | None:
        return self._sites.links

    @override
    def sites_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """All ranks of this process's group are this process."""
        return (self.site,)

    @override
    def agree(self, terms: Terms) -> None:
        said = self._meet("agreement", terms)
        check_terms([(name, said[name]) for name in self._sites.names])

    @override
    def refuse(self, reason: str) -> None:
        """The others hear of it as this site ends."""

    @override
    def due(self, number: int, fragment: int) -> None:
        """Nobody asks when: the sites share their time."""

    @override
    def reduce(
        self, offer: SiteOffer, fragment: Fragment, delta: torch.Tensor, residual: torch.Tensor | None, coding: Coding
    ) -> SimulatedReduction:
        number, counts = offer.round, offer.weight > 0
        board = self._sites.board(number)
        board.offers[self.site] = offer
        seed = number * len(self._sites.names) + self._sites.names.index(self.site)
        frames, new_residual = encode_delta(fragment, delta, residual, coding, seed=seed, counts=counts)
        board.frames[self.site] = frames
        late = self._sites.late(self.site, number)
        return SimulatedReduction(
            self._sites, self.site, number, fragment, new_residual, coding, frames.wire_bytes, late
        )

    @override
    def commit(self, number: int, digest: str) -> None:
        self._sites.commit(self.site, number, digest)

    @override
    def furthest(self, number: int) -> int:
        return max(self._meet("meeting", number).values())

    @override
    def close(self) -> None:
        """Digests were compared as they came."""

    def _meet(self, name: str, what: Said) -> dict[str, Said]:
        self._meetings[name] += 1
        return self._sites.meet(self.site, f"{name} {self._meetings[name]}", what)


@dataclass
class SimulatedReduction(Reduction):
    """A round of one simulated site that is under way: its frames are sent."""

    sites: SimulatedSites
    site: str
    number: int
    fragment: Fragment
    residual: torch.Tensor | None
    coding: Coding
    wire_bytes: int
    late: int
    average: Average | None = None

    @override
    def is_done(self) -> bool:
        """False in as many calls as the result is late: a site asks once a step.

        Then the other sites run, as far as they can without this one; so a result is later only where they do not come
        to the round.
        """
        self.late -= 1
        return self.late < 0 and self.sites.has_arrived(self.site, self.number)

    @override
    def wait(self) -> Average:
        if self.average is None:
            board = self.sites.board(self.number)
            self.sites.wait_for(self.site, board.frames, f"round {self.number}")
            entry = self.sites.decide(self.number)
            self.average = Average(entry, self._values(board, entry), self.residual, self.wire_bytes)
        return self.average

    def _values(self, board: _Board, entry: Entry) -> torch.Tensor | None:
        """The average, through the frames in which it would travel."""
        names, coding = self.sites.names, self.coding
        aggregator = coding.aggregator(names, self.number)
        if aggregator is None:
            return average_frames([board.frames[one] for one in names], self.fragment, entry.weights, coding.averaging)
        regions, frames, values = Regions(names, coding.regions), dict(board.frames), None
        for adder in regions.adders(aggregator):
            parts = regions.parts(adder, aggregator)
            weights = [entry.weight_of(part) for part in parts.values()]
            values = average_frames([frames[one] for one in parts], self.fragment, weights, coding.averaging)
            region = 0 if adder == aggregator else coding.of_region(adder)
            frames[adder] = DeltaFrames(None, None)
            if values is not None:
                frames[adder] = through_frames(values, self.fragment, coding, self.number, region=region)
        return values
