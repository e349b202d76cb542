"""The leader's decisions, as pure logic: events of the sites in, actions out. It knows no sockets, files or clocks.

The caller owns the connections and the journal. It carries out the actions in their order; an `Append` is durable
before anything after it is done. Where an append fails, the caller ends: the next leader starts from the journal.

What is kept here beside the journal's state may be lost at any time: sites say it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from geocomm.journal.admission import LedSite, difference, other_chain, refusal, supersedes
from geocomm.journal.entries import (
    Away,
    Digest,
    End,
    Entry,
    Genesis,
    Hash,
    Join,
    Kept,
    Left,
    Listed,
    Ready,
    Removed,
    Round,
    Skip,
    Snapshot,
)
from geocomm.journal.learning_rates import LearningRates
from geocomm.journal.messages import (
    Applied,
    Beat,
    Down,
    Due,
    EntrySaid,
    Fetch,
    Hello,
    Hold,
    Leave,
    Lost,
    Offer,
    Open,
    Pass,
    Peer,
    RanksGone,
    RanksUp,
    ReadySaid,
    Refused,
    Repair,
    SnapshotHeld,
    Stop,
    Up,
    Welcome,
)
from geocomm.journal.open_round import OpenRound
from geocomm.journal.run_state import RunState, Standing
from geocomm.journal.said_digests import SaidDigests
from geocomm.journal.sequencer_events import (
    Action,
    Append,
    Came,
    Close,
    Ended,
    Event,
    Log,
    Remove,
    Said,
    Send,
    SendEntries,
    Terms,
    Tick,
)

STARVED_ROUNDS = 4
"""Of a fragment, in which a site's offer did not count because its frame came too late: then a round waits for it."""
_MOST_GRACES = 8
"""So many times the grace such a round waits at most."""
_CYCLES_WITHOUT_MAIL = 2
"""Without any frame by mail from a site to another for so long, agents fetch at once."""
RATE_FAULTS = 3


class Sequencer:
    """Decides for the run whose journal says `state`: the caller hands it over, and no longer changes it.

    hash_at: of an entry by its index; None: there is no such entry. random_hex: 32 random hexadecimal digits, for the
    names of a new run. fetch: host:port of the leader's own agent, which can get what others have; empty: it gives out
    no files.
    """

    def __init__(
        self,
        state: RunState,
        terms: Terms,
        hash_at: Callable[[int], str | None],
        random_hex: Callable[[], str],
        fetch: str = "",
    ) -> None:
        self.state = state
        self.superseded_by = 0
        """A higher term that a site follows: another one leads, and the caller ends this leader. 0: none."""
        self._terms = terms
        self._hash_at = hash_at
        self._random_hex = random_hex
        self._fetch = fetch
        self._sites: dict[str, LedSite] = {}
        self._rounds: dict[int, OpenRound] = {}
        self._due: set[int] = set()
        self._attempts: dict[int, int] = {}
        """By fragment: the highest attempt that anybody has named."""
        self._least_attempts: dict[int, int] = {}
        """By fragment: offers of earlier attempts are deltas to a state that a skip has changed."""
        self._closed: dict[int, tuple[OpenRound, float]] = {}
        """By fragment: the last round, and until when its frames came in time."""
        self._late_pairs: set[tuple[str, str]] = set()
        """(holder, maker): the frame did not come by mail in the last round."""
        self._unmailed: dict[tuple[str, str], int] = {}
        """By (holder, maker): rounds since any frame came by mail, late or not."""
        self._digests = SaidDigests(state)
        self._snapshot_at = 0.0
        self._copies: dict[str, Digest] = {}
        """By site: of its manifest of the last snapshot."""
        self._lost: dict[tuple[int, int, str, Hash], tuple[float, float]] = {}
        """By listed frame: when it was first said to be lost, and when last."""
        self._rates = LearningRates()
        self._waited_for = frozenset[str]() if any(state.versions) else terms.wait_for - set(state.live)
        self._peers: tuple[Peer, ...] = ()
        self._started: float | None = None
        self._now = 0.0
        self._out: list[Action] = []

    # ---- events

    def on(self, event: Event, now: float) -> list[Action]:
        """Take an event. now: seconds on a clock that never goes back."""
        self._now = now
        if self._started is None:
            self._started = self._snapshot_at = now
            for name, site in self.state.sites.items():
                # After a restart, the sites that were there have a moment to come back.
                back_by = now + self._terms.silent_s - self._terms.disconnected_s
                self._sites[name] = LedSite(changed=back_by, heard=now, store=site.store)
        match event:
            case Came():
                self._came(event.site)
            case Ended():
                self._ended(event.site)
            case Said():
                self._said_by(event.site, event.message)
            case Remove():
                self._remove(event.site, event.why)
            case Tick():
                self._look_at_clock()
        self._tell_peers()
        for fragment in range(len(self.state.versions)):
            self._look_at(fragment)
        out, self._out = self._out, []
        return out

    def _came(self, name: str) -> None:
        site = self._sites.setdefault(name, LedSite())
        site.replaced = site.connected and site.welcomed and self._now - site.heard < self._terms.silent_s
        site.connected, site.welcomed, site.has_ranks = True, False, False
        site.changed = self._now

    def _ended(self, name: str) -> None:
        site = self._sites.get(name)
        if site is not None and site.connected:
            site.connected = site.welcomed = False
            site.changed = self._now

    def _said_by(self, name: str, message: Up) -> None:
        site = self._sites.get(name)
        if site is None or not site.connected:
            return
        if isinstance(message, Hello):
            self._hello(name, site, message)
            return
        if not site.welcomed:
            self._drop(name, "its first line was no Hello")
            return
        if isinstance(message, Beat):
            site.heard, site.beat = self._now, message
        elif isinstance(message, RanksUp):
            self._ranks_up(name, site, message)
        elif isinstance(message, Offer | Pass | Hold | Due | Applied | Lost) and not self._fits(message):
            self._drop(name, f"its {message.kind} is of fragment {message.fragment}, which the run does not have")
        else:
            self._rounds_message(name, site, message)

    def _rounds_message(self, name: str, site: LedSite, message: Up) -> None:
        match message:
            case ReadySaid():
                self._ready(name, site)
            case RanksGone():
                site.owners, site.has_ranks = (), False
                site.applied.clear()
                self._away(name, message.why)
            case Due():
                if message.version == self.state.versions[message.fragment]:
                    self._due.add(message.fragment)
            case Offer():
                self._offered(name, site, message)
            case Pass():
                found = self._rounds.get(message.fragment)
                if found is not None and found.version == message.version:
                    found.passes[name] = max(message.attempt, found.passes.get(name, -1))
                self._in_time(message.fragment, message.version, name, site)
            case Hold():
                self._held(name, message)
            case Applied():
                self._applied(name, site, message)
            case Lost():
                self._lost_said(site, message)
            case SnapshotHeld():
                self._snapshot_held(name, message)
            case Leave():
                known = self.state.sites.get(name)
                if known is not None and known.standing in (Standing.AWAY, Standing.JOINING):
                    self._left(name)  # nothing of it can count any more
                else:
                    site.leaving = self._now
            case _:
                self._drop(name, f"{message.kind} is not for the leader")

    def _fits(self, message: Offer | Pass | Hold | Due | Applied | Lost) -> bool:
        return message.fragment < len(self.state.versions)

    # ---- who takes part

    def _hello(self, name: str, site: LedSite, hello: Hello) -> None:
        why = refusal(self.state, self._sites, name, hello)
        if why:
            self._refuse(name, why)
            return
        if refused := other_chain(self.state, self._hash_at, name, hello):
            if supersedes(self.state, hello):
                self.superseded_by = max(self.superseded_by, hello.term)
            self._send(name, refused)
            self._drop(name, refused.why)
            return
        known = self.state.sites.get(name)
        if site.store not in ("", hello.store) or (known is not None and known.store != hello.store):
            self._forget_disk(name)
            site.former_stores.add(site.store or (known.store if known is not None else ""))
        site.store, site.fetch, site.welcomed = hello.store, hello.fetch, True
        site.heard, site.changed = self._now, self._now
        for fragment, attempt in hello.attempts.items():
            if fragment < len(self.state.versions):
                self._attempts[fragment] = max(attempt, self._attempts.get(fragment, -1))
        run = None if self.state.genesis is None else self.state.genesis.run
        opened = tuple((p, found.version, found.attempt) for p, found in sorted(self._rounds.items()))
        welcome = Welcome(term=self.state.term, run=run, head=self.state.head.index, open=opened)
        site.goals = tuple(self.state.versions)
        self._send(name, welcome)
        first, last = self._first_to_send(hello), self.state.head.index
        if first <= last:
            self._out.append(SendEntries(name, first, last))
        if self.state.genesis is not None and hello.ranks and (known is None or known.store != hello.store):
            self._away(name, "it came back with another run folder")
            self._append(Join, site=name, store=hello.store)
        for fragment, found in sorted(self._rounds.items()):
            if found.attempt < self._attempts.get(fragment, -1):
                self._try_again(fragment, found)
                self._announce(fragment)
            elif name in self.state.live:
                self._send(name, self._open_message(fragment))

    def _first_to_send(self, hello: Hello) -> int:
        """The index of the first entry that the site lacks, or has another one of.

        A chain that ends outside the leader's is that of a leader before: it fits up to where the next one took over.
        """
        if hello.run is None:
            return 0
        later = [index for term, index in self.state.terms.items() if term > hello.term]
        return min([hello.head + 1, *later])

    def _forget_disk(self, name: str) -> None:
        """The site has another run folder: what it held is gone."""
        for found in self._rounds.values():
            found.lose_disk(name)
        self._sites[name].applied.clear()

    def _ranks_up(self, name: str, site: LedSite, message: RanksUp) -> None:
        if self.state.ended:  # it hears of that with the entries that follow its welcome
            return
        genesis = self.state.genesis
        if len(message.digests) != message.model.fragments:
            self._drop(name, f"it has {len(message.digests)} digests of {message.model.fragments} fragments")
            return
        if genesis is None:
            model = message.model
            self._append(
                Genesis,
                run=self._random_hex(),
                settings=model.settings,
                layout=model.layout,
                digests=message.digests,
                every=model.every,
                step=model.step,
            )
            for other, one in sorted(self._sites.items()):
                if one.welcomed:
                    self._append(Join, site=other, store=one.store)
        else:
            why = difference(genesis, message.model, name)
            if why:
                self._refuse(name, why)
                return
        if self.state.sites[name].standing is Standing.LEFT:
            self._append(Join, site=name, store=site.store)
        if site.owners != message.owners:
            site.applied.clear()
        site.owners, site.has_ranks = message.owners, True
        joins = self.state.sites[name].standing is Standing.JOINING
        if joins and genesis is not None and message.digests != genesis.digests:
            self._out.append(Log(f"{name} begins with other weights than the run: it takes the run's state"))

    def _ready(self, name: str, site: LedSite) -> None:
        known = self.state.sites.get(name)
        if site.has_ranks:
            for fragment, version in enumerate(site.goals):
                site.applied[fragment] = max(version, site.applied.get(fragment, 0))
        if known is None or not site.has_ranks or known.standing not in (Standing.JOINING, Standing.AWAY):
            return
        self._append(Ready, site=name)
        site.late = False
        site.leaving = None
        site.heard = self._now
        self._late_pairs = {pair for pair in self._late_pairs if name not in pair}
        self._waited_for -= {name}

    def _away(self, name: str, why: str) -> None:
        known = self.state.sites.get(name)
        if known is None or known.standing is not Standing.READY:
            return
        if self._sites[name].leaving is not None:
            self._left(name)
        else:
            self._append(Away, site=name, why=why)
        self._digests.leave(name)

    def _remove(self, name: str, why: str) -> None:
        known = self.state.sites.get(name)
        if known is None or known.standing is Standing.REMOVED:
            self._out.append(Log(f"{name} cannot be removed: the run does not have it"))
            return
        self._append(Removed, site=name, why=why)
        self._send(name, Stop(why=f"{name} was removed from the run: {why}"))
        self._drop(name, "it was removed")

    def _left(self, name: str) -> None:
        self._append(Left, site=name)
        if all(site.standing in (Standing.LEFT, Standing.REMOVED) for site in self.state.sites.values()):
            self._append(End)
        self._drop(name, "it has left")

    def _look_at_clock(self) -> None:
        terms = self._terms
        for name in self.state.live:
            site = self._sites[name]
            if not site.connected and self._now - site.changed >= terms.disconnected_s:
                self._away(name, f"no connection for {terms.disconnected_s:g} s")
            elif site.connected and self._now - site.heard >= terms.silent_s:
                self._away(name, f"silent for {terms.silent_s:g} s")
                self._drop(name, "silent")
            elif not site.has_ranks and self._now - site.changed >= terms.disconnected_s:
                self._away(name, "no ranks")
            elif site.leaving is not None and (
                self._now - site.leaving >= terms.leave_s
                or not any(name in found.offers for found in self._rounds.values())
            ):
                self._left(name)
        self._skip_lost()
        self._take_snapshot()
        for fragment, sites in self._digests.overdue(terms.repair_s, self._now):
            self._stop_for_digests(fragment, sites)

    # ---- rounds

    def _look_at(self, fragment: int) -> None:
        """Open, fetch, close or try again, whatever is due now."""
        found = self._rounds.get(fragment)
        if found is None:
            if fragment in self._due and self._may_open():
                self._open(fragment)
            return
        if self._digests.is_repairing(fragment):
            return
        eligible = found.eligible(self.state.live)
        grace_s = self._grace_s()
        late = self._now - found.opened >= grace_s
        waits = self._starved(fragment, found, eligible) and self._now - found.opened < _MOST_GRACES * grace_s
        if len(eligible) >= self._terms.min_sites and ((late and not waits) or self._is_complete(found, eligible)):
            chosen = self._chosen(eligible)
            if len(chosen) >= self._terms.min_sites:
                self._close_round(fragment, found, chosen)
                return
        self._fetch_missing(fragment, found, late=late)
        nothing = not found.offers and all(found.has_tried(name) for name in self.state.live)
        attempt_s = min(self._terms.attempt_s, 2 * grace_s) if nothing else self._terms.attempt_s
        if not eligible and self._now - found.tried >= attempt_s:
            self._try_again(fragment, found)
            self._announce(fragment)

    def _may_open(self) -> bool:
        return bool(self.state.live) and not self._waited_for and not self.state.ended

    def _open(self, fragment: int) -> None:
        self._due.discard(fragment)
        attempt = self._next_attempt(fragment)
        self._rounds[fragment] = OpenRound(self.state.versions[fragment], attempt, self._now, self._now)
        self._announce(fragment)

    def _try_again(self, fragment: int, found: OpenRound) -> None:
        found.attempt = self._next_attempt(fragment)
        found.tried = self._now

    def _next_attempt(self, fragment: int) -> int:
        self._attempts[fragment] = self._attempts.get(fragment, -1) + 1
        return self._attempts[fragment]

    def _announce(self, fragment: int) -> None:
        for name in self.state.live:
            if self._sites[name].welcomed:
                self._send(name, self._open_message(fragment))

    def _open_message(self, fragment: int) -> Open:
        found = self._rounds[fragment]
        return Open(fragment=fragment, version=found.version, attempt=found.attempt, peers=self._peers)

    def _tell_peers(self) -> None:
        """Who has come meanwhile gets frames too: that changes what is open."""
        peers = tuple(
            Peer(site=name, owners=self._sites[name].owners, fetch=self._sites[name].fetch) for name in self.state.live
        )
        if peers == self._peers:
            return
        gained = set(peers) - set(self._peers)
        self._peers = peers
        if gained:
            for fragment in sorted(self._rounds):
                self._announce(fragment)

    def _offered(self, name: str, site: LedSite, offer: Offer) -> None:
        self._in_time(offer.fragment, offer.version, name, site)
        found = self._rounds.get(offer.fragment)
        if found is None or found.version != offer.version:
            return
        if offer.attempt < self._least_attempts.get(offer.fragment, 0):
            return
        found.offer(name, offer)

    def _held(self, name: str, hold: Hold) -> None:
        for found in (self._rounds.get(hold.fragment), self._closed.get(hold.fragment, (None, 0.0))[0]):
            if found is None or found.version != hold.version:
                continue
            found.holds.add((name, hold.frame))
            if hold.by_mail:
                found.mailed.add((name, hold.frame))
                self._unmailed.pop((name, hold.site), None)
                if self._now <= found.opened + self._grace_s():
                    self._late_pairs.discard((name, hold.site))
        self._lost.pop((hold.fragment, hold.version, hold.site, hold.frame), None)

    def _in_time(self, fragment: int, version: int, name: str, site: LedSite) -> None:
        """Whether a site is waited for follows from whether it comes within the grace, also where nobody waited."""
        found = self._rounds.get(fragment)
        closed, until = self._closed.get(fragment, (None, 0.0))
        if found is not None and found.version == version:
            until = found.opened + self._grace_s()
        elif closed is None or closed.version != version:
            return
        if self._now <= until:
            site.late = False

    def _is_complete(self, found: OpenRound, eligible: Mapping[str, Offer]) -> bool:
        """Whether everybody who is waited for has offered, or passed, and holds all offers, and these are eligible."""
        for name in self.state.live:
            site = self._sites[name]
            if not site.late and site.leaving is None and not found.has_tried(name):
                return False
            for maker, offers in found.offers.items():
                if (name, offers[-1].frame) not in found.holds and (name, maker) not in self._late_pairs:
                    return False
            if name in found.offers and eligible.get(name) is not found.offers[name][-1]:
                return False
        return True

    def _starved(self, fragment: int, found: OpenRound, eligible: Mapping[str, Offer]) -> bool:
        """Whether a site has offered whose frames have come too late for long: else it would never count."""
        return any(
            name in found.offers
            and name not in eligible
            and self._sites[name].leaving is None
            and self._sites[name].missed.get(fragment, 0) >= STARVED_ROUNDS
            for name in self.state.live
        )

    def _grace_s(self) -> float:
        """Half a cycle of the fastest live site."""
        beats = [self._sites[name].beat for name in self.state.live if name in self._sites]
        steps = [beat.step_s for beat in beats if beat is not None and beat.step_s > 0]
        return max(self._terms.least_grace_s, self.state.every * min(steps, default=0.0) / 2)

    def _fetch_missing(self, fragment: int, found: OpenRound, *, late: bool) -> None:
        """What did not come by mail within the grace is fetched: from who has it, or through the leader's agent.

        Where no mail has come for long, nobody waits for the grace.
        """
        live, without_mail = self.state.live, _CYCLES_WITHOUT_MAIL * len(self.state.versions)
        for maker, offers in found.offers.items():
            offer = offers[-1]
            holders = found.holders(offer.frame, live)
            addresses = [self._sites[name].fetch for name in holders] + [self._fetch]
            sources = tuple(address for address in addresses if address)
            for name in live:
                asked = found.fetches.get((name, offer.frame), -math.inf)
                if name in holders or not sources or self._now - asked < self._terms.fetch_again_s:
                    continue
                if not late and self._unmailed.get((name, maker), 0) < without_mail:
                    continue
                found.fetches[name, offer.frame] = self._now
                self._send(
                    name,
                    Fetch(
                        fragment=fragment,
                        version=found.version,
                        site=maker,
                        frame=offer.frame,
                        bytes=offer.coded_bytes + offer.exact_bytes,
                        sources=sources,
                    ),
                )

    def _close_round(self, fragment: int, found: OpenRound, chosen: Mapping[str, Offer]) -> None:
        until = found.opened + self._grace_s()
        for name in self.state.live:
            site = self._sites[name]
            if site.leaving is None and not found.has_tried(name) and name not in chosen:
                site.late = True
            self._count_missed(fragment, site, offered=name in found.offers, counts=name in chosen)
            for maker, offers in found.offers.items():
                if (name, offers[-1].frame) not in found.holds:
                    self._late_pairs.add((name, maker))
                if name != maker and (name, offers[-1].frame) not in found.mailed:
                    self._unmailed[name, maker] = self._unmailed.get((name, maker), 0) + 1
        del self._rounds[fragment]
        self._closed[fragment] = (found, until)
        self._due.discard(fragment)
        every = max(offer.every for offer in chosen.values())
        members = tuple(
            Listed(
                site=name,
                frame=offer.frame,
                coded_bytes=offer.coded_bytes,
                exact_bytes=offer.exact_bytes,
                weight=offer.weight,
                step=offer.step,
                squared_norm=offer.squared_norm,
                lr=offer.lr,
                taken=offer.taken,
            )
            for name, offer in sorted(chosen.items())
        )
        self._rates.take(members)
        self._append(
            Round,
            fragment=fragment,
            version=found.version,
            members=members,
            every=0 if every == self.state.every else every,
            base=self._digests.base(fragment, found.version),
        )

    @staticmethod
    def _count_missed(fragment: int, site: LedSite, *, offered: bool, counts: bool) -> None:
        missed = site.missed.get(fragment, 0)
        if counts or missed >= STARVED_ROUNDS:
            site.missed[fragment] = 0
        elif offered:
            site.missed[fragment] = missed + 1

    # ---- learning rates

    def _chosen(self, eligible: Mapping[str, Offer]) -> dict[str, Offer]:
        """The frames that count: those whose learning rate fits that of others at that step of the run.

        Where none does, nobody knows who is right, and all count.
        """
        fits = {name: self._rates.fits(name, eligible, self.state.every) for name in eligible}
        if not any(fits.values()):
            return dict(eligible)
        for name in sorted(eligible):
            if fits[name]:
                self._sites[name].rate_faults = 0
            else:
                self._wrong_rate(name, eligible)
        return {name: offer for name, offer in sorted(eligible.items()) if fits[name]}

    def _wrong_rate(self, name: str, eligible: Mapping[str, Offer]) -> None:
        site = self._sites[name]
        site.rate_faults += 1
        self._rounds[eligible[name].fragment].give_up(name)
        why = self._rates.told(name, eligible)
        self._out.append(Log(f"left out of a round: {why}"))
        if site.rate_faults >= RATE_FAULTS:
            self._stop(name, f"{why} (the {RATE_FAULTS}rd time)")

    # ---- digests

    def _applied(self, name: str, site: LedSite, message: Applied) -> None:
        fragment, version = message.fragment, message.version
        if version > self.state.versions[fragment]:
            self._drop(name, f"it has applied round {version - 1} of fragment {fragment}, which the journal lacks")
            return
        site.applied[fragment] = max(version, site.applied.get(fragment, 0))
        if name not in self.state.live:
            return  # It may not know yet of a skip that changes its state.
        found = self._digests.take(name, message, lambda one: self._sites[one].connected, self._now)
        if found is None:
            return
        if found.again:
            self._stop_for_digests(fragment, found.sites)
            return
        against = ", ".join(found.others) or "the journal"
        self._out.append(
            Log(f"fragment {fragment}, version {version}: {name} has other bits than {against}; repairing")
        )
        for one in sorted(found.sites):
            self._send(one, Repair(fragment=fragment))

    def _stop_for_digests(self, fragment: int, sites: set[str]) -> None:
        if not sites:
            return
        names = " and ".join(sorted(sites))
        for name in sorted(sites):
            self._stop(
                name,
                f"fragment {fragment} has other bits than it should, also after a repair: {names}. Look for different "
                "versions of geocomm or torch, and for broken memory or disks",
            )

    # ---- snapshots

    def _take_snapshot(self) -> None:
        state, last = self.state, self.state.snapshot
        due = 0 < self._terms.snapshot_s <= self._now - self._snapshot_at
        if due and state.live and any(state.versions) and (last is None or last.versions != tuple(state.versions)):
            self._snapshot_at = self._now
            self._copies = {}
            self._append(Snapshot, versions=tuple(state.versions))

    def _snapshot_held(self, name: str, held: SnapshotHeld) -> None:
        last = self.state.snapshot
        if last is None or held.snapshot != last.index or last.index in self.state.kept:
            return
        self._copies[name] = held.digest
        same = tuple(site for site, digest in sorted(self._copies.items()) if digest == held.digest)
        if len(same) < len(self._copies):
            others = sorted(self._copies.keys() - set(same))
            self._out.append(
                Log(f"snapshot {held.snapshot}: {', '.join(same)} has other bits than {', '.join(others)}")
            )
        if len(same) >= self._terms.copies:
            self._append(Kept, snapshot=held.snapshot, digest=held.digest, sites=same)

    # ---- frames that are lost

    def _lost_said(self, site: LedSite, lost: Lost) -> None:
        site.applied[lost.fragment] = min(lost.version, site.applied.get(lost.fragment, 0))
        listed = self.state.rounds.get(lost.fragment)
        if listed is None or lost.version > listed.version:
            return
        key = (lost.fragment, lost.version, lost.site, lost.frame)
        first, _ = self._lost.get(key, (self._now, self._now))
        self._lost[key] = (first, self._now)

    def _skip_lost(self) -> None:
        """Give up what nobody has had for long: the round is void, and all later ones of the fragment with it."""
        terms = self._terms
        self._lost = {key: one for key, one in self._lost.items() if self._now - one[1] < terms.lost_said_s}
        for (fragment, version, site, frame), (first, _) in [*self._lost.items()]:
            if self._now - first < terms.lost_s or (fragment, version) in self.state.skipped:
                continue
            if any(self._sites[name].applied.get(fragment, 0) > version for name in self.state.live):
                continue  # It has the frame, or a state behind that round, and gives it away.
            why = f"nobody has frame {frame[:16]} of {site}"
            for void in self.state.to_skip(fragment, version):
                self._append(Skip, fragment=fragment, version=void, why=why)
            self._digests.forget(fragment)
            self._least_attempts[fragment] = self._attempts.get(fragment, -1) + 1
            if self._rounds.pop(fragment, None) is not None:
                # Sites believe it to be open, so none would say again that it is due.
                self._open(fragment)

    # ---- saying

    def _append(self, kind: Callable[..., Entry], **fields: Any) -> None:
        if self.state.ended:
            return
        head = self.state.head
        entry = kind(index=head.index + 1, prev=head.hash, term=self.state.term, **fields)
        self.state.apply(entry)
        self._out.append(Append(entry))
        for name in self._welcomed():
            self._send(name, EntrySaid(entry=entry))

    def _welcomed(self) -> Iterator[str]:
        return (name for name, site in sorted(self._sites.items()) if site.connected and site.welcomed)

    def _send(self, name: str, message: Down) -> None:
        site = self._sites.get(name)
        if site is not None and site.connected:
            self._out.append(Send(name, message))

    def _refuse(self, name: str, why: str) -> None:
        self._send(name, Refused(why=why))
        self._drop(name, why)

    def _stop(self, name: str, why: str) -> None:
        self._send(name, Stop(why=why))
        self._away(name, why)
        self._drop(name, why)

    def _drop(self, name: str, why: str) -> None:
        site = self._sites.get(name)
        if site is None or not site.connected:
            return
        site.connected = site.welcomed = False
        site.changed = self._now
        self._out += [Log(f"{name}: connection closed: {why}"), Close(name, why)]
