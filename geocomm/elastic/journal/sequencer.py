"""The leader's decisions, as pure logic: events of the sites in, actions out. It knows no sockets, files or clocks.

The caller owns the connections and the journal. It carries out the actions in their order; an `Append` is durable
before anything after it is done. Where an append fails, the caller ends: the next leader starts from the journal.

What is kept here beside the journal's state may be lost at any time: sites say it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from geocomm.elastic.journal.admission import (
    COMINGS_S,
    MOST_COMINGS,
    ForeignJournals,
    LedSite,
    difference,
    first_to_send,
    has_room,
    other_chain,
    refusal,
    supersedes,
    turned_away,
)
from geocomm.elastic.journal.average_checks import AverageChecks
from geocomm.elastic.journal.entries import Away, End, Genesis, Join, Left, Ready, Removed, Skip, words
from geocomm.elastic.journal.held_back import HeldBack
from geocomm.elastic.journal.leader_deals import LeaderDeals
from geocomm.elastic.journal.leader_rounds import LeaderRounds
from geocomm.elastic.journal.leader_snapshots import LeaderSnapshots
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.lost_frames import LostFrames
from geocomm.elastic.journal.messages import (
    Applied,
    Beat,
    Due,
    Hello,
    Hold,
    Leave,
    Lost,
    Offer,
    OfRound,
    Pass,
    RanksGone,
    RanksUp,
    ReadySaid,
    Refused,
    Repair,
    SnapshotHeld,
    Stop,
    SumChecked,
    Summed,
    Up,
    Welcome,
)
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.elastic.journal.said_digests import DigestDifference, SaidDigests
from geocomm.elastic.journal.sequencer_events import (
    Action,
    Came,
    DataRead,
    Ended,
    Event,
    LeaderSettings,
    Remove,
    Said,
    Tick,
    Unbelieved,
)

_OfRun = Due | Offer | Pass | Summed | SumChecked | Hold | Applied | Lost
"""What a site says of a fragment that the run is to have."""


class Sequencer:
    """Decides for the run whose journal says `state`: the caller hands it over, and no longer changes it.

    hash_at: of an entry by its index; None: there is no such entry. random_hex: 32 random hexadecimal digits, for the
    name of a new run, and for what nobody is to foresee. fetch: host:port of the leader's own agent, which can get what
    others have; empty: it gives out no files. start: higher than at each leader before, of the same term. shared: an
    entry is committed where it is durable, in etcd, whoever of the members holds it.
    """

    def __init__(
        self,
        state: RunState,
        terms: LeaderSettings,
        hash_at: Callable[[int], str | None],
        random_hex: Callable[[], str],
        fetch: str = "",
        start: int = 0,
        *,
        shared: bool = False,
    ) -> None:
        self.state = state
        self.superseded = False
        """A site says that it follows a higher term: another one may lead. The caller finds out, and says False."""
        self._hash_at = hash_at
        self._random_hex = random_hex
        self._run = LedRun(state, terms)
        self.sites, self._terms = self._run.sites, terms
        self._digests = SaidDigests(state)
        self.checks = AverageChecks(self._run, random_hex)
        self.rounds = LeaderRounds(self._run, self._digests, self.checks, fetch, start)
        self.deals = LeaderDeals(self._run, self.rounds.forget)
        self._snapshots = LeaderSnapshots(self._run)
        self._lost = LostFrames(self._run)
        self._foreign = ForeignJournals()
        self._held_back = HeldBack(self._run, self._may_begin, shared=shared)
        self._started = False

    def turned_away(self, name: str, hello: Hello, now: float) -> Refused | None:
        """What to say to another connection of a site that may not take the place of the one that stands; None: it may,
        and `Came` is next."""
        self._start(now)
        site = self.sites.get(name)
        live = name in self.state.live
        return None if site is None else turned_away(site, name, hello, now, self._terms.silent_s, live=live)

    @property
    def doubt(self) -> tuple[str, ...]:
        """Why this leader may not be the run's; none: it is."""
        return self._foreign.doubt(self._run.now)

    # ---- events

    def on(self, event: Event, now: float) -> list[Action]:
        """Take an event. now: seconds on a clock that never goes back."""
        self._start(now)
        match event:
            case Came():
                self._came(event.site)
            case Ended():
                self._ended(event.site)
            case Said():
                self._said_by(event.site, event.message)
            case Unbelieved():
                self.rounds.forget(event.site)
                self._run.drop(event.site, event.why)
            case Remove():
                self._remove(event.site, event.why)
            case DataRead():
                self.deals.read(event.data)
            case Tick():
                self._look_at_clock()
                self.deals.look()
        for name, ranks in self._held_back.released():  # at once, since they say but once that they are ready
            self._ranks_up(name, self.sites[name], ranks)
        # A site that only says something of a round changes no other one, and most events are of this kind.
        if isinstance(event, Said) and isinstance(event.message, OfRound) and not self._run.has_actions:
            if event.message.fragment < len(self.state.versions):
                self.rounds.look_at(event.message.fragment, event.site)
        else:
            self.rounds.look()
        return self._run.take_actions()

    def _start(self, now: float) -> None:
        self._run.now = now
        if self._started:
            return
        self._started = True
        self._run.begin()
        self._snapshots.begin()
        for name, site in self.state.sites.items():
            # After a restart, the sites that were there have a moment to come back.
            back_by = now + self._terms.silent_s - self._terms.disconnected_s
            self.sites[name] = LedSite(changed=back_by, heard=now, store=site.store)

    def _came(self, name: str) -> None:
        site = self.sites.setdefault(name, LedSite())
        site.connected, site.welcomed, site.has_ranks, site.gone_for = True, False, False, ""
        site.changed = self._run.now

    def _ended(self, name: str) -> None:
        site = self.sites.get(name)
        if site is not None and site.connected:
            site.connected = site.welcomed = False
            site.changed = self._run.now

    def _said_by(self, name: str, message: Up) -> None:
        site = self.sites.get(name)
        if site is None or not site.connected:
            return
        if isinstance(message, Hello):
            if site.welcomed:
                self._run.drop(name, "it said hello twice")
            else:
                self._hello(name, site, message)
            return
        if not site.welcomed:
            self._run.drop(name, "its first line was no Hello")
            return
        if isinstance(message, _OfRun) and (why := self._misfit(message)):
            self._run.drop(name, why)
        else:
            self._take(name, site, message)

    def _take(self, name: str, site: LedSite, message: Up) -> None:
        """Take a message of a site that was welcomed, about a fragment that the run has."""
        match message:
            case Beat():
                site.heard, site.beat, site.head = self._run.now, message, max(site.head, message.head)
                self.deals.beat(name, message)
            case RanksUp():
                self._ranks_up(name, site, message)
            case ReadySaid():
                self._ready(name, site)
            case RanksGone():
                site.owners, site.has_ranks, site.gone_for = (), False, message.why
                self._held_back.drop(name)
                site.applied.clear()
                self._away(name, message.why)
            case Due():
                self.rounds.due(message)
            case Offer():
                self.rounds.offered(name, message)
            case Pass():
                self.rounds.passed(name, message)
            case Summed():
                self.rounds.summed(name, message)
            case SumChecked():
                self.checks.checked(name, message)
            case Hold():
                self.rounds.held(name, message)
                self._lost.held(message)
            case Applied():
                self._applied(name, site, message)
            case Lost():
                self._lost.told(name, message)
            case SnapshotHeld():
                self._snapshots.held(name, message)
            case Leave():
                site.finished = message.finished
                known = self.state.sites.get(name)
                if known is None:
                    self._held_back.drop(name)  # it does not join any more
                elif known.standing in (Standing.AWAY, Standing.JOINING):
                    self._left(name)  # nothing of it can count any more
                else:
                    site.leaving = self._run.now
            case _:
                self._run.drop(name, f"{message.kind} is not for the leader")

    def _misfit(self, message: _OfRun) -> str:
        """Why what a site says of a round cannot be; empty: it can."""
        if message.fragment >= len(self.state.versions):
            return f"its {message.kind} is of fragment {message.fragment}, which the run does not have"
        if isinstance(message, Offer | Summed):
            size, most = message.size, self.state.most_frame_bytes
            return f"it offers a frame of {size} bytes; one of this model has {most} at most" if size > most else ""
        return ""

    # ---- who takes part

    def _hello(self, name: str, site: LedSite, hello: Hello) -> None:
        why = refusal(self.state, self.sites, name, hello)
        if why:
            self._refuse(name, why)
            return
        if refused := other_chain(self.state, self._hash_at, name, hello):
            if supersedes(self.state, hello):
                self.superseded = True
            else:
                self._foreign.told(name, refused, self._run.now)
            self._run.send(name, refused)
            self._run.drop(name, refused.why)
            return
        known = self.state.sites.get(name)
        if site.store not in ("", hello.store) or (known is not None and known.store != hello.store):
            self._forget_disk(name)
        site.store, site.process = hello.store, hello.process
        site.fetch, site.ranks, site.welcomed = hello.fetch, hello.ranks, True
        self._foreign.taken_in(name)
        site.changed = self._run.now
        if name not in self.state.live:  # else a line that breaks after each Hello would keep it for ever
            site.heard = self._run.now
        run = None if self.state.genesis is None else self.state.genesis.run
        welcome = Welcome(term=self.state.term, run=run, head=self.state.head.index, open=self.rounds.all_open())
        site.goals = tuple(self.state.versions)
        self._run.send(name, welcome)
        first, last = first_to_send(self.state, hello), self.state.head.index
        site.head = first - 1  # behind that its journal is not the run's
        if first <= last:
            self._run.send_entries(name, first, last)
        if self.state.genesis is not None and hello.ranks and (known is None or known.store != hello.store):
            self._away(name, "it came back with another run folder")
            if self._held_back.may_come(name) and self._may_come(name, site):
                self._join(name, hello.store)
        self.rounds.tell(name)

    def _forget_disk(self, name: str) -> None:
        """The site has another run folder: what it held is gone."""
        self.rounds.lose_disk(name)
        self.sites[name].applied.clear()

    def _ranks_up(self, name: str, site: LedSite, message: RanksUp) -> None:
        if self.state.ended:  # it hears of that with the entries that follow its welcome
            return
        genesis = self.state.genesis
        if not site.ranks:
            self._run.drop(name, "it said that it has no ranks, and it has some")
            return
        if len(message.digests) != message.model.fragments:
            self._run.drop(name, f"it has {len(message.digests)} digests of {message.model.fragments} fragments")
            return
        if not self._held_back.may_come(name):
            self._held_back.add(name, message)
            return
        if genesis is None:
            model = message.model
            self._run.append(
                Genesis,
                run=self._random_hex(),
                settings=model.settings,
                layout=model.layout,
                digests=message.digests,
                every=model.every,
                step=model.step,
            )
            self.deals.take_version()
            for other, one in sorted(self.sites.items()):
                if one.welcomed and one.ranks:
                    self._join(other, one.store)
        else:
            why = difference(genesis, message.model, name)
            if why:
                self._refuse(name, why)
                return
        if not has_room(self.sites, name, message):
            many = f"{name} has {len(message.owners)} that own fragments"
            self._refuse(name, f"the ranks of all sites are more than one message can name: {many}")
            return
        if site.repairs[1] and message.owners == site.repairs[0]:  # they have not heard it: the connection had ended
            for fragment in sorted(site.repairs[1]):
                self._run.send(name, Repair(fragment=fragment))
            return
        known = self.state.sites.get(name)
        if known is None or known.standing is Standing.LEFT or known.anew:
            if not self._may_come(name, site):
                return
            self._join(name, site.store)
        if site.owners != message.owners:
            if not self._may_come(name, site):
                return
            site.applied.clear()
        site.owners, site.has_ranks, site.gone_for = message.owners, True, ""
        self.deals.ranks_up(name, message.owners)
        joins = self.state.sites[name].standing is Standing.JOINING
        if joins and genesis is not None and message.digests != genesis.digests:
            self._run.log(f"{name} begins with other weights than the run: it takes the run's state")

    def _join(self, name: str, store: str) -> None:
        self._run.append(Join, site=name, store=store)
        self._held_back.joined()

    def _may_begin(self) -> bool:
        """Whether a run may begin here: not while a site is there that has one."""
        return not (self._foreign.there(self._run.now) or self.deals.lacks_catalog)

    def _may_come(self, name: str, site: LedSite) -> bool:
        """Whether a site joins, is ready or has other ranks not too often: else its connection ends, until it may
        again."""
        site.comings = [when for when in site.comings if self._run.now - when < COMINGS_S]
        if len(site.comings) >= MOST_COMINGS:
            self._run.drop(
                name, f"it has joined, was ready or had other ranks {MOST_COMINGS} times within {COMINGS_S:g} s"
            )
            return False
        site.comings.append(self._run.now)
        return True

    def _ready(self, name: str, site: LedSite) -> None:
        known = self.state.sites.get(name)
        if site.has_ranks:
            for fragment, version in enumerate(site.goals):
                site.applied[fragment] = max(version, site.applied.get(fragment, 0))
        if known is None or not site.has_ranks or known.standing not in (Standing.JOINING, Standing.AWAY):
            return
        if known.anew:
            return
        if not self._may_come(name, site):
            return
        self._run.append(Ready, site=name)
        site.late = site.finished = False
        site.leaving = None
        site.closed_for = ""
        site.heard = self._run.now
        self.rounds.ready(name)

    def _away(self, name: str, why: str) -> None:
        known = self.state.sites.get(name)
        if known is None or known.standing is not Standing.READY:
            return
        if self.sites[name].leaving is not None:
            self._left(name)
        else:
            self._run.append(Away, site=name, why=words(why))
        self._digests.leave(name)

    def _remove(self, name: str, why: str) -> None:
        known = self.state.sites.get(name)
        if known is None or known.standing is Standing.REMOVED:
            self._run.log(f"{name} cannot be removed: the run does not have it")
            return
        self._run.append(Removed, site=name, why=words(why))
        self._run.send(name, Stop(why=words(f"{name} was removed from the run: {why}")))
        self._run.drop(name, "it was removed")

    def _left(self, name: str) -> None:
        self._run.append(Left, site=name)
        # Sites that all were told to leave, as for a night, may come back.
        over = all(site.standing in (Standing.LEFT, Standing.REMOVED) for site in self.state.sites.values())
        if over and self.sites[name].finished:
            self._run.append(End)
        self._run.drop(name, "it has left")

    def _look_at_clock(self) -> None:
        terms = self._terms
        for name in self.state.live:
            site = self.sites[name]
            silent_s = self._run.now - site.heard - (0.0 if site.connected else terms.disconnected_s)
            if not site.connected and self._run.now - site.changed >= terms.disconnected_s:
                self._away(name, f"no connection for {terms.disconnected_s:g} s")
            elif silent_s >= terms.silent_s:  # also where a line breaks so soon that it hardly ever stands at a look
                self._away(name, f"silent for {terms.silent_s:g} s")
                self._run.drop(name, "silent")
            elif not site.has_ranks and self._run.now - site.changed >= terms.disconnected_s:
                self._away(name, "no ranks")
            elif site.leaving is not None and (
                self._run.now - site.leaving >= terms.leave_s or not self.rounds.has_offer(name)
            ):
                self._left(name)
        self._skip_lost()
        self.checks.look()
        self._snapshots.look()
        for found in self._digests.overdue(terms.repair_s, self._run.now):
            self._repair(found)

    # ---- digests

    def _applied(self, name: str, site: LedSite, message: Applied) -> None:
        fragment, version = message.fragment, message.version
        if version > self.state.versions[fragment]:
            self._run.drop(name, f"it has applied round {version - 1} of fragment {fragment}, which the journal lacks")
            return
        site.applied[fragment] = max(version, site.applied.get(fragment, 0))
        if name not in self.state.live:
            return  # It may not know yet of a skip that changes its state.
        found = self._digests.take(name, message, self._run.now)
        if found is not None:
            self._repair(found)

    def _repair(self, found: DigestDifference) -> None:
        """Have the sites that are wrong take the fragment anew; those that have just done so are stopped."""
        fragment, others = found.fragment, ", ".join(found.right) or "the journal"
        against = f"than {others}" if found.is_known else "each, and nobody knows which are right"
        if found.again:
            self._stop_for_digests(fragment, against, found.again)
        sites = [name for name in found.sites if name not in found.again]
        if sites:
            names = ", ".join(sites)
            self._run.log(f"fragment {fragment}, version {found.version}: {names}: other bits {against}; repairing")
        for name in sites:
            self._run.send(name, Repair(fragment=fragment))
            self.sites[name].has_to_repair(fragment)
            if found.is_known:  # nobody waits for it, and its ranks have to start again before it counts
                self.sites[name].has_ranks = False
                self.rounds.take_back(fragment, name)
                self._away(name, f"fragment {fragment}: other bits {against}")

    def _stop_for_digests(self, fragment: int, against: str, sites: Collection[str]) -> None:
        names = " and ".join(sorted(sites))
        for name in sorted(sites):
            self._stop(
                name,
                f"fragment {fragment}: {names}: other bits {against}, also after a repair. Look for different versions "
                "of geocomm or torch, and for broken memory or disks",
            )

    # ---- frames that are lost

    def _skip_lost(self) -> None:
        """Give up what nobody has had for long: the round is void, and all later ones of the fragment with it."""
        for fragment, version, why in self._lost.given_up():
            for void in self.state.to_skip(fragment, version):
                self._run.append(Skip, fragment=fragment, version=void, why=why)
            self._digests.forget(fragment)
            self.rounds.void(fragment)

    # ---- the end of a site

    def _refuse(self, name: str, why: str) -> None:
        self._run.send(name, Refused(why=words(why)))
        self._run.drop(name, why)

    def _stop(self, name: str, why: str) -> None:
        self._run.send(name, Stop(why=words(why)))
        self._away(name, why)
        self._run.drop(name, why)
