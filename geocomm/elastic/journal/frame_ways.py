"""How the frames of open rounds come to sites, as the leader sees it: by mail, by fetching, or too late.

Pure logic, a part of the `LeaderRounds`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from geocomm.elastic.journal.led_peers import LedPeers
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import Fetch, Hold, Offer, Summed
from geocomm.elastic.journal.open_round import Charge, OpenRound

_CYCLES_WITHOUT_MAIL = 2
"""Without any frame by mail from a site to another for this time, agents fetch at once."""


class FrameWays:
    """What is known of the way from each site to each other, and what is to be fetched. fetch: see `Sequencer`."""

    def __init__(self, run: LedRun, peers: LedPeers, fetch: str) -> None:
        self._run, self._peers, self._fetch = run, peers, fetch
        self._late_pairs: set[tuple[str, str]] = set()
        """(holder, maker): the frame did not come within the grace in the last round, by mail or by fetching."""
        self.unmailed: dict[tuple[str, str], int] = {}
        """By (holder, maker): rounds since any frame came by mail, late or not; of those in which it was to."""

    def ready(self, name: str) -> None:
        """A site takes part from now on."""
        self._late_pairs = {pair for pair in self._late_pairs if name not in pair}

    def held(self, found: OpenRound, name: str, hold: Hold, *, in_time: bool) -> None:
        """A frame of a round lies on a site's disk; in_time: within the grace."""
        if hold.by_mail:
            found.mailed.add((name, hold.frame))
            self.unmailed.pop((name, hold.site), None)
        if in_time:
            self._late_pairs.discard((name, hold.site))

    def ended(self, found: OpenRound, name: str) -> None:
        """A round is over: learn which frames had not come to a site, and which not by mail."""
        self._late_pairs.update((name, maker) for maker in found.lacks(name))
        for maker in found.makers_for(name):
            offer = found.offers[maker][-1]
            is_to_come = name != maker and self._is_mailed(found, offer, maker, name)
            if is_to_come and (name, offer.frame) not in found.mailed:
                self.unmailed[name, maker] = self.unmailed.get((name, maker), 0) + 1

    def may_come(self, found: OpenRound, name: str) -> bool:
        """Whether a site lacks a frame that may come within the grace: it did in the last round."""
        live = self._run.state.live
        return any(
            (name, maker) not in self._late_pairs and found.is_anywhere(found.offers[maker][-1].frame, live)
            for maker in found.lacks(name)
        )

    def fetch_missing(self, found: OpenRound, makers: Iterable[str], *, late: bool) -> None:
        """What did not come by mail within the grace is fetched: from who has it, or through the leader's agent.

        Where no mail has come for long, or none is sent since a site of the same region has the frame, nobody waits for
        the grace. late: it has passed.
        """
        for maker in makers:
            charge = found.charge_of(maker)
            to = self._run.state.live if charge is None else [charge.by.site]
            self._fetch_by(to, found, maker, found.offers[maker][-1], late=late)

    def bring_to_aggregator(self, found: OpenRound, to: str, charge: Charge) -> None:
        """The mail has not brought it the average of a region."""
        if charge.summed is not None:
            self._fetch_by([to], found, charge.by.site, charge.summed, late=True)

    def pass_on(self, found: OpenRound, maker: str, made: Offer | Summed, by: Iterable[str]) -> None:
        """Those that get no mail of a frame fetch it from these sites of their region, which have it."""
        live = self._run.state.live
        for holder in by:
            region = self._peers.region(holder)
            if len(region) > 1:
                self._fetch_by([name for name in live if name in region], found, maker, made, late=False)

    def _fetch_by(self, to: Iterable[str], found: OpenRound, maker: str, made: Offer | Summed, *, late: bool) -> None:
        live, without_mail = self._run.state.live, _CYCLES_WITHOUT_MAIL * len(self._run.state.versions)

        def waits(name: str) -> bool:
            has_mail = self.unmailed.get((name, maker), 0) < without_mail
            return not late and has_mail and not self._is_beside(found, made, maker, name)

        lack = [name for name in to if not found.holds(name, made.frame) and not waits(name)]
        if not lack:
            return
        sources = self._sources(name for name in live if found.holds(name, made.frame))
        for name in lack:
            asked = found.fetches.get((name, made.frame), -math.inf)
            if sources and self._run.now - asked >= self._run.terms.fetch_again_s:
                self._have_fetched_by(name, found, maker, made, sources)

    def _is_mailed(self, found: OpenRound, made: Offer | Summed, maker: str, name: str) -> bool:
        """Whether a frame that a site is to have comes by mail: to who averages it does."""
        charge = found.charge
        is_for_all = charge is None or made is charge.summed
        return not is_for_all or name in self._peers.mailed(maker, made.fragment)

    def _is_beside(self, found: OpenRound, made: Offer | Summed, maker: str, name: str) -> bool:
        """Whether a frame does not go to a site by mail, and another one of its region has it."""
        region = self._peers.region(name)
        if len(region) == 1 or self._is_mailed(found, made, maker, name):
            return False
        return any(found.holds(other, made.frame) for other in region if other in self._run.state.live)

    def bring_average(self, found: OpenRound, aggregator: str, summed: Summed) -> None:
        """The mail has not brought it to anybody: one more site fetches it."""
        sources = self._sources([aggregator])
        lack = [one for one in self._run.state.live if not found.holds(one, summed.frame)]
        asked = {one: found.fetches.get((one, summed.frame), -math.inf) for one in lack}
        if lack and sources:
            near = self._peers.region(aggregator)
            first = min(lack, key=lambda one: (asked[one], one not in near))
            self._have_fetched_by(first, found, aggregator, summed, sources)

    def _sources(self, holders: Iterable[str]) -> tuple[str, ...]:
        """host:port of agents that have a frame, and of the one that gets what others have."""
        addresses = [self._run.sites[name].fetch for name in holders] + [self._fetch]
        return tuple(address for address in addresses if address)

    def _have_fetched_by(
        self, name: str, found: OpenRound, maker: str, made: Offer | Summed, sources: tuple[str, ...]
    ) -> None:
        """A site is to fetch a frame of this round."""
        found.fetches[name, made.frame] = self._run.now
        self._run.send(
            name,
            Fetch(
                fragment=made.fragment,
                version=found.version,
                site=maker,
                frame=made.frame,
                bytes=made.size,
                sources=sources,
            ),
        )
