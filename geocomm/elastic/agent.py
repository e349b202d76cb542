"""The agent of a site in an elastic run: follows the journal, carries lines between ranks and leader, moves files.

`agent_process` runs one. At the address that all sites name it is the leader too: both use the
journal's one file then, in which the follower finds what the leader wrote. An agent may be killed at any time; the next
one goes on from the run folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from geocomm._version import __version__
from geocomm.core.addresses import HubAddress
from geocomm.elastic.agent_link import BEAT_S, LeaderLink
from geocomm.elastic.fetch import Fetcher, FileServer
from geocomm.elastic.following import Following
from geocomm.elastic.fragment_store import FragmentStore
from geocomm.elastic.frame_fetches import FrameFetches
from geocomm.elastic.join_states import StatesOfOthers
from geocomm.elastic.known_agents import KnownAgents, TermNotKeptError
from geocomm.elastic.leader import Leader
from geocomm.elastic.loading_ahead import LoadingAhead
from geocomm.elastic.rank_socket import RankConnection
from geocomm.elastic.run_view import AgentLife, OtherAgents, RunView
from geocomm.elastic.site_ranks import SiteRanks, begins_with
from geocomm.elastic.snapshots import SnapshotError, Snapshots, forget
from geocomm.group.rendezvous.store_process import log
from geocomm.group.rendezvous.store_session import Greeting, Purpose, SessionRefused
from geocomm.group.rendezvous.tls_stream import TlsStream
from geocomm.group.rendezvous.to_collector import carry_to_collector
from geocomm.journal.entries import (
    BadLineError,
    Deal,
    Entry,
    Join,
    Kept,
    Removed,
    Round,
    Skip,
    Snapshot,
    TakenBack,
)
from geocomm.journal.journal import SqliteJournal
from geocomm.journal.messages import (
    MAX_STATE_CHARS,
    PROTOCOL_VERSION,
    Applied,
    Beat,
    Due,
    EntrySaid,
    Fetch,
    Hello,
    Hold,
    Leave,
    Leaving,
    Need,
    Offer,
    Open,
    Pass,
    Peer,
    Peers,
    RanksGone,
    Refused,
    Repair,
    SnapshotHeld,
    StateKept,
    StatePart,
    Stop,
    Up,
    Wanted,
    Welcome,
    down_of,
    said,
)
from geocomm.journal.run_state import RunState, Standing
from geocomm.security.key_folder import Identity, Keys

_RANKS_LIMIT_S = 3.0
_STORED_AT_ONCE = 500
"""Entries, while the journal here lacks those that the leader had at the welcome."""


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
        *,
        ranks: bool,
        passes_on: bool,
    ) -> None:
        """hub: where all sites look for the leader at the start. state: what the journal says, which this agent goes on
        with. own_at: where it listens, on this machine. leader: where it leads too. ranks: its site has some.
        passes_on: another site leads by itself where the leader is gone."""
        self.site = keys.identity.site
        self.left = asyncio.Event()
        """The site has left, as the journal says."""
        self.ranks_ended = asyncio.Event()
        """The last ranks of the site are gone, and no others have come."""
        self.asked_to_leave = False
        """The agent that comes after this one, in the same process, goes on with that."""
        # A leader may not reach itself by the address that it has for others.
        link_to = own_at if leader is not None else HubAddress.parse(known.leader or hub)
        link = LeaderLink(link_to, keys, self._hello, self._take, self._link_lost, log)
        self._view = view = RunView(self.site, hub, state, journal, known, leader, link)
        self._life = life = AgentLife()
        self._own_at, self._store, self._has_ranks, self._passes_on = own_at, store, ranks, passes_on
        self._fetcher = fetcher = Fetcher(store, keys, log, lambda: view.state.most_frame_bytes)
        self._others = others = OtherAgents(view, keys)
        states = StatesOfOthers(store, journal, fetcher, log)
        self._following = Following(
            view, keys, own_at, self._append_now, life, run_dir=store.run_dir, passes_on=passes_on
        )
        self._ahead = LoadingAhead(view, states, others, fetcher, life)
        self._ranks = SiteRanks(view, states, others, self._ahead, life)
        self._frames = FrameFetches(view, self._ranks, others, fetcher, states, life)
        self._files = FileServer(
            store, lambda: (view.state.head.index, view.state.term), self._frames.for_others if leader else None
        )
        self._snapshots = Snapshots(store)
        self._was_welcomed = False
        self._beat: Beat | None = None
        self._leaving = False
        self._arrived: list[Entry] = []
        """They wait for others, to be stored at once."""
        self._state_text = ""
        """What has come of a state that arrives in parts."""

    @property
    def ended(self) -> asyncio.Future[None]:
        """Raises AgentEnded or StartAgain, in the end."""
        return self._life.ended

    @property
    def files_idle_since(self) -> float:
        """Since when nobody has got a frame or a state here, by the monotonic clock."""
        return self._files.idle_since

    @property
    def is_followed(self) -> bool:
        """Whether the leader hears this site, and counts it."""
        known = self._view.state.sites.get(self.site)
        return self._view.welcome is not None and known is not None and known.standing is Standing.READY

    async def run(self) -> None:
        """Follow the leader until cancelled."""
        if self._view.state.ended:
            self._life.end(f"the run in {self._store.run_dir} has ended: start with an empty run folder", refused=True)
        self._life.start(self._beat_forever())
        if self._has_ranks:
            self._life.start(self._dial_others())
        self._life.start(self._following.look())
        self._life.start(self._ranks.begin_without_leader())
        try:
            await self._view.link.run()
        finally:
            await self._life.stop()

    async def _dial_others(self) -> None:
        """Ranks that start will want what others have."""
        holders = self._others.holders()
        await self._fetcher.dial_ahead(await holders())

    async def tell_others(self) -> None:
        """A leader tells those that are not connected to it that it leads, and hears of later ones, until cancelled."""
        await self._following.tell_others()

    def hear_of_leader(self, term: int, leader: str) -> None:
        """This one leads the run."""
        self._following.hear(term, leader)

    async def serve_connection(self, stream: TlsStream, greeting: Greeting, peer: Identity) -> None:
        """What comes through the doorway."""
        if greeting.purpose is Purpose.FETCH:
            await self._files.serve(stream)
        elif greeting.purpose is Purpose.ASK:
            try:
                await self._following.answer(stream, peer.site)
            except TermNotKeptError as error:
                self._life.fail(error)
        elif greeting.purpose is Purpose.TELEMETRY:
            if self._view.leader is None:
                raise SessionRefused(f"this agent does not lead; the leader is at {self._view.leader_at}")
            await carry_to_collector(stream, peer.site, self._store.run_dir)
        elif greeting.purpose is not Purpose.RUN:
            raise SessionRefused("this is an agent of an elastic run: start all sites with --elastic, or none")
        elif self._view.leader is None:
            raise SessionRefused(f"this agent does not lead; the leader is at {self._view.leader_at}")
        else:
            await self._view.leader.serve_site(stream, peer.site)

    @property
    def others(self) -> list[str]:
        """Sites of the run that train, or are about to."""
        here = (Standing.READY, Standing.JOINING)
        return [name for name, one in self._view.state.sites.items() if one.standing in here and name != self.site]

    def counted(self) -> dict[str, float]:
        """What it counts of its own work, by the names of `metrics.own_counters`."""
        leader = self._view.leader
        counted: dict[str, float] = {"agent_connections": self._view.link.connections}
        if leader is not None:
            counted |= {
                "leader_entries": leader.entries,
                "leader_commit_seconds": leader.commit_seconds,
                "data_repeated_tokens": leader.sequencer.deals.repeated_tokens,
            }
        return counted

    def ask_ranks_to_leave(self) -> bool:
        """Have the ranks offer what has not counted yet, and the site leave once it has. Whether there are any that
        can."""
        self._ranks.tell(Leaving())
        return self._ranks.complete and self.is_followed

    def leave(self) -> None:
        """The site ends its part in good order: what it has offered is its last."""
        self._leaving = True
        self._say_leave()

    def _say_leave(self) -> None:
        if self._leaving:
            self._view.say(Leave())

    def _go_back(self, first: int) -> None:
        """This journal ends outside the run's: what the site did from entry `first` on is not a part of it."""
        self._view.leave_leader()  # nothing is heard or said any more
        self._life.start(self._rejoin(first))

    async def _rejoin(self, first: int) -> None:
        void: dict[int, int] = {}
        if first <= self._view.journal.base.index:
            void = dict.fromkeys(range(len(self._view.state.versions)), -1)
        has_deals = False
        for entry in self._view.journal.read(first):
            if isinstance(entry, Round | Skip):
                void[entry.fragment] = min(entry.version, void.get(entry.fragment, entry.version))
            has_deals |= isinstance(entry, Deal | TakenBack) and entry.site == self.site
        why = (
            f"the entries of site {self.site} from {first} on are those of a leader before, and not a part of the run: "
            f"it goes on from where the leader at {self._view.leader_at} took over"
        )
        if has_deals:
            await self._ranks.end_those_with(first, why)
        await self._void(first, void, why)
        aside = self._view.journal.cut(first)
        self._life.start_again(f"{why}. The entries are kept in {aside.name}")

    async def _void(self, first: int, versions: dict[int, int], why: str) -> None:
        """What came of the entries from `first` on is no part of the run. versions: by fragment, from where on that
        is."""
        if versions:
            await self._ranks.end_those_with(first, why)
        for fragment, version in versions.items():
            self._store.remove_states_after(fragment, version)
        self._snapshots.remove_from(first)

    # ---- the leader, and the journal that it writes

    def _hello(self, own_host: str) -> str:
        self._view.own_fetch = str(HubAddress(own_host, self._own_at.port))
        if self._view.leader is not None:
            self._view.own_fetch = self._view.leader_at
        self._view.known.learn(self.site, self._view.own_fetch)
        head = self._view.journal.head
        genesis = self._view.state.genesis
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            geocomm=__version__,
            store=self._store.store_id,
            run=genesis.run if genesis is not None else None,
            head=head.index,
            head_hash=head.hash if head.index >= 0 else None,
            term=self._view.state.term,
            fetch=self._view.own_fetch,
            ranks=self._has_ranks,
        )
        return said(hello)

    def _take(self, line: bytes) -> None:
        """A line of the leader. BadLineError: it is none, or does not fit the journal."""
        down = down_of(line)
        if self._view.welcome is None and not isinstance(down, Welcome | Refused | Stop):
            return  # the site goes to another leader
        if not isinstance(down, EntrySaid):
            self._store_arrived()
        match down:
            case Welcome():
                if down.term < self._view.known.term:
                    raise BadLineError(f"it leads with term {down.term}, and term {self._view.known.term} was seen")
                if not self._passes_on and not self._view.known.may_be(down.term):
                    raise BadLineError(
                        f"it leads with term {down.term}, and the highest seen is {self._view.known.term}"
                    )
                self._view.known.saw(down.term, self._view.leader_at)
                self._welcomed(down)
            case EntrySaid():
                self._append(down.entry)
            case StatePart():
                self._take_part(down)
            case Open():
                self._view.opens[down.fragment] = down
                self._learn_of(down.peers)
                self._ranks.tell(down)
            case Peers():
                self._view.peers = down
                self._learn_of(down.peers)
                self._ranks.tell(down)
            case Fetch():
                sources = [one for one in down.sources if one != self._view.own_fetch]
                self._frames.once(Wanted.of(down), sources)
            case Repair():
                self._ranks.tell(down)
            case Refused() if down.blames == "leader" or (down.blames == "run" and self._was_welcomed):
                raise BadLineError(down.why)
            case Stop() | Refused():
                self._ranks.tell(Stop(why=down.why))
                self._life.end(down.why, refused=True)
            case _:
                raise BadLineError(f"{down.kind} is not for an agent")

    def _learn_of(self, peers: Iterable[Peer]) -> None:
        for peer in peers:
            self._view.known.learn(peer.site, peer.fetch)

    def _link_lost(self) -> None:
        self._arrived.clear()
        self._state_text = ""
        self._view.leave_leader()

    def _welcomed(self, welcome: Welcome) -> None:
        self._view.welcome, self._was_welcomed = welcome, True
        still = set(welcome.open)
        self._view.opens = {
            fragment: one for fragment, one in self._view.opens.items() if (fragment, one.version, one.attempt) in still
        }
        self._say_beat()
        self._ranks.changed()
        self._life.start(self._watch_for_ranks())
        self._say_leave()
        self._become_current()

    def _become_current(self) -> None:
        """The journal is here as far as the leader had it: now ranks may say what they have, and are heard."""
        if self._view.is_current or self._view.welcome is None or self._view.state.head.index < self._view.welcome.head:
            return
        self._view.is_current = True
        self._ranks.catch_up()
        self._ranks.tell(self._view.welcome)
        self._ranks.welcome()  # those that came before: where this journal lacked nothing, no entry brings them in
        self._ranks.say_ready()
        if self._has_ranks:
            self._ranks.load_ahead()
        self._life.start(self._look_at_snapshot())

    def _append(self, entry: Entry) -> None:
        self._arrived.append(entry)
        goal = 0 if self._view.welcome is None else self._view.welcome.head
        if entry.index >= goal or len(self._arrived) >= _STORED_AT_ONCE:
            self._store_arrived()

    def _append_now(self, entry: Entry) -> None:
        self._arrived.append(entry)
        self._store_arrived()

    def _store_arrived(self) -> None:
        """Take the entries that have arrived, which is one write to the disk."""
        arrived, self._arrived = self._arrived, []
        head, new = self._view.journal.head, list[Entry]()
        for entry in arrived:
            if entry.index <= head.index:
                if self._view.journal.hash_at(entry.index) != entry.hash:
                    self._go_back(entry.index)
                    return
            elif (
                not new
                and entry.prev != head.hash
                and self._view.welcome is not None
                and self._view.welcome.term > self._view.state.term
            ):
                self._go_back(self._view.state.terms.get(self._view.state.term, 0))
                return
            else:
                new.append(entry)
        self._follow()
        taken: list[Entry] = []
        try:
            for entry in new:
                self._take_entry(entry)
                taken.append(entry)
        finally:
            if taken:
                self._view.journal.append_all(taken, head)
            for entry in taken:
                self._applied_entry(entry)
        if arrived:
            self._view.journal.keep(self._view.state)
            self._follow()
            self._become_current()
            self._ranks.welcome()

    def _take_part(self, part: StatePart) -> None:
        """The leader has not all entries that this journal lacks, or they are too many: it says what they come to."""
        self._state_text += part.text
        if len(self._state_text) > MAX_STATE_CHARS:
            raise BadLineError(f"a state of the run of more than {MAX_STATE_CHARS} characters")
        if not part.last:
            return
        state, welcome = RunState.read(self._state_text), self._view.welcome
        self._state_text = ""
        known = self._view.state
        if (
            welcome is None
            or state.genesis is None
            or state.genesis.run != welcome.run
            or (known.genesis is not None and known.genesis.run != state.genesis.run)
            or not known.head.index < state.head.index <= welcome.head
            or not known.term <= state.term <= welcome.term
        ):
            raise BadLineError(f"a state after entry {state.head.index}, which does not follow {known.head.index}")
        self._view.leave_leader()
        self._life.start(self._begin_at(state))

    async def _begin_at(self, state: RunState) -> None:
        known = self._view.state
        why = (
            f"the leader at {self._view.leader_at} has given the state of the run after entry {state.head.index} in "
            f"place of the {state.head.index - known.head.index} entries that this site lacked"
        )
        # A later leader took over before this journal's end: what this site did since then is no part of the run.
        later = [index for term, index in state.terms.items() if term > known.term and index <= known.head.index]
        if later:
            await self._void(min(later), dict.fromkeys(range(len(known.versions)), -1), why)
        elif not begins_with(state, known, self.site):
            await self._ranks.end_those_with(0, f"what was dealt to site {self.site} was taken back. {why}")
        self._view.journal.begin_at(state)
        self._life.start_again(why)

    def _follow(self) -> None:
        """Take what is in the journal and not yet in the state: what the leader of this process wrote."""
        if self._view.state.head != self._view.journal.head:
            for entry in self._view.journal.read(self._view.state.head.index + 1):
                self._take_entry(entry)
                self._applied_entry(entry)

    def _take_entry(self, entry: Entry) -> None:
        if isinstance(entry, Snapshot):
            self._view.journal.keep(self._view.state, always=True)
        self._view.state.apply(entry)
        if isinstance(entry, Skip):
            self._store.remove_states_after(entry.fragment, entry.version)

    def _applied_entry(self, entry: Entry) -> None:
        """An entry is in the journal and in the state: now the ranks may see it."""
        if isinstance(entry, Round | Skip):
            known = self._view.opens.get(entry.fragment)
            if known is not None and known.version <= entry.version:
                del self._view.opens[entry.fragment]
        if isinstance(entry, Round):
            self._ahead.came()
        self._ranks.tell(EntrySaid(entry=entry))
        if isinstance(entry, Join) and entry.site == self.site and self._has_ranks:
            self._ranks.load_ahead()
        if isinstance(entry, Deal | TakenBack) and entry.site == self.site:
            self._ranks.dealt(entry)
            self._beat = None if isinstance(entry, TakenBack) else self._beat  # its tokens are void
        if isinstance(entry, Kept):
            self._life.start(self._let_go())
        if isinstance(entry, Removed) and entry.site == self.site:
            self._life.end(f"site {self.site} was removed from the run: {entry.why}", refused=True)
        known = self._view.state.sites.get(self.site)
        if self._leaving and known is not None and known.standing is Standing.LEFT:
            self.left.set()
        if self._view.state.ended and not self.left.is_set():
            self._life.end(f"the run has ended, with entry {entry.index}: start with an empty run folder", refused=True)
        elif self._view.state.ended or (self.left.is_set() and self._view.leader is None):
            self._life.end("the site has left the run", refused=False)

    async def _let_go(self) -> None:
        """A snapshot is kept: older ones, and what the journal has of before them, are not needed any more."""
        await asyncio.to_thread(self._snapshots.prune, list(self._view.state.kept))
        if self._view.leader is None:  # else it does that
            await forget(self._view.journal.path, self._view.state, log)

    async def _beat_forever(self) -> None:
        while True:
            self._say_beat()
            await asyncio.sleep(BEAT_S)

    def _say_beat(self) -> None:
        beat = self._beat or Beat(step=0, tokens=0, step_s=0, line_s=0, free_bytes=0)
        self._view.say(beat.model_copy(update={"free_bytes": self._store.free_bytes}))

    # ---- the ranks

    def rank_came(self, connection: RankConnection) -> None:
        """A rank has said hello."""
        self.ranks_ended.clear()
        self._ranks.came(connection)

    def rank_said(self, connection: RankConnection, up: Up) -> None:
        """A rank has said something. BadLineError: what it may not say."""
        if not self._ranks.knows(connection):
            return
        match up:
            case Applied():
                self._ranks.applied(connection, up)
                self._view.say_of_round(up)
                self._ranks.say_ready()
            case Need():
                self._frames.until_here(Wanted.of(up))
            case StateKept():
                self._life.start(self._look_at_snapshot())
            case Beat():
                if connection.hello.place == 0:
                    self._beat = up
            case Leave():
                if self._ranks.leaves(connection):
                    self.leave()
            case Due() | Offer() | Pass() | Hold():
                self._view.say_of_round(up)
            case _:
                raise BadLineError(f"a rank said {up.kind}")

    def rank_gone(self, connection: RankConnection) -> None:
        """The connection of a rank has ended: the agent lives, so the rank does not."""
        if self._ranks.knows(connection) and self._ranks.gone(connection):
            self.ranks_ended.set()
            self._beat = None
            self._view.say(RanksGone(why="its ranks have ended"))

    async def _watch_for_ranks(self) -> None:
        """The leader may not know that the ranks are gone: they ended while it, or this agent, was away."""
        await asyncio.sleep(_RANKS_LIMIT_S)
        known = self._view.state.sites.get(self.site)
        if not self._ranks.complete and known is not None and known.standing is Standing.READY:
            self._view.say(RanksGone(why="its agent has no ranks"))

    # ---- snapshots

    async def _look_at_snapshot(self) -> None:
        """Tell the leader of the newest snapshot, once all of it is here."""
        entry, genesis = self._view.state.snapshot, self._view.state.genesis
        if entry is None or genesis is None or entry.index in self._view.state.kept:
            return
        try:
            manifest = await asyncio.to_thread(self._snapshots.completed, entry, genesis.run)
        except (OSError, SnapshotError) as error:
            log(f"snapshot {entry.index} cannot be kept: {error}")
            return
        if manifest is not None and self._view.is_current:
            self._view.say(SnapshotHeld(snapshot=entry.index, digest=manifest.digest))
