"""The rounds of a run, as its leader opens them, has missing frames fetched, and closes them with what counts.

Pure logic, a part of the `Sequencer`. A round is open for one version of a fragment, in one attempt after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from geocomm.elastic.journal.admission import LedSite
from geocomm.elastic.journal.average_checks import AverageChecks
from geocomm.elastic.journal.claims import Claims
from geocomm.elastic.journal.entries import AnyRound, Counted, FrameBytes, Listed, Round, SumFrame, SummedRound
from geocomm.elastic.journal.frame_ways import FrameWays
from geocomm.elastic.journal.learning_rates import LearningRates
from geocomm.elastic.journal.led_peers import LedPeers
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import (
    Due,
    Hold,
    Offer,
    Open,
    Pass,
    Summed,
)
from geocomm.elastic.journal.open_round import MOST_HOLDS, Charge, OpenRound
from geocomm.elastic.journal.outliers import TIMES, Outliers
from geocomm.elastic.journal.round_charges import RoundCharges
from geocomm.elastic.journal.said_digests import SaidDigests

STARVED_ROUNDS = 4
"""Rounds of a fragment in which a site did not count: its frame came too late, or it had to fetch those of others
before it could make one, and the round was over then. A round waits for it after this many."""
_MOST_GRACES = 8
"""So many times the grace such a round waits at most."""
_ATTEMPTS_OF_A_START = 1 << 24
_STARTS_OF_A_TERM = 1 << 16
_MOST_TERMS = 1 << 20


class LeaderRounds:
    """The rounds of all fragments: `look` does what is due, after each event.

    digests: no round closes while sites repair its fragment. fetch: see `Sequencer`.
    """

    def __init__(self, run: LedRun, digests: SaidDigests, checks: AverageChecks, fetch: str, start: int) -> None:
        self._run, self._checks = run, checks
        self._state, self._sites, self._terms = run.state, run.sites, run.terms
        self._digests = digests
        self._peers = LedPeers(run)
        self._ways = FrameWays(run, self._peers, fetch)
        self._charges = RoundCharges(
            run,
            self._peers,
            self._ways,
            checks,
            self._next_attempt,
            lambda fragment: self._announce(fragment, run.state.live),
            self._grace_s,
        )
        self._open: dict[int, OpenRound] = {}
        """By fragment."""
        self._due: set[int] = set()
        self._claims = Claims(run)
        # No site has seen as high an attempt of an earlier leader: none has to be asked.
        self._first_attempt = (
            run.state.term % _MOST_TERMS * _STARTS_OF_A_TERM + start % _STARTS_OF_A_TERM
        ) * _ATTEMPTS_OF_A_START
        self._attempts: dict[int, int] = {}
        """By fragment: the last attempt."""
        self._least_attempts: dict[int, int] = {}
        """By fragment: offers of earlier attempts are deltas to a state that a skip has changed."""
        self._closed: dict[int, tuple[OpenRound, float]] = {}
        """By fragment: the last round, and until when its frames came in time."""
        self._rates = LearningRates()
        self._outliers = Outliers()
        self.left_out = 0
        """Frames that no round took, since this leader began, since they were far longer than what is usual."""
        begun = any(run.state.versions)
        self._waited_for = frozenset[str]() if begun else run.terms.wait_for - set(run.state.live)
        self._known_grace_s: float | None = None
        """None: it is to be computed anew."""

    # ---- what happens

    def due(self, message: Due) -> None:
        """It is time for a round of a fragment, as the schedule of a site says."""
        if message.version == self._state.versions[message.fragment]:
            self._due.add(message.fragment)

    def offered(self, name: str, offer: Offer) -> None:
        """A site offers a frame."""
        self._in_time(name, offer.fragment, offer.version)
        found = self._open.get(offer.fragment)
        if found is None or found.version != offer.version:
            return
        if offer.attempt < self._least_attempts.get(offer.fragment, 0):
            return
        found.offer(name, offer)
        self._ways.fetch_missing(found, [name], late=self._run.now - found.opened >= self._grace_s())

    def passed(self, name: str, message: Pass) -> None:
        """A site has nothing to offer in this attempt."""
        found = self._open.get(message.fragment)
        if found is not None and found.version == message.version:
            found.passes[name] = max(message.attempt, found.passes.get(name, -1))
        self._in_time(name, message.fragment, message.version)

    def summed(self, name: str, summed: Summed) -> None:
        """A site has the average that it was asked for."""
        found = self._open.get(summed.fragment)
        if found is None or found.version != summed.version:
            return
        charge = self._charges.summed(found, name, summed)
        if charge is not None and charge is found.charge:
            self._ways.pass_on(found, name, summed, [one for one in self._state.live if found.holds(one, summed.frame)])

    def held(self, name: str, hold: Hold) -> None:
        """A frame lies on a site's disk, or does no more."""
        for found in (self._open.get(hold.fragment), self._closed.get(hold.fragment, (None, 0.0))[0]):
            if found is None or found.version != hold.version:
                continue
            if not hold.held:
                found.let_go(name, hold.frame)
                continue
            if not found.hold(name, hold.frame):
                self._run.drop(name, f"it holds more frames of a round than there can be: {MOST_HOLDS}")
                return
            self._ways.held(found, name, hold, in_time=self._run.now <= found.opened + self._grace_s())
            is_wanted = found is self._open.get(hold.fragment) or self._is_listed(hold)
            if is_wanted and (made := found.made(hold.frame)) is not None:
                self._ways.pass_on(found, *made, by=[name])

    def _is_listed(self, hold: Hold) -> bool:
        """Whether the last round of a fragment lists a frame."""
        last = self._state.rounds.get(hold.fragment)
        return last is not None and any(one.frame == hold.frame for one in last.frames)

    def ready(self, name: str) -> None:
        """A site takes part from now on."""
        self._ways.ready(name)
        self._waited_for -= {name}

    def lose_disk(self, name: str) -> None:
        """What a site held is gone."""
        for found in self._open.values():
            found.lose_disk(name)

    def forget(self, name: str) -> None:
        """Nothing that a site has said of open rounds counts."""
        for found in self._open.values():
            found.forget(name)

    def take_back(self, fragment: int, name: str) -> None:
        """What a site has offered of a fragment is a delta to a wrong state."""
        if (found := self._open.get(fragment)) is not None:
            found.take_back(name)

    def void(self, fragment: int) -> None:
        """A skip has changed the state of a fragment: its round begins anew."""
        self._least_attempts[fragment] = self._attempts.get(fragment, self._first_attempt - 1) + 1
        if self._open.pop(fragment, None) is not None:
            # Sites believe it to be open, so none would say again that it is due.
            self._begin(fragment)

    # ---- what is said of them

    def all_open(self) -> tuple[tuple[int, int, int], ...]:
        """(fragment, version, attempt) of each round that is open."""
        return tuple((p, found.version, found.attempt) for p, found in sorted(self._open.items()))

    def has_offer(self, name: str) -> bool:
        """Whether a site has an offer in a round that is open."""
        return any(name in found.offers for found in self._open.values())

    def tell(self, name: str) -> None:
        """A site was welcomed: tell it who takes part, and what is open."""
        self._peers.tell_again(name)
        if name in self._state.live:
            for fragment in sorted(self._open):
                self._announce(fragment, [name])

    # ---- what is done

    def look(self) -> None:
        """Do what is due now, for each fragment."""
        self._known_grace_s = None
        if self._peers.tell():  # who has come meanwhile gets frames too: that changes what is open
            for fragment in sorted(self._open):
                self._announce(fragment, self._state.live)
        for fragment in range(len(self._state.versions)):
            self.look_at(fragment)
            if (found := self._open.get(fragment)) is not None and not self._digests.is_repairing(fragment):
                self._have_fetched(fragment, found)

    def look_at(self, fragment: int, by: str = "") -> None:
        """Open or close the round of a fragment, if that is due now: after each word of a site, which must cost little
        however many sites there are. by: the site; none: time has passed."""
        found = self._open.get(fragment)
        if found is None:
            if fragment in self._due and self._may_open():
                self._begin(fragment)
            return
        if self._digests.is_repairing(fragment):
            return
        if self._charges.are_named:
            self._look_at_charge(fragment, found, by)
            return
        eligible = self._those_that_count(fragment, found, None)
        if eligible is not None and len(eligible) >= self._terms.min_sites:
            self._close(fragment, found, self._without_outliers(fragment, found, eligible))

    def _look_at_charge(self, fragment: int, found: OpenRound, by: str) -> None:
        """What the aggregator has averaged goes to the journal once two sites have it. It is asked for that once the
        frames and averages of regions that count are there."""
        charge = found.charge
        if charge is not None and charge.summed is not None and found.is_safe(charge.summed.frame, self._state.live):
            self._close_summed(fragment, found, charge, charge.summed)
            return
        charge = self._charges.see_to(fragment, found)
        if charge is None or self._waits_for_regions(fragment, found, charge, by):
            return
        eligible = self._those_that_count(fragment, found, charge)
        if eligible is None:
            return
        averages = tuple(one for one in charge.regions if self._charges.is_brought(found, one))
        if len(eligible) + sum(len(one.counted) for one in averages) >= max(1, self._terms.min_sites):
            self._average(fragment, found, charge, eligible, averages)

    def _waits_for_regions(self, fragment: int, found: OpenRound, charge: Charge, by: str) -> bool:
        """Whether an aggregator is to wait for the average of a region. by: who has said something, which may change
        what its own region waits for."""
        own, before = charge.of(by), charge.waits_for
        if by and before is not None:
            waits = own is not charge and self._waits_for_region(fragment, found, own)
            if waits or (before is not own and self._waits_for_region(fragment, found, before)):
                return True
        waiting = [one for one in charge.regions if self._waits_for_region(fragment, found, one)]
        charge.waits_for = waiting[0] if waiting else None
        return bool(waiting)

    def _waits_for_region(self, fragment: int, found: OpenRound, region: Charge) -> bool:
        """Whether the aggregator is to wait for the average of a region. Its head is asked for that once the frames are
        there, and has a grace for it: others of its region are heads in the next rounds."""
        if not region.frames:
            eligible = self._those_that_count(fragment, found, region)
            if eligible:
                region.since = self._run.now
                self._average(fragment, found, region, eligible)
            return eligible is None or bool(region.frames)
        return not self._charges.is_brought(found, region) and self._run.now - region.since < self._grace_s()

    def _those_that_count(self, fragment: int, found: OpenRound, charge: Charge | None) -> dict[str, Offer] | None:
        """The frames that are to be averaged, by all or in a charge; None: it waits for others."""
        grace_s = self._grace_s()
        late = self._run.now - found.opened >= grace_s
        complete = self._is_complete(fragment, found, charge)
        if not late and not complete:
            return None
        eligible = found.eligible(self._state.live, charge)
        waits = (
            self._starved(fragment, found, charge, eligible) and self._run.now - found.opened < _MOST_GRACES * grace_s
        )
        is_over = (late and not waits) or (complete and self._are_newest(found, eligible))
        return eligible if is_over else None

    def _have_fetched(self, fragment: int, found: OpenRound) -> None:
        """Have missing frames fetched, and try again where there are none."""
        grace_s = self._grace_s()
        self._ways.fetch_missing(found, [*found.offers], late=self._run.now - found.opened >= grace_s)
        self._charges.look(fragment, found)
        nothing = found.are_none_anywhere(self._state.live)
        attempt_s = min(self._terms.attempt_s, 2 * grace_s) if nothing else self._terms.attempt_s
        are_any = any(found.eligible(self._state.live, charge) for charge in found.named or (None,))
        if not are_any and self._run.now - found.tried >= attempt_s:
            self._try_again(fragment, found)
            self._announce(fragment, self._state.live)

    def _may_open(self) -> bool:
        return bool(self._state.live) and not self._waited_for and not self._state.ended

    def _begin(self, fragment: int) -> None:
        self._due.discard(fragment)
        attempt = self._next_attempt(fragment)
        self._open[fragment] = OpenRound(self._state.versions[fragment], attempt, self._run.now, self._run.now)
        if self._charges.are_named:
            self._charges.name(fragment, self._open[fragment])
        else:
            self._announce(fragment, self._state.live)

    def _try_again(self, fragment: int, found: OpenRound) -> None:
        found.attempt = self._next_attempt(fragment)
        found.tried = self._run.now

    def _next_attempt(self, fragment: int) -> int:
        self._attempts[fragment] = self._attempts.get(fragment, self._first_attempt - 1) + 1
        return self._attempts[fragment]

    def _announce(self, fragment: int, to: Iterable[str]) -> None:
        """Tell sites that a round is open; not before its aggregator is named, else they send their frames to all."""
        found = self._open[fragment]
        charge = found.charge
        if charge is None and self._charges.are_named:
            return
        message = Open(
            fragment=fragment,
            version=found.version,
            attempt=found.attempt,
            peers=self._peers.live,
            aggregator=None if charge is None else charge.by,
            adders=() if charge is None else tuple(one.by for one in charge.regions),
        )
        for name in to:
            if self._sites[name].welcomed:
                self._run.send(name, message)

    # ---- what a round waits for

    def _in_time(self, name: str, fragment: int, version: int) -> None:
        """Whether a site is waited for follows from whether it comes within the grace, also where nobody waited."""
        found = self._open.get(fragment)
        closed, until = self._closed.get(fragment, (None, 0.0))
        if found is not None and found.version == version:
            until = found.opened + self._grace_s()
        elif closed is None or closed.version != version:
            return
        if self._run.now <= until:
            self._sites[name].late = False

    def _is_complete(self, fragment: int, found: OpenRound, charge: Charge | None) -> bool:
        """Whether everybody who is waited for has offered, or passed, and who averages holds what was offered."""
        looked = found if charge is None else charge
        if looked.lags and self._lags(fragment, found, charge, looked.lags):
            return False
        names = self._state.live if charge is None or not charge.region else charge.region
        looked.lags = next((name for name in names if self._lags(fragment, found, charge, name)), "")
        return not looked.lags

    def _lags(self, fragment: int, found: OpenRound, charge: Charge | None, name: str) -> bool:
        if not self._state.is_live(name) or found.charge_of(name) is not charge:
            return False
        site = self._sites[name]
        waits = not site.late or site.missed.get(fragment, 0) >= STARVED_ROUNDS
        if waits and site.leaving is None and not found.has_tried(name):
            return True
        return (charge is None or charge.by.site == name) and self._ways.may_come(found, name)

    def _are_newest(self, found: OpenRound, eligible: Mapping[str, Offer]) -> bool:
        """Whether the newest frames of all live sites are eligible; for who averages nothing else is waited for."""
        if found.charge is not None:
            return True
        return all(eligible.get(name) is found.offers[name][-1] for name in self._state.live if name in found.offers)

    def _starved(self, fragment: int, found: OpenRound, charge: Charge | None, eligible: Mapping[str, Offer]) -> bool:
        """Whether a site has offered whose frames have come too late for long: else it would never count."""
        return any(
            name in found.offers
            and name not in eligible
            and found.charge_of(name) is charge
            and self._sites[name].leaving is None
            and self._sites[name].missed.get(fragment, 0) >= STARVED_ROUNDS
            for name in self._state.live
        )

    def _grace_s(self) -> float:
        """Half a cycle of the fastest live site."""
        if self._known_grace_s is None:
            self._known_grace_s = self._new_grace_s()
        return self._known_grace_s

    def _new_grace_s(self) -> float:
        beats = [self._sites[name].beat for name in self._state.live if name in self._sites]
        steps = [beat.step_s for beat in beats if beat is not None and beat.step_s > 0]
        return max(self._terms.least_grace_s, self._state.every * min(steps, default=0.0) / 2)

    def _without_outliers(self, fragment: int, found: OpenRound, eligible: Mapping[str, Offer]) -> dict[str, Offer]:
        """What is to be averaged waits no longer: these frames count, but for those that are far too long."""
        left_out = self._outliers.take(fragment, eligible, max(1, self._terms.min_sites))
        self.left_out += len(left_out)
        for name, (length, usual) in left_out.items():
            found.left_out.add(eligible[name].frame)
            self._run.log(
                f"{name}: its delta of fragment {fragment} in round {found.version} is left out: it is {length:.3g} "
                f"long, over {TIMES:g} times the {usual:.3g} that is usual there and at the others. The next one "
                "counts. Look at the loss of that site; its ranks begin with the run's weights when they start again"
            )
        return {name: offer for name, offer in eligible.items() if name not in left_out}

    def _average(
        self,
        fragment: int,
        found: OpenRound,
        charge: Charge,
        eligible: Mapping[str, Offer],
        averages: tuple[Charge, ...] = (),
    ) -> None:
        """Ask for the average of these frames, and of the averages of these regions."""
        chosen = self._without_outliers(fragment, found, eligible)
        charge.take(self._claims.listed(chosen), averages)
        self._charges.ask(fragment, found, charge)

    def _close(self, fragment: int, found: OpenRound, chosen: Mapping[str, Offer]) -> None:
        """These frames are safe, and all average them: the round is decided."""
        members = self._claims.listed(chosen)
        self._end_round(fragment, found, chosen, members)
        self._append_round(Round, fragment, found, chosen, members=members)

    def _close_summed(self, fragment: int, found: OpenRound, charge: Charge, summed: Summed) -> None:
        """The average of the chosen frames is safe: the round is decided."""
        listed = charge.counted
        frames = {one.site: one.frame for one in listed}
        chosen = {name: next(one for one in found.offers[name] if one.frame == frame) for name, frame in frames.items()}
        self._end_round(fragment, found, chosen, listed)
        total = sum(one.weight for one in listed)
        self._append_round(
            SummedRound,
            fragment,
            found,
            chosen,
            members=tuple(
                Counted(site=one.site, frame=one.frame[:16], weight=one.weight, step=one.step, taken=one.taken)
                for one in listed
            ),
            sum=SumFrame(site=charge.by.site, **summed.model_dump(include=set(FrameBytes.model_fields))),
            squared_norm=sum(one.weight * one.squared_norm for one in listed) / total,
        )
        self._checks.decided(found, fragment, (*charge.averages, charge))

    def _end_round(
        self, fragment: int, found: OpenRound, chosen: Mapping[str, Offer], members: Iterable[Listed]
    ) -> None:
        """Learn who was late, and whose frames; and what the members count for."""
        self._claims.counted(members)
        average = {one.by.site for one in found.named} or {*self._state.live}
        for name in self._state.live:
            site = self._sites[name]
            if site.leaving is None and not found.has_tried(name) and name not in chosen:
                site.late = True
            passed = found.has_tried(name) and name not in found.offers
            self._count_missed(fragment, site, passed=passed, counts=name in chosen)
            if name in average:
                self._ways.ended(found, name)
        del self._open[fragment]
        self._closed[fragment] = (found, found.opened + self._grace_s())
        self._due.discard(fragment)

    def _append_round(
        self,
        kind: Callable[..., AnyRound],
        fragment: int,
        found: OpenRound,
        chosen: Mapping[str, Offer],
        **fields: Any,
    ) -> None:
        every = self._claims.every(chosen)
        for told in self._rates.take(chosen, self._state.every):
            self._run.log(told)
        self._run.append(
            kind,
            fragment=fragment,
            version=found.version,
            every=0 if every == self._state.every and self._state.every_is_said else every,
            base=self._digests.base(fragment, found.version),
            **fields,
        )

    @staticmethod
    def _count_missed(fragment: int, site: LedSite, *, passed: bool, counts: bool) -> None:
        missed = site.missed.get(fragment, 0)
        if counts or missed >= STARVED_ROUNDS:
            site.missed[fragment] = 0
        elif not passed:
            site.missed[fragment] = missed + 1
