"""The agent of a site in an elastic run: follows the journal, carries lines between ranks and leader, moves files.

`agent_process` runs one. At the address that all sites name it is the leader too. An agent may be killed at any time;
the next one goes on from the run folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from geocomm._version import __version__
from geocomm.core.addresses import Address
from geocomm.core.message_log import log
from geocomm.data.deal_records import SiteDeal
from geocomm.elastic.files.fetch import Fetcher
from geocomm.elastic.files.file_server import FileServer
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.known_agents import KnownAgents, TermNotKeptError
from geocomm.elastic.files.snapshots import SnapshotError, Snapshots, forget
from geocomm.elastic.journal.admission import members_of
from geocomm.elastic.journal.entries import (
    AnyRound,
    Away,
    BadLineError,
    Entry,
    Genesis,
    Join,
    Kept,
    Ready,
    Removed,
    Skip,
    TakenBack,
)
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.message_lines import down_of, said
from geocomm.elastic.journal.messages import (
    PROTOCOL_VERSION,
    Applied,
    Beat,
    Check,
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
    StatePart,
    Stop,
    Sum,
    SumChecked,
    Summed,
    Up,
    Wanted,
    Welcome,
)
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.elastic.leading.agent_link import BEAT_S, LeaderLink
from geocomm.elastic.leading.leader import Leader
from geocomm.elastic.site.following import Following
from geocomm.elastic.site.frame_fetches import FrameFetches
from geocomm.elastic.site.join_states import StatesOfOthers
from geocomm.elastic.site.own_journal import OwnJournal
from geocomm.elastic.site.rank_socket import RankConnection
from geocomm.elastic.site.run_disk import RunDisk
from geocomm.elastic.site.run_view import AgentLife, RunView
from geocomm.elastic.site.site_ranks import SiteRanks
from geocomm.group.rendezvous.to_collector import carry_to_collector
from geocomm.security.key_folder import Identity, Keys
from geocomm.wire.greeting import Greeting, Purpose, SessionRefused
from geocomm.wire.tls_stream import TlsStream

_RANKS_LIMIT_S = 3.0
_SNAPSHOT_LOOK_S = 1.0


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
        own_at: Address,
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
        link_to = own_at if leader is not None else Address.parse(known.leader or hub)
        link = LeaderLink(link_to, keys, self._hello, self._take, self._link_lost, log)
        fetcher = Fetcher(store, keys, log, lambda: state.most_frame_bytes, self._disk_failed, self._near)
        self.life = AgentLife()
        self._view = view = RunView(
            self.site, hub, keys, store, state, journal, known, leader, link, fetcher, self.life
        )
        self._own_at, self._has_ranks, self._passes_on = own_at, ranks, passes_on
        if state.genesis is not None:
            known.takes_part(state.genesis.run)
        states = StatesOfOthers(view)
        self._ranks = SiteRanks(view, states)
        self._disk = RunDisk(view, self._ranks)
        self._frames = FrameFetches(view, states, self._ranks)
        self._snapshots = Snapshots(store)
        self._journal = OwnJournal(view, self._ranks, self._snapshots, self._applied, self._journal_grown)
        self.following = Following(view, own_at, self._journal.take_now, passes_on=passes_on)
        self.files = FileServer(
            store, lambda: (state.head.index, state.term), self._frames.for_others if leader else None
        )
        self._was_welcomed = False
        self._beat: Beat | None = None
        self._leaving = self._finished = False

    @property
    def is_followed(self) -> bool:
        """Whether the leader hears this site, and counts it."""
        known = self._view.state.sites.get(self.site)
        return self._view.welcome is not None and known is not None and known.standing is Standing.READY

    async def run(self) -> None:
        """Follow the leader until cancelled."""
        self._end_if_left()
        self.life.start(self._beat_forever())
        self.life.start(self.following.look())
        self.life.start(self._ranks.begin_without_leader())
        self.life.start(self._hold_snapshots())
        if self._has_ranks:
            self.life.start(self._frames.keep_second_copies())
        try:
            await self._view.link.run()
        finally:
            await self.life.stop()

    async def serve_connection(self, stream: TlsStream, greeting: Greeting, peer: Identity) -> None:
        """What comes through the doorway."""
        if greeting.purpose is Purpose.FETCH:
            await self.files.serve(stream, peer.site)
        elif greeting.purpose is Purpose.ASK:
            try:
                await self.following.answer(stream, peer.site)
            except TermNotKeptError as error:
                self.life.fail(error)
        elif greeting.purpose not in (Purpose.TELEMETRY, Purpose.RUN):
            raise SessionRefused("this is an agent of an elastic run: start all sites with --elastic, or none")
        elif self._view.leader is None:
            raise SessionRefused(f"this agent does not lead; the leader is at {self._view.leader_at}")
        elif greeting.purpose is Purpose.TELEMETRY:
            await carry_to_collector(stream, peer.site, self._view.store.run_dir)
        else:
            await self._view.leader.serve_site(stream, peer.site)

    @property
    def others(self) -> list[str]:
        """The other members of a run that this site has taken part in. One that is away may have its agent back, which
        fetches what it missed."""
        state = self._view.state
        return [name for name in members_of(state) if name != self.site and self.site in state.sites]

    def counted(self) -> dict[str, float]:
        """What it counts of its own work, by the names of `metrics.own_counters`."""
        leader = self._view.leader
        counted: dict[str, float] = {"agent_connections": self._view.link.connections}
        if leader is not None:
            counted |= {
                "leader_entries": leader.entries,
                "leader_commit_seconds": leader.commit_seconds,
                "leader_frames_left_out": leader.sequencer.rounds.left_out,
                "leader_averages_wrong": leader.sequencer.checks.found_wrong,
                "data_repeated_tokens": leader.sequencer.deals.repeated_tokens,
            }
        return counted

    def ask_ranks_to_leave(self) -> bool:
        """Have the ranks offer what has not counted yet, and the site leave once it has. Whether there are any that
        can."""
        self._ranks.tell(Leaving())
        return self._ranks.complete and self.is_followed

    async def stop_ranks(self, why: str) -> None:
        """Tell the ranks that the site takes no part any more."""
        await self._ranks.stop(why)

    def leave(self, *, finished: bool = False) -> None:
        """The site ends its part in good order: what it has offered is its last. finished: see `Leave`."""
        self._leaving, self._finished = True, self._finished or finished
        self._say_leave()
        self._end_if_left()  # an agent before this one may have died while it gave out the last frames

    def _say_leave(self) -> None:
        if self._leaving:
            self._view.say(Leave(finished=self._finished))

    def _disk_failed(self, size: int) -> None:
        self._disk.failed(size)

    def _near(self) -> Collection[str]:
        return self._view.near

    # ---- the leader, and the journal that it writes

    def _hello(self, own_host: str) -> str:
        self._view.own_fetch = str(Address(own_host, self._own_at.port))
        if self._view.leader is not None:
            self._view.own_fetch = self._view.leader_at
        self._view.known.learn(self.site, self._view.own_fetch)
        head = self._view.journal.head
        genesis = self._view.state.genesis
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            geocomm=__version__,
            store=self._view.store.store_id,
            run=genesis.run if genesis is not None else None,
            head=head.index,
            head_hash=head.hash if head.index >= 0 else None,
            term=self._view.state.term,
            process=self._view.store.process,
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
            self._journal.store_arrived()
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
                self._journal.take(down.entry)
            case StatePart():
                self._journal.take_part(down)
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
            case Sum():
                self._ranks.tell_owner(down.fragment, down)
            case Check():
                self.life.start(self._frames.for_check(down))
            case Repair():
                self._ranks.tell(down)
            case Refused() if down.blames == "leader" or (down.blames == "run" and self._was_welcomed):
                raise BadLineError(down.why)
            case Stop() | Refused():
                self._ranks.tell(down)  # which of both it is: they may train by now
                self.life.end(down.why, refused=True)
            case _:
                raise BadLineError(f"{down.kind} is not for an agent")

    def _learn_of(self, peers: Iterable[Peer]) -> None:
        for peer in peers:
            self._view.known.learn(peer.site, peer.fetch)

    def _link_lost(self) -> None:
        self._journal.forget_arrived()
        self._view.leave_leader()

    def _journal_grown(self) -> None:
        self._become_current()
        self._ranks.welcome()

    def _welcomed(self, welcome: Welcome) -> None:
        self._view.welcome, self._was_welcomed = welcome, True
        still = set(welcome.open)
        self._view.opens = {
            fragment: one for fragment, one in self._view.opens.items() if (fragment, one.version, one.attempt) in still
        }
        self._say_beat()
        self._ranks.changed()
        self.life.start(self._watch_for_ranks())
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

    def _applied(self, entry: Entry, deal: SiteDeal | None) -> None:
        """An entry is in the journal and in the state: now the ranks may see it. deal: what it deals to this site."""
        if isinstance(entry, AnyRound | Skip):
            known = self._view.opens.get(entry.fragment)
            if known is not None and known.version <= entry.version:
                del self._view.opens[entry.fragment]
        self._ranks.tell(EntrySaid(entry=entry))
        if isinstance(entry, Genesis):
            self._view.known.takes_part(entry.run)
        if isinstance(entry, Away | Ready) and self._view.is_current and entry.site != self.site:
            log(f"site {entry.site} is away: {entry.why}" if isinstance(entry, Away) else f"site {entry.site} is ready")
        if isinstance(entry, Join):
            self._say_beat()  # the next site may join once most hold this
        if deal is not None:
            self._ranks.tell_owner(0, deal)
        if isinstance(entry, TakenBack) and entry.site == self.site and not self.left.is_set():  # else they end anyway
            self._ranks.end_taken_back()
            self._beat = None  # its tokens are void
        if isinstance(entry, Kept):
            self.life.start(self._let_go())
        if isinstance(entry, Removed) and entry.site == self.site:
            self.life.end(f"site {self.site} was removed from the run: {entry.why}", refused=True)
        self._end_if_left()

    def _end_if_left(self) -> None:
        """The site's part is over where the journal says so."""
        state = self._view.state
        known = state.sites.get(self.site)
        if self._leaving and known is not None and known.standing is Standing.LEFT:
            self.left.set()
        if state.ended and not self.left.is_set():
            self.life.end(
                f"the run has ended, with entry {state.head.index}: start with an empty run folder", refused=True
            )
        elif state.ended or (self.left.is_set() and self._view.leader is None):
            self.life.end("the site has left the run", refused=False)

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
        head = self._view.journal.head.index if self._view.is_current else -1
        self._view.say(beat.model_copy(update={"free_bytes": self._view.store.free_bytes, "head": head}))

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
            case Beat():
                if connection.hello.place == 0:
                    self._beat = up
            case Leave():
                if self._ranks.leaves(connection, finished=up.finished):
                    self.leave(finished=self._ranks.have_finished and not self.asked_to_leave)
            case Due() | Offer() | Pass() | Summed() | SumChecked() | Hold():
                if isinstance(up, Hold) and up.by_mail:
                    self._frames.came_by_mail(up)
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

    async def _hold_snapshots(self) -> None:
        """Tell the leader of the newest snapshot, once all of it is here, until cancelled. Ranks write its states, also
        while there is no agent."""
        told, problem = (-1, self._view.welcome), ""
        while True:
            await asyncio.sleep(_SNAPSHOT_LOOK_S)
            entry, genesis, welcome = self._view.state.snapshot, self._view.state.genesis, self._view.welcome
            is_lacked = self._view.is_current and self._view.state.lacks_snapshot
            if entry is None or genesis is None or not is_lacked or told == (entry.index, welcome):
                continue
            try:
                manifest = await asyncio.to_thread(self._snapshots.completed, entry, genesis.run)
            except (OSError, SnapshotError) as error:
                before, problem = problem, f"snapshot {entry.index} cannot be kept: {error}"
                if problem != before:
                    log(problem)
                continue
            if manifest is not None and self._view.is_current and self._view.welcome is welcome:
                self._view.say(SnapshotHeld(snapshot=entry.index, digest=manifest.digest))
                told = entry.index, welcome
