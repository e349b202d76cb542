"""Several sites in one process: rounds with the real codecs and no network, for experiments and tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from geocomm.core.errors import InvalidArgumentError, OperationTimeoutError, PeerLostError, ReplicaMismatchError
from geocomm.local_sgd.delta_frames import DeltaFrames, average_frames, encode_delta
from geocomm.local_sgd.fragments import Fragment
from geocomm.local_sgd.host_memory import Scratch
from geocomm.local_sgd.rounds import Average, Coding, Entry, Offer, Rounds, Terms, check_terms, decide
from geocomm.local_sgd.site_ranks import SiteRanks

Result = TypeVar("Result")


@dataclass
class _Board:
    """What the sites have said about one round."""

    offers: dict[str, Offer] = field(default_factory=dict)
    frames: dict[str, DeltaFrames] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)


class SimulatedSites:
    """Sites that share a process. Each trains on its own thread, one at a time: the turn changes where a site waits.

    Every site decodes the frames of all sites by itself, in the same order. Membership is fixed: a site that ends
    early fails the rounds of the others.
    """

    def __init__(self, names: Sequence[str], *, timeout_s: float = 600.0) -> None:
        """names: of the sites, in the order in which deltas are added. timeout_s: the most that a site waits."""
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(f"sites are {list(names)}; give one or more different names")
        self.names = tuple(names)
        self.committed: list[Entry] = []
        """The entries of the rounds that all sites have committed, in their order."""
        self._timeout_s = timeout_s
        self._turn = threading.Condition()
        self._boards: dict[int, _Board] = {}
        self._terms: list[dict[str, Terms]] = []
        self._left: set[str] = set()

    def run(self, train: Callable[[Rounds], Result]) -> list[Result]:
        """Call `train` once for each site, with the site's `Rounds`; returns the results in the order of the names.

        Raises what the first site that failed has raised. The generator of torch.manual_seed is one for all sites.
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

        self._boards, self._terms, self._left = {}, [], set()
        threads = [threading.Thread(target=run_site, args=(name,), name=f"site-{name}") for name in self.names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [results[name] for name in self.names]

    def agree(self, site: str, number: int, terms: Terms) -> None:
        """The `number`-th agreement of the sites."""
        while len(self._terms) <= number:
            self._terms.append({})
        said = self._terms[number]
        said[site] = terms
        self._wait_for(said, f"agreement {number}")
        check_terms([(name, said[name]) for name in self.names])

    def propose(self, site: str, offer: Offer) -> None:
        """A site's offer."""
        self._board(offer.round).offers[site] = offer

    def send(self, site: str, number: int, frames: DeltaFrames) -> None:
        """A site's frames."""
        self._board(number).frames[site] = frames
        self._turn.notify_all()

    def receive(self, number: int) -> tuple[Entry, list[DeltaFrames]]:
        """The frames of all sites, in their order, once all are there."""
        board = self._board(number)
        self._wait_for(board.frames, f"round {number}")
        entry = decide([(name, board.offers[name]) for name in self.names])
        return entry, [board.frames[name] for name in self.names]

    def commit(self, site: str, number: int, digest: str) -> None:
        """What a site's fragment is after a round."""
        board = self._board(number)
        board.digests[site] = digest
        for name, other in board.digests.items():
            if other != digest:
                raise ReplicaMismatchError(
                    f"local steps: after round {number} the fragment is {digest} at site {site!r} and {other} at site "
                    f"{name!r}"
                )
        if len(board.digests) == len(self.names):
            if board.offers:
                self.committed.append(decide([(name, board.offers[name]) for name in self.names]))
            del self._boards[number]

    def _board(self, number: int) -> _Board:
        return self._boards.setdefault(number, _Board())

    def _wait_for(self, said: dict[str, object] | dict[str, DeltaFrames] | dict[str, Terms], what: str) -> None:
        """Until every site has said something; the turn is another's meanwhile."""
        self._turn.notify_all()

        def missing() -> list[str]:
            return [name for name in self.names if name not in said]

        ended = self._turn.wait_for(lambda: not missing() or set(missing()) & self._left, self._timeout_s)
        if not missing():
            return
        if not ended:
            raise OperationTimeoutError(f"{what}: nothing from sites {missing()} in {self._timeout_s:g} s")
        raise PeerLostError(f"{what}: sites {sorted(set(missing()) & self._left)} ended before it")


class SimulatedRounds:
    """The rounds of one simulated site."""

    def __init__(self, sites: SimulatedSites, site: str) -> None:
        """Of the site of this name."""
        self.ranks = SiteRanks()
        self._sites = sites
        self._site = site
        self._agreements = 0
        self._weights: dict[int, int] = {}
        self._scratch = Scratch()

    @property
    def site(self) -> str:
        """The name of this site."""
        return self._site

    @property
    def line_seconds(self) -> float:
        """See `Rounds`; there is no line."""
        return 0.0

    def sites_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """See `Rounds`; all ranks of this process's group are this process."""
        return (self._site,)

    def agree(self, terms: Terms) -> None:
        """See `Rounds`."""
        self._agreements += 1
        self._sites.agree(self._site, self._agreements - 1, terms)

    def refuse(self, reason: str) -> None:
        """See `Rounds`; the others hear of it as this site ends."""

    def propose(self, offer: Offer) -> None:
        """See `Rounds`."""
        self._weights[offer.round] = offer.weight
        self._sites.propose(self._site, offer)

    def reduce(
        self, number: int, fragment: Fragment, delta: torch.Tensor, residual: torch.Tensor | None, coding: Coding
    ) -> SimulatedReduction:
        """See `Rounds`."""
        counts = self._weights.pop(number) > 0
        place = (self._sites.names.index(self._site), len(self._sites.names))
        frames, new_residual = encode_delta(number, fragment, delta, residual, coding, place=place, counts=counts)
        self._sites.send(self._site, number, frames)
        return SimulatedReduction(
            self._sites, number, fragment, delta, new_residual, coding, self._scratch, frames.wire_bytes
        )

    def commit(self, number: int, digest: str) -> None:
        """See `Rounds`."""
        self._sites.commit(self._site, number, digest)

    def furthest(self, number: int) -> int:
        """See `Rounds`; no result is late here, so all sites that have taken as many steps have the same number."""
        return number

    def close(self) -> None:
        """See `Rounds`; digests were compared as they came."""


class SimulatedReduction:
    """A round of one simulated site that is under way."""

    def __init__(
        self,
        sites: SimulatedSites,
        number: int,
        fragment: Fragment,
        delta: torch.Tensor,
        residual: torch.Tensor | None,
        coding: Coding,
        scratch: Scratch,
        wire_bytes: int,
    ) -> None:
        """The frames are sent; the average takes the place of `delta`."""
        self._sites = sites
        self._number = number
        self._fragment = fragment
        self._delta = delta
        self._residual = residual
        self._coding = coding
        self._scratch = scratch
        self._wire_bytes = wire_bytes
        self._average: Average | None = None

    def is_done(self) -> bool:
        """True: the other sites run while this one waits, so no result is late here."""
        return True

    def wait(self) -> Average:
        """See `Reduction`."""
        if self._average is None:
            entry, frames = self._sites.receive(self._number)
            values = None
            if any(entry.weights):
                values = self._delta
                average_frames(frames, self._fragment, entry.weights, self._coding.averaging, self._scratch, values)
            self._average = Average(entry, values, self._residual, self._wire_bytes)
        return self._average
