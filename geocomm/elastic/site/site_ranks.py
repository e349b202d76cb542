"""The ranks of a site as its agent sees them: who is connected, what each begins with, and what the
journal deals to the site."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from geocomm.core.message_log import log
from geocomm.core.patience import Waiting
from geocomm.data.deal_records import SiteDeal, cut
from geocomm.elastic.journal.entries import AnyRound, BadLineError, Entry, Skip, TakenBack
from geocomm.elastic.journal.messages import (
    Applied,
    Down,
    EntrySaid,
    Peers,
    RankHello,
    RanksGone,
    RanksUp,
    RankWelcome,
    ReadySaid,
    Stop,
)
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.elastic.site.join_states import StatesOfOthers
from geocomm.elastic.site.rank_socket import RankConnection
from geocomm.elastic.site.run_view import RunView

_RANKS_END_S = 60.0
_HEARD_S = 10.0
"""A rank hears its agent in a thread of its own, on a busy machine too: one that takes longer is stopped."""
_TAKEN_BACK = "what was dealt to this site was taken back, and others read it: what it has not counted is void"
ALONE_AFTER_S = 10.0
"""Without a leader for this time, ranks that come up begin with what their site has."""


@dataclass
class _Rank:
    """An owner of fragments that is connected."""

    connection: RankConnection
    versions: dict[int, int]
    """The versions of its fragments, as it says."""
    goals: dict[int, int] = field(default_factory=dict[int, int])
    """Those that the journal had when the rank was welcomed."""
    welcomed: bool = False
    left: bool = False
    finished: bool = False

    @property
    def caught_up(self) -> bool:
        return self.welcomed and all(self.versions.get(fragment, -1) >= goal for fragment, goal in self.goals.items())


class SiteRanks:
    """Used in one event loop."""

    def __init__(self, view: RunView, states: StatesOfOthers) -> None:
        self._view, self._states = view, states
        self._ranks: dict[int, _Rank] = {}
        self._welcoming: asyncio.Task[None] | None = None
        self._is_alone = False
        """There has been no leader for long."""
        self.withheld = ""
        """Why the leader hears that there are no ranks, though they train; empty: it hears of them."""

    def knows(self, connection: RankConnection) -> bool:
        """Whether it is that of a rank, and none has taken its place."""
        rank = self._ranks.get(connection.hello.place)
        return rank is not None and rank.connection is connection

    @property
    def complete(self) -> bool:
        """Whether all owners are connected."""
        first = next(iter(self._ranks.values()), None)
        return first is not None and len(self._ranks) == first.connection.hello.owners

    @property
    def are_away(self) -> bool:
        """Whether none is connected."""
        return not self._ranks

    def came(self, connection: RankConnection) -> None:
        """A rank has said hello."""
        hello = connection.hello
        if (stop := self._stop_of(hello)) is not None:
            connection.say(stop)
            connection.close()
            return
        if (before := self._ranks.pop(hello.place, None)) is not None:
            if before.connection.hello.owner.id != hello.owner.id:  # its launcher died, and it did not notice
                before.connection.say(Stop(why="another process has taken the place of this rank"))
            before.connection.close()
        self._ranks[hello.place] = _Rank(connection, dict(hello.versions))
        if self._view.peers is not None:
            connection.say(self._view.peers)
        self.changed()

    def _stop_of(self, hello: RankHello) -> Stop | None:
        """What a rank is told that cannot be one of this site's as it is; None: it can."""
        own = {fragment for fragment in range(hello.model.fragments) if fragment % hello.owners == hello.place}
        if hello.place >= hello.owners or own != set(hello.digests) or own != set(hello.versions):
            return Stop(why=f"a rank that is number {hello.place} of {hello.owners} owners has other fragments")
        known = self._view.journal.hash_at(hello.head)
        if hello.head >= 0 and known != hello.head_hash and hello.head >= self._view.journal.base.index:
            # It was away while this site's entries were set aside: it may have their rounds.
            why = (
                f"the entries of site {self._view.site} up to {hello.head} that this rank has heard of are not a part "
                "of the run any more: it starts again from what the others have"
            )
            return Stop(why=why, again=True)
        versions = dict(enumerate(self._view.state.versions))
        if any(version > versions.get(fragment, 0) for fragment, version in hello.versions.items()):
            return Stop(why="this rank has applied rounds that the run does not have: it starts again", again=True)
        if hello.trains:
            if any(version < self._states.replayed_from(fragment) for fragment, version in hello.versions.items()):
                why = (
                    "this site was away for longer than the journal goes back: its ranks start again, from what the "
                    "others have"
                )
                return Stop(why=why, again=True)
            if self._was_taken_back_since(hello.head):
                return Stop(why=_TAKEN_BACK, again=True)
        others = [rank.connection.hello for place, rank in self._ranks.items() if place != hello.place]
        if any((other.owners, other.model) != (hello.owners, hello.model) for other in others):
            return Stop(why="the ranks of this site have different models or settings")
        return None

    def applied(self, connection: RankConnection, up: Applied) -> None:
        """A rank that is known has applied a round. BadLineError: not one of its own."""
        versions = self._ranks[connection.hello.place].versions
        if up.fragment not in versions:
            raise BadLineError(f"a rank applied fragment {up.fragment}, which is not its own")
        versions[up.fragment] = up.version

    @property
    def have_finished(self) -> bool:
        """Whether all ranks have trained to their end."""
        return all(one.finished for one in self._ranks.values())

    def leaves(self, connection: RankConnection, *, finished: bool) -> bool:
        """A rank that is known has made its last offer. Whether all have."""
        rank = self._ranks[connection.hello.place]
        rank.left, rank.finished = True, finished
        return self.complete and all(one.left for one in self._ranks.values())

    def gone(self, connection: RankConnection) -> bool:
        """The connection of a rank that is known has ended. Whether the site had all its ranks before."""
        complete = self.complete
        del self._ranks[connection.hello.place]
        return complete

    def tell(self, down: Down) -> None:
        """Tell all that are welcomed; to end, or whom to connect to, all."""
        for rank in self._ranks.values():
            if rank.welcomed or isinstance(down, Stop | Peers):
                rank.connection.say(down)

    def tell_owner(self, fragment: int, down: Down) -> None:
        """Tell who owns a fragment."""
        for rank in self._ranks.values():
            if rank.welcomed and fragment in rank.versions:
                rank.connection.say(down)

    def lacks(self, fragment: int, version: int) -> bool:
        """Whether the owner of a fragment has not applied the round of this version yet."""
        return any(rank.versions.get(fragment, version + 1) <= version for rank in self._ranks.values())

    def catch_up(self) -> None:
        """The journal is here as far as the leader had it: ranks that are welcomed have to come as far."""
        for rank in self._ranks.values():
            if rank.welcomed:
                rank.goals = {fragment: self._view.state.versions[fragment] for fragment in rank.versions}

    def end_taken_back(self) -> None:
        """The journal says that what this site has read and not counted is void."""
        # They end: what they still say is not heard. One that is not welcomed may train since before this agent began.
        void = {place: rank for place, rank in self._ranks.items() if rank.welcomed or rank.connection.hello.trains}
        for place, rank in void.items():
            del self._ranks[place]
            rank.connection.say(Stop(why=_TAKEN_BACK, again=True))
            rank.connection.close()
        if void:
            log(f"the ranks of this site end, and start again: {_TAKEN_BACK}")
            self._view.say(RanksGone(why=_TAKEN_BACK))

    def _was_taken_back_since(self, head: int) -> bool:
        """Whether deals of this site were, in an entry after this one."""
        if not self._view.state.data:
            return False
        if head < self._view.journal.base.index:
            return True  # who knows
        since = self._view.journal.read(head + 1)
        return any(isinstance(entry, TakenBack) and entry.site == self._view.site for entry in since)

    async def stop(self, why: str) -> None:
        """Tell all to stop, and wait a moment for each to have heard it."""
        stopped = [rank.connection for rank in self._ranks.values()]
        for connection in stopped:
            connection.say(Stop(why=why))
            connection.close()
        clock = asyncio.get_running_loop().time
        end = clock() + _HEARD_S
        while any(self.knows(connection) for connection in stopped) and clock() < end:
            await asyncio.sleep(0.02)

    async def end_those_with(self, first: int, why: str) -> None:
        """Stop the ranks that may have rounds of entry `first` on, and wait for their end."""
        # Ranks that have just started have heard of no round.
        ending = [rank for rank in self._ranks.values() if rank.welcomed or rank.connection.hello.head >= first]
        for rank in ending:
            rank.connection.say(Stop(why=why, again=True))
        end, waiting = asyncio.get_running_loop().time() + _RANKS_END_S, Waiting(log)
        while any(rank in ending for rank in self._ranks.values()) and asyncio.get_running_loop().time() < end:
            waiting.tell(lambda: "the ranks of this site to end: they have rounds that the run does not have")
            await asyncio.sleep(0.1)

    def changed(self) -> None:
        """Ranks or the leader's welcome are new."""
        if not self.complete or self._view.welcome is None:
            return
        hellos = [self._ranks[place].connection.hello for place in sorted(self._ranks)]
        model = hellos[0].model
        digests = tuple(hellos[fragment % len(hellos)].digests[fragment] for fragment in range(model.fragments))
        if self.withheld:
            self._view.say(RanksGone(why=self.withheld))
        else:
            self._view.say(RanksUp(owners=tuple(hello.owner for hello in hellos), model=model, digests=digests))
        self.welcome()
        self.say_ready()

    def withhold(self, why: str) -> None:
        """The site is away while its ranks train on."""
        if why != self.withheld:
            self.withheld = why
            self._view.say(RanksGone(why=why))

    def give(self) -> None:
        """It comes back, once its ranks have come as far as the journal."""
        self.withheld = ""
        self.catch_up()
        self.changed()

    def say_ready(self) -> None:
        may_count = self._view.is_current and self.complete and not self.withheld
        if may_count and all(rank.caught_up for rank in self._ranks.values()):
            self._view.say(ReadySaid())

    async def begin_without_leader(self) -> None:
        """See to it, until cancelled, that ranks begin though the leader is away: what they learn counts once it is
        back."""
        clock = asyncio.get_running_loop().time
        since = clock()
        while True:
            await asyncio.sleep(1)
            if self._view.welcome is not None:
                since = clock()
            self._is_alone = clock() - since >= ALONE_AFTER_S
            self.welcome()

    def welcome(self) -> None:
        """Welcome the ranks that wait for it, once the journal is here as far as the leader had it."""
        waiting = any(not rank.welcomed for rank in self._ranks.values())
        may_begin = (self._view.is_current or self._is_alone) and self._view.is_member
        if waiting and may_begin and self.complete and self._welcoming is None:
            self._welcoming = self._view.life.start(self._prepare_and_welcome())
            self._welcoming.add_done_callback(self._welcoming_ended)

    def _welcoming_ended(self, task: asyncio.Task[None]) -> None:
        self._welcoming = None
        if not task.cancelled():
            self.welcome()

    async def _prepare_and_welcome(self) -> None:
        """Bring here what the ranks load first, then tell them; ranks that came meanwhile get their own turn."""
        ranks = [rank for rank in self._ranks.values() if not rank.welcomed]
        bases: dict[int, tuple[int, bool]] = {}
        if self._is_alone:
            log("the leader is away: the ranks of this site begin with what it has, and count once the leader is back")
        joining = self._view.state.sites[self._view.site].standing is Standing.JOINING

        async def find_base(rank: _Rank, fragment: int, version: int) -> None:
            if rank.connection.hello.trains:  # it asks for frames that it lacks, and takes a state where they are gone
                bases[fragment] = version, False
                return
            digest = rank.connection.hello.digests[fragment]
            bases[fragment] = await self._states.base(fragment, version, digest, self._view.holders(), joining=joining)

        owned = {fragment: (rank, version) for rank in ranks for fragment, version in rank.versions.items()}
        wanted: list[int] = [*owned]
        while wanted:
            # At once: over a long line, each question takes a second.
            await asyncio.gather(*(find_base(owned[one][0], one, owned[one][1]) for one in wanted))
            wanted = [one for one in wanted if self._is_before_journal(owned[one][0], one, bases[one][0])]
        goals = dict(enumerate(self._view.state.versions))
        if self._is_alone:  # who has the other frames may be away too
            goals = {fragment: self._states.here_until(fragment, base) for fragment, (base, _) in bases.items()}
        for rank in ranks:
            if self._ranks.get(rank.connection.hello.place) is rank:
                self._welcome_rank(rank, bases, goals)
        self.say_ready()

    def _is_before_journal(self, rank: _Rank, fragment: int, base: int) -> bool:
        """Whether a base is good no more: a snapshot was kept meanwhile, and the journal let go of rounds after it."""
        return not rank.connection.hello.trains and base < self._states.replayed_from(fragment)

    def _welcome_rank(self, rank: _Rank, bases: dict[int, tuple[int, bool]], goals: dict[int, int]) -> None:
        genesis, data = self._view.state.genesis, self._view.state.data_in_force
        if genesis is None:  # never: welcome has looked
            return
        taken = own_site.taken if (own_site := self._view.state.sites.get(self._view.site)) else 0
        position = self._view.state.position(self._view.site)
        own = sorted(rank.versions)
        rank.goals = {fragment: goals[fragment] for fragment in own}
        rank.versions = {fragment: bases[fragment][0] for fragment in own}
        rank.welcomed = True
        for entry in self._unheard(rank):  # first: a rank that has heard the welcome has heard all entries until then
            rank.connection.say(EntrySaid(entry=entry))
        rank.connection.say(
            RankWelcome(
                site=self._view.site,
                run=genesis.run,
                versions=rank.goals,
                head=self._view.state.head.index,
                head_hash=self._view.state.head.hash,
                states={fragment: bases[fragment][0] for fragment in own if bases[fragment][1]},
                every=self._view.state.every,
                step=self._view.state.step,
                taken=taken if data is None else position * data.sequence_length,
                data=data,
                leader=self._leader_text(),
            )
        )
        if 0 in own:
            for deal in own_deals(self._view.state, self._view.site, position):
                rank.connection.say(deal)
        for opened in self._view.opens.values():
            rank.connection.say(opened)

    def _unheard(self, rank: _Rank) -> Iterator[Entry]:
        """What a rank that is welcomed has to hear of the journal: the last snapshot, if sites lack it, and the rounds
        from its versions on. One that trains hears all that came while it had no agent: a round that it has applied may
        be void."""
        state, journal, hello = self._view.state, self._view.journal, rank.connection.hello
        if not hello.trains and state.snapshot is not None and state.lacks_snapshot:
            yield state.snapshot
        behind = [fragment for fragment, version in rank.versions.items() if version < state.versions[fragment]]
        lacks = [next(journal.rounds(fragment, rank.versions[fragment]), None) for fragment in behind]
        begins = [0 if one is None else one.index for one in lacks]
        if hello.trains:
            begins.append(hello.head + 1)
        for entry in journal.read(min(begins)) if begins else ():
            base = rank.versions.get(entry.fragment) if isinstance(entry, AnyRound | Skip) else None
            lacked = isinstance(entry, AnyRound | Skip) and base is not None and entry.version >= base
            if lacked or (hello.trains and entry.index > hello.head):
                yield entry

    def _leader_text(self) -> str:
        """Who leads, as far as it is known."""
        at = self._view.leader_at
        found = [site for site, address in self._view.known.addresses.items() if address == at]
        name = self._view.site if self._view.leader is not None else next(iter(found), "")
        return f"the leader, {name} at {at}," if name else f"the leader at {at}"


def own_deals(state: RunState, site: str, after: int) -> Iterator[SiteDeal]:
    """The deals of a site that end behind this place in its line, in sequences."""
    known, at = state.sites.get(site), state.line_begins(site)
    for piece in () if known is None else known.line:
        if at + piece.sequences > after:
            deal = state.deals[piece.deal]
            data = state.data[deal.data]
            yield SiteDeal(
                at=at,
                sequences=piece.sequences,
                start=piece.start,
                deal=piece.deal,
                shards=deal.shards,
                of=deal.sequences,
                number=data.number,
                sha256=data.sha256,
            )
        at += piece.sequences


def begins_with(state: RunState, before: RunState, site: str) -> bool:
    """Whether what was dealt to a site before is still its own: nothing of it was taken back."""
    if site not in state.sites or site not in before.sites:
        return not before.sites[site].line if site in before.sites else True
    forgotten = max(0, state.line_begins(site) - before.line_begins(site))
    _, old = cut(before.sites[site].line, forgotten)
    return state.sites[site].line[: len(old)] == old
