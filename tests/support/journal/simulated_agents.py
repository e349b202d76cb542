"""The agents of the sites of a simulated run: they follow the leader's journal and tell their ranks."""

from __future__ import annotations

from collections.abc import Mapping

from geocomm.elastic.journal.entries import AnyRound, Deal, Entry, Kept, Left, Skip, Snapshot, TakenBack
from geocomm.elastic.journal.member import Frame
from geocomm.elastic.journal.messages import (
    PROTOCOL_VERSION,
    Beat,
    Down,
    EntrySaid,
    Fetch,
    Hello,
    Leave,
    Open,
    RanksGone,
    Refused,
    StatePart,
    Stop,
    Welcome,
)
from geocomm.elastic.journal.run_state import EMPTY, RunState
from geocomm.elastic.site_ranks import begins_with
from support.journal.simulated_checks import BrokenRunError, Checks
from support.journal.simulated_leader import SimulatedLeader
from support.journal.simulated_lines import LEADER, Lines, Link
from support.journal.simulated_ranks import SimulatedRanks
from support.journal.simulated_site import Site
from support.journal.simulated_time import SimulatedTime

BEAT_S = 3.0


class SimulatedAgents:
    """What each site's agent does, and its machine."""

    def __init__(
        self,
        time: SimulatedTime,
        lines: Lines,
        sites: Mapping[str, Site],
        leader: SimulatedLeader,
        ranks: SimulatedRanks,
        checks: Checks,
    ) -> None:
        self._time = time
        self._random = time.random
        self._lines = lines
        self._sites = sites
        self._leader = leader
        self._ranks = ranks
        self._checks = checks

    # ---- machines

    def start(self, site: Site) -> None:
        """Its machine begins, with what is on its disk."""
        site.up = True
        site.process += 1
        site.state = site.disk.state
        site.welcome, site.link, site.state_text = None, None, ""
        site.opens.clear()
        site.later(0, lambda: self._connect(site))
        site.later(0, lambda: self._beat(site))
        self._ranks.start(site)

    def kill(self, site: Site) -> None:
        """Its machine ends, and starts again in some seconds."""
        if not site.up:
            return
        site.up = False
        site.process += 1
        site.ranks, site.has_wrong_bits = None, False
        site.needs.clear()
        site.parked.clear()
        site.paused_until = 0
        self._leader.break_link(site, 0.1)
        self._time.after(self._random.uniform(0.5, 15), lambda: None if site.up or site.gone else self.start(site))

    def _lose_leader_and(self, site: Site) -> None:
        """The leader's machine is gone; the site that has its last entry is killed too, or cut off from all."""
        self._leader.is_doomed = False
        self._leader.lose()
        if self._random.random() < 0.5:
            self.kill(site)
        else:
            cut_s = self._random.uniform(15, 40)
            for name in [LEADER, *self._sites]:
                if name != site.name:
                    self._leader.cut(frozenset([site.name, name]), cut_s)

    # ---- the connection

    def _connect(self, site: Site) -> None:
        site.later(self._random.uniform(0.5, 1), lambda: self._connect(site))
        if site.link is not None or self._leader.sequencer is None or not self._lines.reach(site.name, LEADER):
            return
        link = Link(take=lambda message: self._take(site, message), lost=lambda: self._lost(site, link))
        genesis = site.state.genesis
        head = site.state.head
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            geocomm="",
            store=site.disk.store,
            run=None if genesis is None else genesis.run,
            head=head.index,
            head_hash=None if head == EMPTY else head.hash,
            term=site.state.term,
            fetch=site.name,
        )
        self._leader.connect(site, link, hello)

    def _lost(self, site: Site, link: Link) -> None:
        if site.link is link:
            self.forget_leader(site)

    def forget_leader(self, site: Site) -> None:
        """The connection has ended, or the agent was killed and a new one begins."""
        if site.link is not None:
            self._leader.break_link(site, 0.1)
        site.link, site.welcome, site.state_text = None, None, ""

    def _beat(self, site: Site) -> None:
        site.later(BEAT_S, lambda: self._beat(site))
        read = 0 if site.ranks is None else site.ranks.read
        head = site.state.head.index if site.caught_up else -1
        beat = Beat(step=site.steps, tokens=read, step_s=site.step_s, line_s=0, free_bytes=0, head=head)
        self._leader.say(site, beat)

    # ---- the journal

    def _take(self, site: Site, message: Down) -> None:
        match message:
            case Welcome():
                if message.term < site.disk.term:
                    raise BrokenRunError(f"10: {site.name} is to follow term {message.term} after {site.disk.term}")
                site.disk.term = message.term
                site.welcome = message
                site.opens = {p: one for p, one in site.opens.items() if (p, one.version, one.attempt) in message.open}
                site.caught_up = False
                self._caught_up(site)
                self._ranks.changed(site)
                if site.ranks is None:
                    self._leader.say(site, RanksGone(why="none yet"))
                if site.leaving:
                    self._leader.say(site, Leave())
            case EntrySaid():
                self._store(site, message.entry)
            case StatePart():
                site.state_text += message.text
                if message.last:
                    self._begin_at(site, RunState.read(site.state_text))
            case Open():
                site.opens[message.fragment] = message
                self._ranks.tell(site, message)
            case Fetch():
                frame = Frame(message.fragment, message.version, message.site, message.frame)
                self._ranks.fetch(site, frame, [*message.sources], again=False)
            case Stop() if "other bits" in message.why:
                self._checks.repairs(site)
                self.kill(site)  # and a person starts it again
            case Refused() | Stop():
                raise BrokenRunError(f"{site.name} was stopped: {message.why}")
            case _:
                self._ranks.tell(site, message)

    def _store(self, site: Site, entry: Entry) -> None:
        """A follower: an entry is on its disk before its ranks see it."""
        head = site.state.head
        if entry.index <= head.index:
            if site.disk.hash_at(entry.index) != entry.hash:
                self._go_back(site, entry.index)
            return
        if entry.index == head.index + 1 and entry.prev != head.hash:
            self._go_back(site, site.state.terms.get(site.state.term, 0))
            return
        site.state.apply(entry)
        if self._leader.chain.entries[entry.index] is not entry:
            raise BrokenRunError(f"1: {site.name} has another entry {entry.index} than the leader")
        site.chain = self._leader.chain
        site.disk.journal.append(entry)
        if self._leader.is_doomed:
            self._lose_leader_and(site)
            if not site.up:
                return
        if isinstance(entry, Skip):
            void = (entry.fragment, entry.version)
            site.needs = {frame for frame in site.needs if frame[:2] != void}
            state = site.disk.states.get(entry.fragment)
            if state is not None and state.version > entry.version:
                del site.disk.states[entry.fragment]
        if isinstance(entry, Snapshot):
            self._ranks.take_snapshot(site, entry)
        if isinstance(entry, Kept):
            site.disk.forget(site.state.needed_from)
        if isinstance(entry, Left) and entry.site == site.name:
            site.up, site.gone = False, True
            return
        if isinstance(entry, TakenBack) and entry.site == site.name and site.ranks is not None:
            self._ranks.end(site, "others read what they have read")
        self._ranks.tell(site, EntrySaid(entry=entry))
        self._caught_up(site)
        self._ranks.changed(site)

    def _begin_at(self, site: Site, state: RunState) -> None:
        """The leader has given this in place of entries that the site lacks."""
        known, chain = site.state, self._leader.chain
        right = RunState.of(chain.entries[: state.head.index + 1])
        if state.text != right.text or state.head.index <= known.head.index:
            raise BrokenRunError(f"1: {site.name} is to go on from a state that the leader's journal does not have")
        diverges = not begins_with(state, known, site.name) or any(
            term > known.term and index <= known.head.index for term, index in state.terms.items()
        )
        if diverges:
            site.disk.states.clear()
        site.disk.base, site.disk.journal = RunState.read(state.text), []
        site.state, site.chain = state, chain
        self.forget_leader(site)
        member = None if site.ranks is None else site.ranks.member
        if member is not None and (
            diverges or any(member.versions[p] < version for p, version in enumerate(state.versions))
        ):
            self._ranks.end(site, "they lack rounds that the journal does not have any more")

    def _go_back(self, site: Site, first: int) -> None:
        """Its journal ends outside the run's: it begins again where the two part."""
        if site.welcome is None or site.state.term >= site.welcome.term:
            raise BrokenRunError(f"1: {site.name} has another entry {first} than the leader, of the same term")
        cut = site.disk.cut(first)
        dropped = [entry for entry in cut if isinstance(entry, AnyRound | Skip)]
        dealt = [entry for entry in cut if isinstance(entry, Deal | TakenBack) and entry.site == site.name]
        for entry in dropped:
            state = site.disk.states.get(entry.fragment)
            if state is not None and state.version > entry.version:
                del site.disk.states[entry.fragment]
        site.state = site.disk.state
        self.forget_leader(site)
        if (dropped or dealt) and site.ranks is not None:
            self._ranks.end(site, "they have rounds or deals that the run does not have")

    def _caught_up(self, site: Site) -> None:
        if site.welcome is not None and not site.caught_up and site.state.head.index >= site.welcome.head:
            site.caught_up = True
            self._ranks.tell(site, site.welcome)
