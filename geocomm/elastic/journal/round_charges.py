"""Who averages the frames of a round for all, and in its regions: named, asked, asked again, and replaced.

Pure logic, a part of the `LeaderRounds`. Where sites share regions, a head in each other region averages the frames of
its sites for the aggregator, so one frame of a region crosses to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from geocomm.elastic.journal.average_checks import AverageChecks
from geocomm.elastic.journal.frame_ways import FrameWays
from geocomm.elastic.journal.led_peers import LedPeers
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import Aggregator, Sum, Summed
from geocomm.elastic.journal.open_round import Charge, OpenRound

PATIENT_GRACES = 4
"""So many times the grace an aggregator has for its average, from the first offer on: then another one is named."""


class RoundCharges:
    """A part of the `LeaderRounds`. next_attempt: of a fragment. announce: tells all sites of an open round. grace_s:
    see `LeaderRounds`."""

    def __init__(
        self,
        run: LedRun,
        peers: LedPeers,
        ways: FrameWays,
        checks: AverageChecks,
        next_attempt: Callable[[int], int],
        announce: Callable[[int], None],
        grace_s: Callable[[], float],
    ) -> None:
        self._run, self._peers, self._ways, self._checks = run, peers, ways, checks
        self._next_attempt, self._announce, self._grace_s = next_attempt, announce, grace_s

    @property
    def are_named(self) -> bool:
        """Whether one site averages for all in this run."""
        return self._setting("reduce") == "aggregator"

    def see_to(self, fragment: int, found: OpenRound) -> Charge | None:
        """Who is to be asked for the average of all, once what it is made of is there; one is named where nobody
        averages. None: it has been asked, or nobody can average."""
        charge = found.charge
        if charge is None or not self._run.state.is_live(charge.by.site) or self._lacks_head(found, charge):
            charge = self.name(fragment, found)
        return None if charge is None or charge.frames else charge

    def name(self, fragment: int, found: OpenRound) -> Charge | None:
        """Name an aggregator: sites take turns over the fragments and the rounds of each."""
        live, before = self._run.state.live, "" if found.charge is None else found.charge.by.site
        able = self._able(live)
        others = [name for name in able if name != before] or able or live
        turn = fragment + found.version + found.charges
        found.charge = None
        if not others:
            return None
        name = others[turn % len(others)]
        if found.charges:
            late = "in time" if before in live else "and is away"
            why = f"{before} has not averaged it {late}" if before else "what it was made of has changed"
            self._run.log(f"round {found.version} of fragment {fragment}: {why}, {name} averages it now")
        found.charges += 1
        regions = tuple(
            Charge(self._by(fragment, heads[turn % len(heads)]), self._run.now, region)
            for region in self._regions_but(name)
            if (heads := self._able(one for one in live if one in region))
        )
        found.charge = Charge(self._by(fragment, name), self._run.now, regions=regions)
        self._announce(fragment)
        return found.charge

    def ask(self, fragment: int, found: OpenRound, charge: Charge) -> None:
        """Ask a site for the average of what its charge has."""
        charge.asked = self._run.now
        asked = Sum(fragment=fragment, version=found.version, attempt=charge.by.attempt, members=charge.frames)
        self._run.send(charge.by.site, asked)

    def is_brought(self, found: OpenRound, region: Charge) -> bool:
        """Whether the average of a region lies on the disk of the aggregator."""
        to, summed = found.charge, region.summed
        return to is not None and summed is not None and found.holds(to.by.site, summed.frame)

    def summed(self, found: OpenRound, name: str, summed: Summed) -> Charge | None:
        """A site has an average that it was asked for: its charge. What is no delta does not count. None: it was not
        asked, or nothing of it counts, and what was averaged so far is of no use."""
        by = Aggregator(site=name, attempt=summed.attempt)
        charge = next((one for one in found.named if one.by == by), None)
        if charge is None or not charge.frames or charge.summed is not None:
            return None
        unsound = {one.site for one in charge.frames if one.site not in summed.counts}
        of_round = f"fragment {summed.fragment} in round {summed.version}"
        for one in charge.members:
            if one.site in unsound:
                found.left_out.add(one.frame)
                self._run.log(
                    f"{one.site}: its frame of {of_round} is no delta of it, says {name}, which averages: it does not "
                    "count"
                )
        for region in charge.averages:
            if region.by.site in unsound:
                found.left_out.update(one.frame for one in region.members)
                self._checks.distrusted.add(region.by.site)
                self._run.log(
                    f"{region.by.site}: its average of its region's frames of {of_round} is no delta of it, says "
                    f"{name}, which averages: they do not count, and it averages no more under this leader"
                )
        if len(unsound) == len(charge.frames):
            found.charge = None
            return None
        charge.summed = summed
        found.hold(name, summed.frame)
        return charge

    def look(self, fragment: int, found: OpenRound) -> None:
        """Time has passed: ask sites again, have averages brought to another disk, or name others."""
        charge, now = found.charge, self._run.now
        if charge is None:
            return
        if not found.offers:
            charge.since = now
        if now - charge.since >= PATIENT_GRACES * self._grace_s() and len(self._run.state.live) > 1:
            self.name(fragment, found)
            return
        for one in found.named:
            if now - one.asked < self._run.terms.fetch_again_s:
                continue
            if one.summed is None:
                if one.frames:
                    self.ask(fragment, found, one)
            elif one is charge:
                one.asked = now
                self._ways.bring_average(found, one.by.site, one.summed)
            elif not self.is_brought(found, one):
                one.asked = now
                self._ways.bring_to_aggregator(found, charge.by.site, one)

    def _setting(self, name: str) -> str | None:
        genesis = self._run.state.genesis
        return None if genesis is None else genesis.settings.get(name)

    def _able(self, names: Iterable[str]) -> list[str]:
        """Those of the sites that can average, and were not found to do so wrong, where there are others."""
        sites = self._run.sites
        able = [name for name in names if sites[name].has_ranks and sites[name].leaving is None]
        return [name for name in able if name not in self._checks.distrusted] or able

    def _by(self, fragment: int, name: str) -> Aggregator:
        return Aggregator(site=name, attempt=self._next_attempt(fragment))

    def _regions_but(self, aggregator: str) -> list[tuple[str, ...]]:
        """The regions of which several sites take part, but for the aggregator's own. A mean of means is the mean; of
        other averages it is none."""
        if self._setting("averaging") == "radial":
            return []
        live, own = set(self._run.state.live), self._peers.region(aggregator)
        return [region for region in self._peers.regions if region != own and len(live.intersection(region)) > 1]

    def _lacks_head(self, found: OpenRound, charge: Charge) -> bool:
        """Whether a head is away that was to average its region, and what it made is not with the aggregator."""
        is_live = self._run.state.is_live
        return not charge.frames and any(
            not is_live(one.by.site) and not self.is_brought(found, one) for one in charge.regions
        )
