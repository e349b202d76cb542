"""Rounds over the geocomm backend: between the sites of the default process group."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from typing_extensions import override

from geocomm.core.errors import InvalidArgumentError, OperationTimeoutError, ReplicaMismatchError
from geocomm.core.link_table import Links
from geocomm.core.patience import Patience
from geocomm.group.backend.runtime import ReservedTags, runtime
from geocomm.group.backend.sites import sites
from geocomm.group.membership import roll_call
from geocomm.group.planning.regions import Regions, Relay
from geocomm.sync.local_steps.fixed.exchanges import Exchange, result_of
from geocomm.sync.local_steps.fixed.round_exchange import RoundExchange
from geocomm.sync.local_steps.fixed.site_messages import Digest
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.site_group import SiteGroup
from geocomm.sync.local_steps.outer.round_records import ROUNDS, RoundRecord
from geocomm.sync.local_steps.outer.rounds import (
    Coding,
    Rounds,
    SiteOffer,
    Terms,
    check_terms,
    log_wait,
)
from geocomm.sync.local_steps.outer.schedule import LineClock

_FIRST = 0
"""The fragment whose owner is the first rank of its site."""
_AGREE_S = 300.0


class GroupRounds(Rounds):
    """The rounds of one rank. Every rank of the default process group makes one, in the same order.

    The ranks of a site train one model. With p places that every site has, the rank at place f % p of each site owns
    fragment f: so the ranks of a site share the work and the memory.

    One thread exchanges the frames of all sites, so that a round holds up no step; many rounds of a rank are under way
    at a time (`RoundExchange`). Every site decodes the same frames in the same order: averages have equal bits
    everywhere, and equal those of SimulatedSites. Each site sends its frame to every other one, which suits a few
    sites, or to an aggregator (`Coding.aggregator`). Where the links between two sites are slow, a third one passes on
    what goes to all (`Links.relays`).

    A wait for another site is logged after 10 s, with its name. It ends with an error after the time-out of the process
    group (`agree`: after 300 s at most).
    """

    def __init__(self) -> None:
        """Waits for no other site, and for the other ranks of this one where its process group is made (`sites`).

        Raises InvalidArgumentError where the default process group is not geocomm's, or has one site only.
        """
        world = runtime.world
        if world is None or world.backend.closed:
            raise InvalidArgumentError(
                'local steps need the default process group: init_process_group("geocomm") before local_steps()'
            )
        self._sites = found = sites()
        self.site, self.site_count = found.name, len(found.names)
        if self.site_count < 2:
            raise InvalidArgumentError(
                "local steps need two sites or more, and all ranks are at one; GEOCOMM_SITE names the site of a rank"
            )
        self._world = world
        self._agree_timeout = min(world.timeout, timedelta(seconds=_AGREE_S))
        self._digests = _Digests()
        self._line = LineClock()
        tags = ReservedTags.take(world)
        self._call_prefix = f"local_steps/{tags.number}"
        self._agreements = 0
        self._exchange: RoundExchange | None = None
        if found.place < found.common_places:
            relays = _relays(self.links, found.names)
            self._exchange = RoundExchange(
                found.same_place, found.name, relays, tags, world.timeout, self._line, self._digests.check
            )
        # Every rank asks for the group of its site, or none does.
        inside = found.inside if max(map(len, found.ranks)) > 1 else None
        self.ranks = SiteGroup(inside if len(found.own) > 1 else None, found.place, found.common_places)
        self._records: dict[int, RoundRecord] = {}

    @property
    @override
    def line_seconds(self) -> float:
        return self._line.seconds

    @property
    @override
    def links(self) -> Links | None:
        return None if self._world.policy is None else self._world.policy.links

    @override
    def sites_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        return self._sites.names_of(ranks)

    @override
    def agree(self, terms: Terms) -> None:
        """Two round trips to the store. Raises OperationTimeoutError for ranks that do not come."""
        records = self._call({name: dict(value) for name, value in vars(terms).items()})
        for rank, record in enumerate(records):
            if "error" in record:
                raise InvalidArgumentError(f"local steps: {self._sites.describe(rank)} cannot begin: {record['error']}")
        check_terms([(self._name(rank), Terms(**record)) for rank, record in enumerate(records)])

    @override
    def refuse(self, reason: str) -> None:
        self._agreements += 1
        roll_call.publish(self._world.store, self._call_name(), self._sites.rank, {"error": reason})

    @override
    def due(self, number: int, fragment: int) -> None:
        self._record(number, fragment).due()

    @override
    def reduce(
        self, offer: SiteOffer, fragment: Fragment, delta: torch.Tensor, residual: torch.Tensor | None, coding: Coding
    ) -> Exchange:
        record = self._record(offer.round, offer.fragment)
        record.begun(offer.step, offer.weight, last=offer.last)
        return self._owned().begin(offer, self._digests.latest, fragment, delta, residual, coding, record)

    @override
    def furthest(self, number: int) -> int:
        def ask() -> list[int]:
            return [result_of(self._owned().ask(number), "the exchange of where the sites are")]

        (found,) = self.ranks.by_owner(_FIRST, ask if self._sites.is_first else None, 1)
        return found

    @override
    def commit(self, number: int, digest: str) -> None:
        self._digests.add(number, digest)
        if record := self._records.pop(number, None):  # a resumed site may commit what it reduced before
            record.applied()

    @override
    def close(self) -> None:
        """Ends the thread."""
        if self._exchange is not None:
            try:
                result_of(self._exchange.end(self._digests.latest), "the end of the run")
            finally:
                self._exchange.stop()

    def _owned(self) -> RoundExchange:
        if self._exchange is None:
            raise InvalidArgumentError(
                f"local steps: {self._sites.describe(self._sites.rank)} has no counterpart at every site, so it owns "
                "no fragment"
            )
        return self._exchange

    def _record(self, number: int, fragment: int) -> RoundRecord:
        if number not in self._records:
            self._records[number] = ROUNDS.open(fragment, number, elastic=False)
        return self._records[number]

    def _call(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        self._agreements += 1
        patience = Patience()

        def waits_for(ranks: Sequence[int]) -> None:
            log_wait(patience, "local_steps()", self._names(ranks))

        try:
            return roll_call.gather(
                self._world.store,
                self._call_name(),
                self._sites.rank,
                len(self._world.infos),
                record,
                self._agree_timeout,
                waits_for,
            )
        except roll_call.Absent as absent:
            raise OperationTimeoutError(
                f"local steps: {self._names(absent.ranks)} did not call local_steps() within "
                f"{self._agree_timeout.total_seconds():g} s; every rank of every site calls it"
            ) from absent

    def _call_name(self) -> str:
        return f"{self._call_prefix}/{self._agreements}"

    def _names(self, ranks: Sequence[int]) -> str:
        return ", ".join(map(self._name, ranks))

    def _name(self, rank: int) -> str:
        (site,) = self._sites.names_of([rank])
        alone = len(self._sites.ranks[self._sites.names.index(site)]) == 1
        return site if alone else f"{site} (rank {rank})"


def _relays(links: Links | None, sites: Sequence[str]) -> list[Relay]:
    """The ways over a third site: by regions where there are some, else where that is faster."""
    if links is None:
        return []
    return Regions(sites, links.by_region()).relays() or links.relays()


class _Digests:
    """What this rank has committed, compared with what the other sites say in the headers of later rounds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: dict[int, str] = {}
        self._said: dict[int, list[tuple[str, str]]] = {}
        self._keep = 64  # no site is that many rounds behind: a fragment has one round under way
        self.latest: Digest | None = None

    def add(self, number: int, digest: str) -> None:
        """Raises ReplicaMismatchError where a site has said something else."""
        with self._lock:
            self._own[number] = digest
            self._own.pop(number - self._keep, None)
            self.latest = (number, digest)
            said = self._said.pop(number, [])
        for site, other in said:
            self._compare(site, number, other, digest)

    def check(self, site: str, said: Digest | None) -> None:
        """What a site has said; None: nothing yet."""
        if said is None:
            return
        number, digest = said
        with self._lock:
            own = self._own.get(number)
            latest = -1 if self.latest is None else self.latest[0]
            if own is None and latest < number <= latest + self._keep:
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
