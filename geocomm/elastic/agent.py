"""The agent of a site in an elastic run: follows the journal, carries lines between ranks and leader, moves files.

`agent_process` runs one. At the address that all sites name it is the leader too: both use the
journal's one file then, in which the follower finds what the leader wrote. An agent may be killed at any time; the next
one goes on from the run folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from geocomm._version import __version__
from geocomm.core.addresses import HubAddress, HubAddressError
from geocomm.elastic.agent_link import BEAT_S, LeaderLink
from geocomm.elastic.fetch import Fetcher, FileServer, Outcome, Wanted
from geocomm.elastic.fragment_store import FragmentStore
from geocomm.elastic.join_states import StatesOfOthers
from geocomm.elastic.known_agents import KnownAgents
from geocomm.elastic.leader import Leader, StartAgain
from geocomm.elastic.promotion import ASK_LIMIT_S, Candidate
from geocomm.elastic.questions import (
    AgentStanding,
    EntriesAnswer,
    EntriesAsked,
    LeaderAnswer,
    MembersAsked,
    PromotionAnswer,
    PromotionAsked,
    RemovalAsked,
    StandingAsked,
    answer_of,
    ask,
    read_question,
    standings,
    tell,
)
from geocomm.elastic.rank_socket import RankConnection
from geocomm.elastic.snapshots import SnapshotError, Snapshots
from geocomm.journal.entries import BadLineError, Entry, Kept, Removed, Round, Skip, hash_of, line_of
from geocomm.journal.journal import SqliteJournal
from geocomm.journal.messages import (
    PROTOCOL_VERSION,
    Applied,
    Beat,
    Down,
    Due,
    EntrySaid,
    Fetch,
    Fetched,
    Hello,
    Hold,
    Leave,
    Leaving,
    Lost,
    Need,
    Offer,
    Open,
    Pass,
    RanksGone,
    RanksUp,
    RankWelcome,
    ReadySaid,
    Refused,
    Repair,
    SnapshotHeld,
    StateKept,
    Stop,
    TakeState,
    Up,
    Welcome,
    down_of,
)
from geocomm.journal.run_state import RunState, Standing
from geocomm.membership.own_address import own_address
from geocomm.rendezvous.store_session import Greeting, Purpose
from geocomm.rendezvous.store_session import Refused as ConnectionRefused
from geocomm.rendezvous.tls_stream import TlsStream
from geocomm.rendezvous.to_collector import carry_to_collector
from geocomm.rendezvous.waiting import Waiting
from geocomm.security.keys import Identity, Keys, KeysError

NEED_PAUSE_S = 5.0
"""Between two attempts to find a listed frame."""
FIND_AFTER_S = 9.0
"""Without a leader for so long, an agent asks all others whom they follow; and so often again."""
_RANKS_LIMIT_S = 3.0
_RANKS_END_S = 60.0
_ENTRIES_AT_ONCE = 100
_ATTEMPTS = "attempts.json"


class AgentEnded(Exception):
    """The site's part in the run is over; `refused`: not in good order, and the message says why."""

    def __init__(self, why: str, *, refused: bool) -> None:
        super().__init__(why)
        self.refused = refused


@dataclass
class _Rank:
    """An owner of fragments that is connected."""

    connection: RankConnection
    versions: dict[int, int]
    """Of its fragments, as it says."""
    goals: dict[int, int] = field(default_factory=dict[int, int])
    """Those that the journal had when the rank was welcomed."""
    welcomed: bool = False
    left: bool = False

    @property
    def caught_up(self) -> bool:
        return self.welcomed and all(self.versions.get(fragment, -1) >= goal for fragment, goal in self.goals.items())


class Agent:
    """One site's agent, without its sockets: `agent_process` brings those. Used in one event loop."""

    def __init__(
        self,
        hub: str,
        known: KnownAgents,
        keys: Keys,
        store: FragmentStore,
        journal: SqliteJournal,
        state: RunState,
        own_at: HubAddress,
        leader: Leader | None,
        log: Callable[[str], None],
        *,
        passes_on: bool = False,
    ) -> None:
        """hub: where all sites look for the leader at the start. state: what the journal says, which this agent goes on
        with. own_at: where it listens, on this machine. leader: where it leads too. passes_on: another site leads by
        itself where the leader is gone."""
        self.site = keys.identity.site
        self.state = state
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises AgentEnded, in the end."""
        self.left = asyncio.Event()
        """The site has left, as the journal says."""
        self.asked_to_leave = False
        """The agent that comes after this one, in the same process, goes on with that."""
        self._hub, self._known, self._keys, self._store, self._journal = hub, known, keys, store, journal
        self._own_at, self._leader, self._log, self._passes_on = own_at, leader, log, passes_on
        # A leader may not reach itself by the address that it has for others.
        link_to = own_at if leader is not None else HubAddress.parse(self._leader_at)
        self._link = LeaderLink(link_to, keys, self._hello, self._take, self._link_lost, log)
        self._fetcher = Fetcher(store, keys, log)
        self._files = FileServer(
            store, lambda: (self.state.head.index, self.state.term), self._get_for_others if leader else None
        )
        self._states = StatesOfOthers(store, journal.path, self._fetcher, log)
        self._snapshots = Snapshots(store)
        self._ranks: dict[int, _Rank] = {}
        self._welcome: Welcome | None = None
        self._was_welcomed = False
        self._is_current = False
        """The leader has welcomed this agent, and its journal has what the leader's had then."""
        self._opens: dict[int, Open] = {}
        self._attempts = self._read_attempts()
        self._beat: Beat | None = None
        self._own_fetch = ""
        self._leaving = False
        self._promoting = asyncio.Lock()
        self._asking_leader: asyncio.Task[dict[str, str]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted: set[Wanted] = set()
        self._welcoming: asyncio.Task[None] | None = None

    @property
    def is_followed(self) -> bool:
        """Whether the leader hears this site, and counts it."""
        known = self.state.sites.get(self.site)
        return self._welcome is not None and known is not None and known.standing is Standing.READY

    async def run(self) -> None:
        """Follow the leader until cancelled."""
        if self.state.ended:
            self._end(f"the run in {self._store.run_dir} has ended: start with an empty run folder", refused=True)
        beside = [asyncio.create_task(self._beat_forever()), asyncio.create_task(self._look_for_leader())]
        try:
            await self._link.run()
        finally:
            for task in (*beside, *self._tasks):
                task.cancel()
            await asyncio.gather(*beside, *self._tasks, return_exceptions=True)

    async def serve_connection(self, stream: TlsStream, greeting: Greeting, peer: Identity) -> None:
        """What comes through the doorway."""
        if greeting.purpose is Purpose.FETCH:
            await self._files.serve(stream)
        elif greeting.purpose is Purpose.ASK:
            await self._answer(stream, peer.site)
        elif greeting.purpose is Purpose.TELEMETRY:
            if self._leader is None:
                raise ConnectionRefused(f"this agent does not lead; the leader is at {self._leader_at}")
            await carry_to_collector(stream, peer.site, self._store.run_dir)
        elif greeting.purpose is not Purpose.RUN:
            raise ConnectionRefused("this is an agent of an elastic run: start all sites with --elastic, or none")
        elif self._leader is None:
            raise ConnectionRefused(f"this agent does not lead; the leader is at {self._leader_at}")
        else:
            await self._leader.serve_site(stream, peer.site)

    @property
    def others(self) -> list[str]:
        """Sites of the run that train, or are about to."""
        here = (Standing.READY, Standing.JOINING)
        return [name for name, one in self.state.sites.items() if one.standing in here and name != self.site]

    def ask_ranks_to_leave(self) -> bool:
        """Have the ranks offer what has not counted yet, and the site leave once it has. Whether there are any that
        can."""
        self._tell_ranks(Leaving())
        return self._complete and self.is_followed

    def leave(self) -> None:
        """The site ends its part in good order: what it has offered is its last."""
        self._leaving = True
        self._say_leave()

    def _say_leave(self) -> None:
        if self._leaving:
            self._say(Leave())

    # ---- who leads

    @property
    def _leader_at(self) -> str:
        return self._known.leader or self._hub

    async def _answer(self, stream: TlsStream, site: str) -> None:
        """A question of some site."""
        match await read_question(stream):
            case MembersAsked() | RemovalAsked() as asked:
                other = LeaderAnswer(
                    problem=f"the agent of {self.site} does not lead; the leader is at {self._leader_at}"
                )
                await tell(stream, other if self._leader is None else answer_of(self._leader, asked))
            case StandingAsked(run=run, term=term, leader=leader):
                heard = self._sees(run, term, leader)
                await tell(stream, self._standing)
                if heard:
                    self._follow_leader()
            case EntriesAsked(first=first):
                entries = tuple(itertools.islice(self._journal.read(first), _ENTRIES_AT_ONCE))
                await tell(stream, EntriesAnswer(entries=entries))
            case PromotionAsked() as asked:
                async with self._promoting:
                    answer = await self._promote(asked, site)
                    try:
                        await tell(stream, answer)
                    finally:
                        self._lead_if(answer)

    @property
    def _standing(self) -> AgentStanding:
        genesis, head = self.state.genesis, self._journal.head
        return AgentStanding(
            site=self.site,
            run=None if genesis is None else genesis.run,
            head=head.index,
            head_hash=head.hash,
            chain=self.state.term,
            term=self._known.term,
            leader=self._leader_at,
            leads=self._leader is not None,
        )

    async def _promote(self, asked: PromotionAsked, site: str) -> PromotionAnswer:
        if self.ended.done():
            return PromotionAnswer(problem=f"the agent of site {self.site} starts anew: ask again")
        if site != self.site:
            return PromotionAnswer(problem=f"site {self.site} alone may promote itself, not {site}")
        if self._passes_on:
            return PromotionAnswer(
                problem="the journal of this run is in etcd, where another site takes over by itself: end the leader's "
                "agent, and wait for 10 s"
            )
        host = own_address(HubAddress.parse(self._hub).host)
        address = asked.address or self._own_fetch or str(HubAddress(host, self._own_at.port))
        if self._leader is not None and address == self._leader_at:
            return PromotionAnswer(problem=f"site {self.site} leads already, at {address}")
        candidate = Candidate(
            *(self.site, address, self._hub, self._keys, self.state, self._journal, self._known),
            take=self._take_next,
            hear=self._heard_of,
        )
        answer = await candidate.promote(asked)
        if not answer.problem:
            self._link_lost()  # what the leader before still says is not heard
        return answer

    async def _promote_again(self) -> str:
        """Go on with a promotion that did not come to its end. Why that cannot be yet; empty: it can."""
        async with self._promoting:
            if not self._known.claims_after(self.state.term):
                return ""
            answer = await self._promote(PromotionAsked(address=self._leader_at, force=self._known.force), self.site)
            self._lead_if(answer)
            return answer.problem

    def _lead_if(self, answer: PromotionAnswer) -> None:
        if not answer.problem:
            self._start_again(f"site {self.site} leads from now on, at {answer.address}: term {answer.term}")

    def _take_next(self, entry: Entry) -> None:
        """An entry that another agent has, and that follows the last one here."""
        head = self._journal.head
        if entry.index != head.index + 1 or entry.prev != head.hash:
            raise BadLineError(f"entry {entry.index} does not follow entry {head.index}")
        self._append(entry)

    def hear_of_leader(self, term: int, leader: str) -> None:
        """This one leads the run."""
        self._heard_of("" if self.state.genesis is None else self.state.genesis.run, term, leader)

    def _heard_of(self, run: str | None, term: int, leader: str) -> None:
        """An agent of that run follows this leader: the higher term counts."""
        if self._sees(run, term, leader):
            self._follow_leader()

    def _sees(self, run: str | None, term: int, leader: str) -> bool:
        """Whether that is the highest term of this run so far, which is kept then."""
        genesis = self.state.genesis
        if run is None or (genesis is not None and run != genesis.run) or term <= self._known.term:
            return False
        try:
            HubAddress.parse(leader)
        except HubAddressError:
            return False
        self._known.saw(term, leader)
        return True

    def _follow_leader(self) -> None:
        """Go to the leader of the highest term; what the one before still says is not heard."""
        told = f"another site leads since term {self._known.term}, at {self._leader_at}: this one follows it"
        if self._leader is not None:
            self._start_again(told)
        else:
            self._log(told)
            self._link_lost()
            self._link.move(HubAddress.parse(self._leader_at))

    def _start_again(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(StartAgain(why))

    async def _look_for_leader(self) -> None:
        clock = asyncio.get_running_loop().time
        since, waiting = clock(), Waiting(self._log)
        while True:
            await asyncio.sleep(1)
            if self._known.claims_after(self.state.term):
                why = await self._promote_again()
                waiting.tell(lambda why=why: f"enough sites to agree that this one leads ({why})")
            elif self._welcome is not None:
                since, waiting = clock(), Waiting(self._log)
            elif clock() - since >= FIND_AFTER_S:
                await self._ask_others({self._hub, *self._known.addresses.values()})
                since = clock()

    async def tell_others(self) -> None:
        """A leader tells those that are not connected to it that it leads, and hears of later ones, until cancelled."""
        while self._leader is not None:
            connected = {site for site, seen in self._leader.seen.items() if seen.connected}
            await self._ask_others({at for site, at in self._known.addresses.items() if site not in connected})
            await asyncio.sleep(FIND_AFTER_S)

    async def _ask_others(self, addresses: set[str]) -> None:
        genesis = self.state.genesis
        run = None if genesis is None else genesis.run
        asked = StandingAsked(run=run, term=self._known.term, leader=self._leader_at)
        own = {self._own_fetch, str(self._own_at), self._known.addresses.get(self.site, "")}
        for one in (await standings(addresses - own, self._keys, asked, ASK_LIMIT_S)).values():
            self._heard_of(one.run, one.term, one.leader)

    def _go_back(self, first: int) -> None:
        """This journal ends outside the run's: what the site did from entry `first` on is not a part of it."""
        self._link_lost()  # nothing is heard or said any more
        self._start(self._rejoin(first))

    async def _rejoin(self, first: int) -> None:
        void: dict[int, int] = {}
        for entry in self._journal.read(first):
            if isinstance(entry, Round | Skip):
                void[entry.fragment] = min(entry.version, void.get(entry.fragment, entry.version))
        why = (
            f"the entries of site {self.site} from {first} on are those of a leader before, and not a part of the run: "
            f"it goes on from where the leader at {self._leader_at} took over"
        )
        if void:
            # Ranks that have just started have heard of no round.
            ending = [rank for rank in self._ranks.values() if rank.welcomed or rank.connection.hello.head >= first]
            for rank in ending:
                rank.connection.say(Stop(why=why))
            end, waiting = asyncio.get_running_loop().time() + _RANKS_END_S, Waiting(self._log)
            while any(rank in ending for rank in self._ranks.values()) and asyncio.get_running_loop().time() < end:
                waiting.tell(lambda: "the ranks of this site to end: they have rounds that the run does not have")
                await asyncio.sleep(0.1)
        for fragment, version in void.items():
            self._store.remove_states_after(fragment, version)
        self._snapshots.remove_from(first)
        aside = self._journal.cut(first)
        self._start_again(f"{why}. The entries are kept in {aside.name}")

    # ---- the leader

    def _hello(self, own_host: str) -> str:
        self._own_fetch = str(HubAddress(own_host, self._own_at.port))
        if self._leader is not None:
            self._own_fetch = self._leader_at
        self._known.learn(self.site, self._own_fetch)
        head = self._journal.head
        genesis = self.state.genesis
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            geocomm=__version__,
            store=self._store.store_id,
            run=genesis.run if genesis is not None else None,
            head=head.index,
            head_hash=head.hash if head.index >= 0 else None,
            term=self.state.term,
            fetch=self._own_fetch,
            attempts={
                fragment: attempt
                for fragment, (version, attempt) in self._attempts.items()
                if fragment < len(self.state.versions) and version == self.state.versions[fragment]
            },
        )
        return line_of(hello)

    def _take(self, line: bytes) -> None:
        """A line of the leader. BadLineError: it is none, or does not fit the journal."""
        down = down_of(line)
        if self._welcome is None and not isinstance(down, Welcome | Refused | Stop):
            return  # the site goes to another leader
        match down:
            case Welcome():
                if down.term < self._known.term:
                    raise BadLineError(f"it leads with term {down.term}, and term {self._known.term} was seen")
                self._known.saw(down.term, self._leader_at)
                self._welcomed(down)
            case EntrySaid():
                self._append(down.entry)
            case Open():
                self._opens[down.fragment] = down
                for peer in down.peers:
                    self._known.learn(peer.site, peer.fetch)
                self._attempts[down.fragment] = (down.version, down.attempt)
                self._write_attempts()
                self._tell_ranks(down)
            case Fetch():
                wanted = Wanted(down.fragment, down.version, down.site, down.frame, down.bytes)
                self._want(wanted, self._fetch_once(wanted, [one for one in down.sources if one != self._own_fetch]))
            case Repair():
                self._tell_ranks(down)
            case Refused() if down.blames == "leader" or (down.blames == "run" and self._was_welcomed):
                raise BadLineError(down.why)
            case Stop() | Refused():
                self._tell_ranks(Stop(why=down.why))
                self._end(down.why, refused=True)
            case _:
                raise BadLineError(f"{down.kind} is not for an agent")

    def _welcomed(self, welcome: Welcome) -> None:
        self._welcome, self._was_welcomed = welcome, True
        still = set(welcome.open)
        self._opens = {
            fragment: one for fragment, one in self._opens.items() if (fragment, one.version, one.attempt) in still
        }
        self._say_beat()
        self._ranks_changed()
        self._start(self._watch_for_ranks())
        self._say_leave()
        self._become_current()

    def _become_current(self) -> None:
        """The journal is here as far as the leader had it: now ranks may say what they have, and are heard."""
        if self._is_current or self._welcome is None or self.state.head.index < self._welcome.head:
            return
        self._is_current = True
        for rank in self._ranks.values():
            if rank.welcomed:
                rank.goals = {fragment: self.state.versions[fragment] for fragment in rank.versions}
        self._tell_ranks(self._welcome)
        self._say_ready()
        self._start(self._look_at_snapshot())

    def _link_lost(self) -> None:
        self._welcome, self._is_current = None, False

    def _say(self, up: Up) -> None:
        if self._welcome is not None:
            self._link.say(line_of(up))

    def _say_of_round(self, up: Due | Offer | Pass | Hold | Applied | Lost) -> None:
        """What a site says of rounds is to be taken as said by one that knows the journal."""
        if self._is_current:
            self._say(up)

    def _append(self, entry: Entry) -> None:
        head = self._journal.head
        if entry.index <= head.index:
            if self._journal.hash_at(entry.index) != hash_of(entry):
                self._go_back(entry.index)
                return
        elif entry.prev != head.hash and self._welcome is not None and self._welcome.term > self.state.term:
            self._go_back(self.state.terms.get(self.state.term, 0))
            return
        else:
            self._follow()
            self._take_entry(entry)
            self._journal.append(entry, head)
            self._applied_entry(entry)
        self._follow()
        self._become_current()
        self._welcome_ranks()

    def _follow(self) -> None:
        """Take what is in the journal and not yet in the state: what the leader of this process wrote."""
        if self.state.head != self._journal.head:
            for entry in self._journal.read(self.state.head.index + 1):
                self._take_entry(entry)
                self._applied_entry(entry)

    def _take_entry(self, entry: Entry) -> None:
        self.state.apply(entry)
        if isinstance(entry, Skip):
            self._store.remove_states_after(entry.fragment, entry.version)

    def _applied_entry(self, entry: Entry) -> None:
        """An entry is in the journal and in the state: now the ranks may see it."""
        if isinstance(entry, Round | Skip):
            known = self._opens.get(entry.fragment)
            if known is not None and known.version <= entry.version:
                del self._opens[entry.fragment]
        self._tell_ranks(EntrySaid(entry=entry))
        if isinstance(entry, Kept):
            self._start(asyncio.to_thread(self._snapshots.prune, list(self.state.kept)))
        if isinstance(entry, Removed) and entry.site == self.site:
            self._end(f"site {self.site} was removed from the run: {entry.why}", refused=True)
        known = self.state.sites.get(self.site)
        if self._leaving and known is not None and known.standing is Standing.LEFT:
            self.left.set()
        if self.state.ended and not self.left.is_set():
            self._end(f"the run has ended, with entry {entry.index}: start with an empty run folder", refused=True)
        elif self.state.ended or (self.left.is_set() and self._leader is None):
            self._end("the site has left the run", refused=False)

    def _end(self, why: str, *, refused: bool) -> None:
        if not self.ended.done():
            self.ended.set_exception(AgentEnded(why, refused=refused))

    async def _beat_forever(self) -> None:
        while True:
            self._say_beat()
            await asyncio.sleep(BEAT_S)

    def _say_beat(self) -> None:
        beat = self._beat or Beat(step=0, tokens=0, step_s=0, line_s=0, free_bytes=0)
        self._say(beat.model_copy(update={"free_bytes": self._store.free_bytes}))

    # ---- the ranks

    def rank_came(self, connection: RankConnection) -> None:
        """A rank has said hello."""
        hello = connection.hello
        own = {fragment for fragment in range(hello.model.fragments) if fragment % hello.owners == hello.place}
        if hello.place >= hello.owners or own != set(hello.digests) or own != set(hello.versions):
            connection.say(
                Stop(why=f"a rank that is number {hello.place} of {hello.owners} owners has other fragments")
            )
            connection.close()
            return
        if hello.head >= 0 and self._journal.hash_at(hello.head) != hello.head_hash:
            # It was away while this site's entries were set aside: it may have their rounds.
            connection.say(
                Stop(
                    why=f"the entries of site {self.site} up to {hello.head} that this rank has heard of are not a "
                    "part of the run any more: it starts again from what the others have"
                )
            )
            connection.close()
            return
        versions = dict(enumerate(self.state.versions))
        if any(version > versions.get(fragment, 0) for fragment, version in hello.versions.items()):
            connection.say(Stop(why="this rank has applied rounds that the run does not have: start it again"))
            connection.close()
            return
        others = [rank.connection.hello for place, rank in self._ranks.items() if place != hello.place]
        if any((other.owners, other.model) != (hello.owners, hello.model) for other in others):
            connection.say(Stop(why="the ranks of this site have different models or settings"))
            connection.close()
            return
        if (before := self._ranks.pop(hello.place, None)) is not None:
            if before.connection.hello.owner.id != hello.owner.id:  # its launcher died, and it did not notice
                before.connection.say(Stop(why="another process has taken the place of this rank"))
            before.connection.close()
        self._ranks[hello.place] = _Rank(connection, dict(hello.versions))
        self._ranks_changed()

    def rank_said(self, connection: RankConnection, up: Up) -> None:
        """A rank has said something. BadLineError: what it may not say."""
        rank = self._ranks.get(connection.hello.place)
        if rank is None or rank.connection is not connection:
            return
        match up:
            case Applied():
                if up.fragment not in rank.versions:
                    raise BadLineError(f"a rank applied fragment {up.fragment}, which is not its own")
                rank.versions[up.fragment] = up.version
                self._say_of_round(up)
                self._say_ready()
            case Need():
                wanted = Wanted(up.fragment, up.version, up.site, up.frame, up.bytes)
                self._want(wanted, self._fetch_until_here(wanted))
            case StateKept():
                self._start(self._look_at_snapshot())
            case Beat():
                if connection.hello.place == 0:
                    self._beat = up
            case Leave():
                rank.left = True
                if self._complete and all(one.left for one in self._ranks.values()):
                    self.leave()
            case Due() | Offer() | Pass() | Hold():
                self._say_of_round(up)
            case _:
                raise BadLineError(f"a rank said {up.kind}")

    def rank_gone(self, connection: RankConnection) -> None:
        """The connection of a rank has ended: the agent lives, so the rank does not."""
        place = connection.hello.place
        rank = self._ranks.get(place)
        if rank is None or rank.connection is not connection:
            return
        complete = self._complete
        del self._ranks[place]
        if complete:
            self._say(RanksGone(why="its ranks have ended"))

    @property
    def _complete(self) -> bool:
        """Whether all owners are connected."""
        first = next(iter(self._ranks.values()), None)
        return first is not None and len(self._ranks) == first.connection.hello.owners

    def _tell_ranks(self, down: Down) -> None:
        for rank in self._ranks.values():
            if rank.welcomed or isinstance(down, Stop):
                rank.connection.say(down)

    def _ranks_changed(self) -> None:
        """Ranks or the leader's welcome are new."""
        if not self._complete or self._welcome is None:
            return
        hellos = [self._ranks[place].connection.hello for place in sorted(self._ranks)]
        model = hellos[0].model
        digests = tuple(hellos[fragment % len(hellos)].digests[fragment] for fragment in range(model.fragments))
        self._say(RanksUp(owners=tuple(hello.owner for hello in hellos), model=model, digests=digests))
        self._welcome_ranks()
        self._say_ready()

    def _say_ready(self) -> None:
        if self._is_current and self._complete and all(rank.caught_up for rank in self._ranks.values()):
            self._say(ReadySaid())

    def _welcome_ranks(self) -> None:
        """Welcome the ranks that wait for it, once the journal is here as far as the leader had it."""
        waiting = any(not rank.welcomed for rank in self._ranks.values())
        known = self.state.genesis is not None and self.site in self.state.sites
        if waiting and self._is_current and known and self._complete and self._welcoming is None:
            self._welcoming = self._start(self._prepare_and_welcome())
            self._welcoming.add_done_callback(self._welcoming_ended)

    def _welcoming_ended(self, task: asyncio.Task[None]) -> None:
        self._welcoming = None
        if not task.cancelled():
            self._welcome_ranks()

    async def _prepare_and_welcome(self) -> None:
        """Bring here what the ranks load first, then tell them; ranks that came meanwhile get their own turn."""
        ranks = [rank for rank in self._ranks.values() if not rank.welcomed]
        bases: dict[int, tuple[int, bool]] = {}
        rounds = await self._states.rounds()
        joining = self.state.sites[self.site].standing is Standing.JOINING

        async def find_base(rank: _Rank, fragment: int, version: int) -> None:
            if rank.connection.hello.trains:  # it asks for frames that it lacks, and takes a state where they are gone
                bases[fragment] = version, False
                return
            digest = rank.connection.hello.digests[fragment]
            bases[fragment] = await self._states.base(
                self.state, rounds, fragment, version, digest, self._sources, joining=joining
            )

        # At once: over a long line, each question takes a second.
        await asyncio.gather(
            *(find_base(rank, fragment, version) for rank in ranks for fragment, version in rank.versions.items())
        )
        for rank in ranks:
            if self._ranks.get(rank.connection.hello.place) is rank:
                self._welcome_rank(rank, bases, rounds)
        self._say_ready()

    def _welcome_rank(self, rank: _Rank, bases: dict[int, tuple[int, bool]], rounds: dict[int, list[Round]]) -> None:
        genesis = self.state.genesis
        if genesis is None:  # never: _welcome_ranks has looked
            return
        own = sorted(rank.versions)
        rank.goals = {fragment: self.state.versions[fragment] for fragment in own}
        rank.versions = {fragment: bases[fragment][0] for fragment in own}
        rank.welcomed = True
        rank.connection.say(
            RankWelcome(
                site=self.site,
                run=genesis.run,
                versions=rank.goals,
                states={fragment: bases[fragment][0] for fragment in own if bases[fragment][1]},
                every=self.state.every,
                step=self.state.step,
                taken=own_site.taken if (own_site := self.state.sites.get(self.site)) else 0,
            )
        )
        behind = [fragment for fragment in own if rank.versions[fragment] < rank.goals[fragment]]
        if behind:
            lacks = [
                one for fragment in behind for one in rounds.get(fragment, []) if one.version == bases[fragment][0]
            ]
            first = min(one.index for one in lacks) if len(lacks) == len(behind) else 0
            for entry in self._journal.read(first):
                if isinstance(entry, Round | Skip):
                    base = rank.versions.get(entry.fragment)
                    if base is not None and entry.version >= base:
                        rank.connection.say(EntrySaid(entry=entry))
        for opened in self._opens.values():
            rank.connection.say(opened)

    async def _watch_for_ranks(self) -> None:
        """The leader may not know that the ranks are gone: they ended while it, or this agent, was away."""
        await asyncio.sleep(_RANKS_LIMIT_S)
        known = self.state.sites.get(self.site)
        if not self._complete and known is not None and known.standing is Standing.READY:
            self._say(RanksGone(why="its agent has no ranks"))

    # ---- files

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.ended.done():
            self.ended.set_exception(error)

    def _want(self, wanted: Wanted, work: Coroutine[Any, Any, None]) -> None:
        """Get a frame, unless that is under way."""
        if wanted in self._wanted:
            work.close()
            return
        self._wanted.add(wanted)
        self._start(work).add_done_callback(lambda _: self._wanted.discard(wanted))

    @property
    def _proxy(self) -> str | None:
        return None if self._leader is not None else self._leader_at

    async def _fetch_once(self, wanted: Wanted, sources: Iterable[str]) -> None:
        if await self._fetcher.frame(wanted, list(sources), self._proxy) is Outcome.HERE:
            self._arrived(wanted)

    async def _fetch_until_here(self, wanted: Wanted) -> None:
        """A listed frame: whoever has it, until it is here, or the rank no longer needs it."""
        waiting = Waiting(self._log)
        while self._is_needed(wanted):
            sources = await self._sources(first=wanted.site)
            outcome = await self._fetcher.frame(wanted, sources, self._proxy)
            if outcome is Outcome.HERE:
                self._arrived(wanted)
                return
            if outcome is Outcome.ABSENT and not await self._take_state(wanted, sources):
                self._say_of_round(
                    Lost(fragment=wanted.fragment, version=wanted.version, site=wanted.site, frame=wanted.frame)
                )
            waiting.tell(lambda: f"the frame of site {wanted.site} (fragment {wanted.fragment}, {wanted.version})")
            await asyncio.sleep(NEED_PAUSE_S)

    async def _take_state(self, wanted: Wanted, sources: list[str]) -> bool:
        """Others let go of frames once they have written a state. Whether there is one, which the ranks take then."""
        version = await self._states.newest(self.state, wanted.fragment, wanted.version, sources)
        if version is None:
            return False
        for rank in self._ranks.values():
            if rank.welcomed and wanted.fragment in rank.versions:
                rank.connection.say(TakeState(fragment=wanted.fragment, version=version))
        return True

    def _is_needed(self, wanted: Wanted) -> bool:
        void = (wanted.fragment, wanted.version) in self.state.skipped
        return not void and any(
            rank.versions.get(wanted.fragment, wanted.version + 1) <= wanted.version for rank in self._ranks.values()
        )

    def _arrived(self, wanted: Wanted) -> None:
        """A frame lies on the disk: the leader may count on it, and the owner of the fragment use it."""
        names = {
            "fragment": wanted.fragment,
            "version": wanted.version,
            "site": wanted.site,
            "frame": wanted.frame,
        }
        self._say_of_round(Hold.model_validate(names | {"by_mail": False}))
        for rank in self._ranks.values():
            if rank.welcomed and wanted.fragment in rank.versions:
                rank.connection.say(Fetched.model_validate(names))

    async def _sources(self, first: str = "") -> list[str]:
        """Where other agents give out files; that of the site `first` comes first."""
        found = {peer.site: peer.fetch for opened in self._opens.values() for peer in opened.peers}
        if self._leader is not None:
            found |= {site: seen.fetch for site, seen in self._leader.seen.items() if seen.connected}
        else:
            found |= await self._agents_at_leader()
        found.pop(self.site, None)
        sites = sorted((site for site, fetch in found.items() if fetch), key=lambda site: (site != first, site))
        return [found[site] for site in sites]

    async def _agents_at_leader(self) -> dict[str, str]:
        """By site, where the agents that the leader hears give out files; none: it does not say.

        Who wants to know meanwhile gets the same answer: a site that was away for long wants hundreds of frames at
        once, and the leader would do nothing but shake hands with it.
        """
        if self._asking_leader is None:
            self._asking_leader = asyncio.create_task(self._ask_leader())
            self._asking_leader.add_done_callback(self._leader_answered)
        return await asyncio.shield(self._asking_leader)

    def _leader_answered(self, _: asyncio.Task[dict[str, str]]) -> None:
        self._asking_leader = None

    async def _ask_leader(self) -> dict[str, str]:
        with contextlib.suppress(OSError, KeysError):
            answered = await ask(HubAddress.parse(self._leader_at), self._keys, MembersAsked(), LeaderAnswer)
            return {seen.site: seen.fetch for seen in answered.sites if seen.connected}
        return {}

    async def _get_for_others(self, wanted: Wanted) -> bool:
        return await self._fetcher.frame(wanted, await self._sources(first=wanted.site)) is Outcome.HERE

    # ---- snapshots

    async def _look_at_snapshot(self) -> None:
        """Tell the leader of the newest snapshot, once all of it is here."""
        entry, genesis = self.state.snapshot, self.state.genesis
        if entry is None or genesis is None or entry.index in self.state.kept:
            return
        try:
            manifest = await asyncio.to_thread(self._snapshots.completed, entry, genesis.run)
        except (OSError, SnapshotError) as error:
            self._log(f"snapshot {entry.index} cannot be kept: {error}")
            return
        if manifest is not None and self._is_current:
            self._say(SnapshotHeld(snapshot=entry.index, digest=manifest.digest))

    # ---- attempts

    def _read_attempts(self) -> dict[int, tuple[int, int]]:
        """By fragment: the version and the highest attempt at it that this site has seen."""
        try:
            content = json.loads((self._store.run_dir / _ATTEMPTS).read_text())
            return {int(fragment): (int(one[0]), int(one[1])) for fragment, one in content.items()}
        except (OSError, ValueError, TypeError, AttributeError, IndexError):
            return {}

    def _write_attempts(self) -> None:
        """For the next agent. Without fsync: a machine that goes down takes the ranks, and what they saw, with it."""
        part = self._store.run_dir / f".{_ATTEMPTS}"
        try:
            part.write_text(json.dumps(self._attempts))
            os.replace(part, self._store.run_dir / _ATTEMPTS)
        except OSError as error:
            self._log(f"cannot write {_ATTEMPTS}: {error.strerror}")
