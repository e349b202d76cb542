"""A whole elastic run in one process and in virtual time, under faults, which checks what must always hold.

Leader and ranks decide by the real `Sequencer` and `Member`. The rest is as small as it can be and still be exact: a
fragment is an integer, a step adds to it, a frame rounds the delta down to a multiple of 8 and keeps the residual.
Equal seeds give equal histories.

What is checked, by the numbers of the rules: 1 one chain, which a site stores before its ranks see it; 2 one round
entry for each fragment and version; 3 a listed frame lay on two live sites' disks; 4 equal journals give equal states;
5 who offers has the state of the journal; 6 residual and uncounted steps change with a listed frame only; 10 terms
never fall; 11 no two clocks are compared (each leader has another one, and members have none); 12 a step counts once
for each fragment. And once the faults are over, the run goes on.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from geocomm.journal.entries import Digest, End, Entry, Genesis, Hash, Left, Round, Skip, TermBegun, hash_of
from geocomm.journal.member import Act, Frame, Member, Recompute, Say, SendFrame, StartAgain
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
    Lost,
    Model,
    Need,
    Offer,
    Open,
    Owner,
    Pass,
    RanksGone,
    RanksUp,
    ReadySaid,
    Refused,
    Stop,
    Up,
    Welcome,
)
from geocomm.journal.run_state import EMPTY, RunState, Standing
from geocomm.journal.sequencer import Sequencer
from geocomm.journal.sequencer_events import (
    Append,
    Came,
    Close,
    Ended,
    Event,
    Said,
    Send,
    SendEntries,
    Terms,
    Tick,
)

TERMS = Terms(attempt_s=12.0, lost_s=20.0, lost_said_s=12.0)
"""Those of a real run, but for what takes minutes there."""

FAULTS = {
    "site": 4.0,
    "leader": 3.0,
    "line": 3.0,
    "uplink": 2.0,
    "pause": 3.0,
    "ranks": 2.0,
    "agent": 2.0,
    "disk": 1.5,
    "all": 0.3,
    "leave": 0.2,
    "hub": 0.4,
}
"""How often each comes, beside the others; one comes every 3 s or so. `all`: the leader and all sites are killed at
once. `disk`: a site is killed and its disk is lost. `line`: two sites are cut from each other; `uplink`: one from the
leader. `hub`: the leader is killed and its disk is lost, and then a site is promoted; half the time the site that has
its last entry is killed too, or cut off from all."""

LEADER = "leader"
_FRAGMENTS = 2
_EVERY = 6
_OF_RANKS = (Due, Offer, Pass, Hold, Applied)
_QUIET_S = 8.0
"""Before the first fault."""
_FAULTS_S = 60.0
_PEACE_S = 240.0
"""For so long after the faults the run may take to go on: several frames may be lost, one behind the other."""


class BrokenRunError(AssertionError):
    """Something that must always hold does not."""


class _RunHasEnded(Exception):
    """Nobody is left who takes part: what may be asked of a run that goes on is not asked of this one."""


@dataclass(frozen=True)
class History:
    """How a simulated run went."""

    seed: int
    entries: tuple[Entry, ...]
    broken: str
    """What did not hold, or why a site was stopped; empty: nothing."""
    stood_still: bool
    """It did not go on after the faults."""
    faults: Counter[str]
    seconds: float
    """Of virtual time."""


@dataclass(frozen=True)
class _State:
    """A fragment at a version."""

    version: int
    anchor: int = 0
    chain: str = ""
    """Stands for the momentum: depends on every frame, and on their order."""

    @property
    def digest(self) -> Digest:
        return hashlib.md5(f"{self.version} {self.anchor} {self.chain}".encode()).hexdigest()

    def after(self, coded: list[int]) -> _State:
        chain = hashlib.md5(f"{self.chain} {coded}".encode()).hexdigest() if coded else self.chain
        return _State(self.version + 1, self.anchor + sum(coded), chain)


@dataclass(frozen=True)
class _Content:
    """What is in a frame, and what only the checks know of it."""

    frame: Frame
    coded: int
    base: Digest
    steps: frozenset[int]


class _Chain:
    """A journal, and what is so after it: what the checks compare with."""

    def __init__(self, contents: Mapping[Hash, _Content]) -> None:
        self._contents = contents
        self.entries: list[Entry] = []
        self.hashes: list[Hash] = []
        self.counted: list[set[int]] = [set() for _ in range(_FRAGMENTS)]
        """By fragment: the steps that count."""
        self.rounds: list[list[Round]] = [[] for _ in range(_FRAGMENTS)]
        self.truth: list[list[_State]] = [[_State(0)] for _ in range(_FRAGMENTS)]
        self.digests: dict[tuple[int, int], list[tuple[int, Digest]]] = {}
        """By fragment and version: from which entry on it has which digest."""
        for fragment in range(_FRAGMENTS):
            self.digests[fragment, 0] = [(0, _State(0).digest)]

    def until(self, length: int) -> _Chain:
        """Another one, with the first entries of this one."""
        chain = _Chain(self._contents)
        for entry in self.entries[:length]:
            chain.append(entry)
        return chain

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.hashes.append(hash_of(entry))
        if isinstance(entry, Round):
            self._take_round(entry)
        if isinstance(entry, Skip):
            self._void(entry)

    def _take_round(self, entry: Round) -> None:
        p, v = entry.fragment, entry.version
        self.counted[p] = self.counted[p].union(*(self._contents[one.frame].steps for one in entry.members))
        self.rounds[p].append(entry)
        self.truth[p].append(self.truth[p][v].after([self._contents[one.frame].coded for one in entry.members]))
        self.digests[p, v + 1] = [(entry.index, self.truth[p][v + 1].digest)]

    def _void(self, entry: Skip) -> None:
        """From that version on, the fragment has had other states."""
        p = entry.fragment
        for listed in self.rounds[p][entry.version].members:
            self.counted[p] -= self._contents[listed.frame].steps
        skips = {(one.fragment, one.version) for one in self.entries if isinstance(one, Skip)}
        for version in range(entry.version, len(self.rounds[p])):
            members = self.rounds[p][version].members
            coded = [] if (p, version) in skips else [self._contents[one.frame].coded for one in members]
            self.truth[p][version + 1] = self.truth[p][version].after(coded)
            self.digests[p, version + 1].append((entry.index, self.truth[p][version + 1].digest))


@dataclass
class _Disk:
    store: str
    term: int = 0
    """The highest seen."""
    journal: list[Entry] = field(default_factory=list[Entry])
    frames: set[Frame] = field(default_factory=set[Frame])
    states: dict[int, _State] = field(default_factory=dict[int, _State])
    attempts: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])


@dataclass
class _Own:
    """An own frame, as long as it may count."""

    residual: int
    local: int
    steps: int
    """How many of the uncounted ones it has."""


@dataclass
class _Part:
    """A rank's copy of a fragment."""

    state: _State
    local: int
    residual: int = 0
    uncounted: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(step, what it added)."""
    frames: dict[Hash, _Own] = field(default_factory=dict[Hash, _Own])


class _Ranks:
    """The ranks of a site, as one process that owns all fragments."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.member: Member | None = None
        self.parts: list[_Part] = []
        self.goals: list[int] = []
        self.opens: dict[int, Open] = {}
        """The last of each fragment."""
        self.introduced_to: Welcome | None = None


class _Link:
    """A connection of an agent to the leader: in order, both ways, until it breaks."""

    def __init__(self) -> None:
        self.up = True
        self.sent_up = 0.0
        self.sent_down = 0.0


class _Site:
    def __init__(self, name: str, step_s: float, store: str, chain: _Chain) -> None:
        self.name = name
        self.chain = chain
        """That of which its journal is the beginning."""
        self.step_s = step_s
        self.disk = _Disk(store)
        self.state = RunState()
        self.process = 0
        """Which start of the site this is: events of an earlier one are void."""
        self.up = False
        self.gone = False
        """It has left."""
        self.leaving = False
        self.paused_until = 0.0
        self.parked: list[Callable[[], None]] = []
        """What happens once the pause is over, in order."""
        self.steps = 0
        self.link: _Link | None = None
        self.welcome: Welcome | None = None
        self.caught_up = False
        """The entries that the leader had at the welcome are here, and the ranks know them."""
        self.opens: dict[int, Open] = {}
        self.ranks: _Ranks | None = None
        self.needs: set[Frame] = set()


class SimulatedRun:
    """One history. sites: how many; None: 2 to 5. faults: see FAULTS.

    terms, member, sequencer: others, to look whether the checks find what a mistake in them does.
    """

    def __init__(
        self,
        seed: int,
        *,
        sites: int | None = None,
        faults: Mapping[str, float] = FAULTS,
        terms: Terms = TERMS,
        member: type[Member] = Member,
        sequencer: type[Sequencer] = Sequencer,
    ) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._member, self._sequencer_type = member, sequencer
        self._terms, self._weights = terms, faults
        self._now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._queued = 0
        self._cuts: Counter[frozenset[str]] = Counter()
        self._faults: Counter[str] = Counter()
        count = sites or self._random.randint(2, 5)
        slow = self._random.randrange(count)
        self._contents: dict[Hash, _Content] = {}
        self._chain = _Chain(self._contents)
        """The leader's."""
        self._sites = {
            name: _Site(name, self._random.uniform(0.4, 0.7) * (3 if i == slow else 1), self._hex(), self._chain)
            for i, name in enumerate("abcde"[:count])
        }
        self._mail_sent: dict[tuple[str, str], float] = {}
        # The leader's machine.
        self._is_lost = False
        """It is gone, with its disk, and nobody has been promoted yet."""
        self._is_doomed = False
        """It will be gone once one site has its next entry."""
        self._sequencer: Sequencer | None = None
        self._leader_start = 0
        self._clock_offset = 0.0
        self._links: dict[str, _Link] = {}
        self._stores: dict[str, str] = {}
        """By site: its disk, as its last Hello said."""
        # What the checks know.
        self._was_on_disk: set[tuple[str, Frame]] = set()
        """(store, frame)."""

    # ---- the history

    def run(self) -> History:
        """Let it happen."""
        broken, still = "", False
        try:
            self._start_leader()
            for site in self._sites.values():
                self._at(self._random.uniform(0, 3), lambda site=site: self._start_site(site))
            self._until(_QUIET_S)
            self._at(0, self._fault)
            self._until(_QUIET_S + _FAULTS_S)
            still = not self._goes_on()
        except BrokenRunError as error:
            broken = str(error)
        except _RunHasEnded:
            pass
        return History(self._seed, tuple(self._chain.entries), broken, still, self._faults, self._now)

    def _until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self._now, _, do = heapq.heappop(self._queue)
            do()
        self._now = end

    def _goes_on(self) -> bool:
        """Whether in the time of peace every fragment takes two rounds, and all sites come to the same head."""
        self._cuts.clear()
        if self._sequencer is None and not self._is_lost:
            self._start_leader()
        for site in self._sites.values():
            if not site.up and not site.gone:
                self._start_site(site)
        began = [len(rounds) for rounds in self._chain.rounds]
        end = self._now + _PEACE_S
        while self._now < end:
            self._until(self._now + 1)
            rounds = self._chain.rounds
            if all(len(rounds[p]) >= began[p] + 2 for p in range(_FRAGMENTS)) and self._is_level():
                return True
        return False

    def _is_level(self) -> bool:
        """Whether every site that has not left takes part, and is at the head or a round behind."""
        if self._sequencer is None:
            return False
        for site in self._sites.values():
            standing = self._sequencer.state.sites.get(site.name)
            if site.gone or (standing is not None and standing.standing is Standing.LEFT):
                continue
            if standing is None or standing.standing is not Standing.READY or site.ranks is None:
                return False
            member = site.ranks.member
            if member is None or any(member.versions[p] < len(self._chain.rounds[p]) - 1 for p in range(_FRAGMENTS)):
                return False
        return True

    def _at(self, delay: float, do: Callable[[], None]) -> None:
        self._at_time(self._now + delay, do)

    def _at_time(self, time: float, do: Callable[[], None]) -> None:
        self._queued += 1
        heapq.heappush(self._queue, (time, self._queued, do))

    def _on_site(self, site: _Site, delay: float, do: Callable[[], None], at: float | None = None) -> None:
        """In this start of the site, and not while it is paused."""
        process = site.process

        def when_running() -> None:
            if not site.up or site.process != process:
                return
            if site.paused_until > self._now or site.parked:
                site.parked.append(do)
            else:
                do()

        self._at_time(self._now + delay if at is None else at, when_running)

    def _hex(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def _delay(self) -> float:
        return self._random.uniform(0.02, 0.4)

    # ---- faults

    def _fault(self) -> None:
        if self._now >= _QUIET_S + _FAULTS_S:
            return
        self._at(self._random.expovariate(1 / 3), self._fault)
        kind = self._random.choices([*self._weights], [*self._weights.values()])[0]
        site = self._random.choice([*self._sites.values()])
        match kind:
            case "leader":
                self._kill_leader()
            case "hub" if self._random.random() < 0.5:
                self._lose_leader()
            case "hub":
                self._is_doomed = True
            case "line" | "uplink":
                ends = self._random.sample([*self._sites], 2) if kind == "line" else [site.name, LEADER]
                self._cut(frozenset(ends), self._random.uniform(1, 25))
            case "all":
                self._kill_leader()
                for one in self._sites.values():
                    self._kill_site(one)
            case _ if not site.up:
                return
            case "site" | "disk":
                self._kill_site(site)
                if kind == "disk":
                    site.disk = _Disk(self._hex())
            case "pause":
                self._pause(site, self._random.uniform(1, 20))
            case "ranks" if site.ranks is not None:
                self._end_ranks(site, "killed")
            case "agent":
                self._forget_leader(site)
            case "leave" if site.ranks and sum(not one.leaving for one in self._sites.values()) > 2:
                site.leaving = True
                self._say(site, Leave())
            case _:
                return
        self._faults[kind] += 1

    def _pause(self, site: _Site, duration: float) -> None:
        site.paused_until = max(site.paused_until, self._now + duration)
        process = site.process

        def resume() -> None:
            if site.process != process or site.paused_until > self._now:
                return
            parked, site.parked = site.parked, []
            for do in parked:
                if site.process == process and site.up:
                    do()

        self._at_time(site.paused_until, resume)

    def _kill_site(self, site: _Site) -> None:
        if not site.up:
            return
        site.up = False
        site.process += 1
        site.ranks = None
        site.needs.clear()
        site.parked.clear()
        site.paused_until = 0
        self._break_link(site, 0.1)
        self._at(self._random.uniform(0.5, 15), lambda: None if site.up or site.gone else self._start_site(site))

    def _kill_leader(self) -> None:
        if self._sequencer is None:
            return
        self._sequencer = None
        self._leader_start += 1
        for name in [*self._links]:
            self._break_link(self._sites[name], 1)
        self._links.clear()
        self._at(self._random.uniform(0.3, 6), self._restart_leader)

    def _lose_leader(self) -> None:
        self._kill_leader()
        self._is_lost = True
        self._at(self._random.uniform(3, 12), self._promote)

    def _lose_leader_and(self, site: _Site) -> None:
        self._is_doomed = False
        self._lose_leader()
        if self._random.random() < 0.5:
            self._kill_site(site)
        else:
            cut_s = self._random.uniform(15, 40)
            for name in [LEADER, *self._sites]:
                if name != site.name:
                    self._cut(frozenset([site.name, name]), cut_s)

    def _restart_leader(self) -> None:
        if self._sequencer is None and not self._is_lost:
            self._start_leader()

    def _promote(self) -> None:
        """Have a site lead, if it reaches more than half of the members; with force if it reaches all that have a
        journal. Else a person tries again, there or elsewhere."""
        if not self._is_lost:
            return
        there = [site for site in self._sites.values() if site.up and site.paused_until <= self._now]
        if all(site.gone or not site.disk.journal for site in self._sites.values()):
            if any(site.gone or site.disk.term for site in self._sites.values()):
                raise _RunHasEnded  # the disks of all that take part are lost: there is nothing to go on from
            self._lead_with(_Chain(self._contents))  # the run had hardly begun
            return
        candidates = [site for site in there if site.state.genesis is not None]
        if candidates:
            site = self._random.choice(candidates)
            reached = [one for one in candidates if one is site or self._reach(site.name, one.name)]
            over = (Standing.LEFT, Standing.REMOVED)
            members = {name for name, one in site.state.sites.items() if one.standing not in over}
            most = 2 * len(members - {one.name for one in reached}) < len(members)
            if most or len(reached) == sum(bool(one.disk.journal) and not one.gone for one in self._sites.values()):
                self._begin_term(site, reached)
                return
        self._at(self._random.uniform(1, 4), self._promote)

    def _begin_term(self, site: _Site, reached: list[_Site]) -> None:
        best = max(reached, key=lambda one: (one.state.term, one.state.head.index))
        term = 1 + max(one.disk.term for one in reached)
        for one in reached:
            one.disk.term = term
        head = best.state.head
        chain = best.chain.until(head.index + 1)
        chain.append(TermBegun(index=head.index + 1, prev=head.hash, term=term, site=site.name, address=LEADER))
        self._lead_with(chain)

    def _lead_with(self, chain: _Chain) -> None:
        self._chain, self._is_lost = chain, False
        self._start_leader()

    def _cut(self, pair: frozenset[str], duration: float) -> None:
        self._cuts[pair] += 1
        for name in pair - {LEADER}:
            if LEADER in pair:
                self._break_link(self._sites[name], 9)

        def heal() -> None:
            self._cuts[pair] = max(self._cuts[pair] - 1, 0)

        self._at(duration, heal)

    def _reach(self, one: str, other: str) -> bool:
        return not self._cuts[frozenset((one, other))]

    def _break_link(self, site: _Site, noticed_s: float) -> None:
        """Nothing goes through it any more; both ends notice after up to so many seconds, each for itself."""
        link = site.link
        if link is None or not link.up:
            return
        link.up = False

        def leader_notices() -> None:
            if self._links.get(site.name) is link:
                del self._links[site.name]
                self._lead(Ended(site.name))

        def site_notices() -> None:
            if site.link is link:
                self._forget_leader(site)

        self._at(self._random.uniform(0, noticed_s), leader_notices)
        self._at(self._random.uniform(0, noticed_s), site_notices)

    # ---- the leader

    def _start_leader(self) -> None:
        self._leader_start += 1
        self._clock_offset = self._random.uniform(0, 1e6)
        self._sequencer = self._sequencer_type(
            RunState.of(self._chain.entries),
            self._terms,
            lambda index: self._chain.hashes[index] if 0 <= index < len(self._chain.hashes) else EMPTY.hash,
            self._hex,
            LEADER,
        )
        self._tick(self._leader_start)

    def _tick(self, start: int) -> None:
        if start == self._leader_start and self._sequencer is not None:
            self._lead(Tick())
            self._at(0.5, lambda: self._tick(start))

    def _lead(self, event: Event) -> None:
        if self._sequencer is None:
            return
        for action in self._sequencer.on(event, self._now + self._clock_offset):
            match action:
                case Append():
                    self._appended(action.entry)
                case Send():
                    self._send_down(action.site, action.message)
                case SendEntries():
                    for entry in self._chain.entries[action.first : action.last + 1]:
                        self._send_down(action.site, EntrySaid(entry=entry))
                case Close():
                    link = self._links.pop(action.site, None)
                    if link is not None:
                        # What was sent before still arrives; then the site notices.
                        site = self._sites[action.site]
                        at = max(link.sent_down, self._now)
                        self._at_time(at, lambda site=site, link=link: self._closed(site, link))
                case _:
                    pass

    def _closed(self, site: _Site, link: _Link) -> None:
        link.up = False
        if site.link is link:
            self._on_site(site, 0, lambda: self._forget_leader(site) if site.link is link else None)

    def _send_down(self, name: str, message: Down) -> None:
        site, link = self._sites[name], self._links.get(name)
        if link is None or not link.up:
            return
        link.sent_down = max(link.sent_down, self._now + self._delay())
        process = site.process

        def arrives() -> None:
            if site.process == process and site.link is link and link.up:
                self._take(site, message)

        self._on_site(site, 0, arrives, at=link.sent_down)

    # ---- agents

    def _start_site(self, site: _Site) -> None:
        site.up = True
        site.process += 1
        site.state = RunState.of(site.disk.journal)
        site.welcome, site.link = None, None
        site.opens.clear()
        self._on_site(site, 0, lambda: self._connect(site))
        self._on_site(site, 0, lambda: self._beat(site))
        self._start_ranks(site)

    def _connect(self, site: _Site) -> None:
        self._on_site(site, self._random.uniform(0.5, 1), lambda: self._connect(site))
        if site.link is not None or self._sequencer is None or not self._reach(site.name, LEADER):
            return
        site.link = self._links[site.name] = _Link()
        self._lead(Came(site.name))
        genesis = site.state.genesis
        head = site.state.head
        self._send_up(
            site,
            Hello(
                protocol=PROTOCOL_VERSION,
                geocomm="",
                store=site.disk.store,
                run=None if genesis is None else genesis.run,
                head=head.index,
                head_hash=None if head == EMPTY else head.hash,
                term=site.state.term,
                fetch=site.name,
                attempts={p: attempt for p, (v, attempt) in site.disk.attempts.items() if v == site.state.versions[p]}
                if genesis is not None
                else {},
            ),
        )

    def _forget_leader(self, site: _Site) -> None:
        """The connection has ended, or the agent was killed and a new one begins."""
        if site.link is not None:
            self._break_link(site, 0.1)
        site.link, site.welcome = None, None

    def _beat(self, site: _Site) -> None:
        self._on_site(site, 3, lambda: self._beat(site))
        self._say(site, Beat(step=site.steps, tokens=0, step_s=site.step_s, line_s=0, free_bytes=0))

    def _say(self, site: _Site, message: Up) -> None:
        """What ranks say waits until they know all that the leader knew: `Welcome` makes them say it again."""
        if site.welcome is not None and (site.caught_up or not isinstance(message, _OF_RANKS)):
            self._send_up(site, message)

    def _send_up(self, site: _Site, message: Up) -> None:
        link = site.link
        if link is None or not link.up:
            return
        link.sent_up = max(link.sent_up, self._now + self._delay())

        def arrives() -> None:
            if link.up and self._links.get(site.name) is link:
                if isinstance(message, Hello):
                    self._stores[site.name] = message.store
                self._lead(Said(site.name, message))

        self._at_time(link.sent_up, arrives)

    def _take(self, site: _Site, message: Down) -> None:
        match message:
            case Welcome():
                if message.term < site.disk.term:
                    raise BrokenRunError(f"10: {site.name} is to follow term {message.term} after {site.disk.term}")
                site.disk.term = message.term
                site.welcome = message
                site.opens = {p: one for p, one in site.opens.items() if (p, one.version, one.attempt) in message.open}
                site.caught_up = False
                self._caught_up(site)
                self._ranks_changed(site)
                if site.ranks is None:
                    self._say(site, RanksGone(why="none yet"))
                if site.leaving:
                    self._say(site, Leave())
            case EntrySaid():
                self._store(site, message.entry)
            case Open():
                site.opens[message.fragment] = message
                site.disk.attempts[message.fragment] = (message.version, message.attempt)
                self._tell_member(site, message)
            case Fetch():
                frame = Frame(message.fragment, message.version, message.site, message.frame)
                self._fetch(site, frame, [*message.sources], again=False)
            case Refused() | Stop():
                raise BrokenRunError(f"{site.name} was stopped: {message.why}")
            case _:
                self._tell_member(site, message)

    def _store(self, site: _Site, entry: Entry) -> None:
        """A follower: an entry is on its disk before its ranks see it."""
        head = site.state.head
        if entry.index <= head.index:
            if hash_of(site.disk.journal[entry.index]) != hash_of(entry):
                self._go_back(site, entry.index)
            return
        if entry.index == head.index + 1 and entry.prev != head.hash:
            self._go_back(site, site.state.terms.get(site.state.term, 0))
            return
        site.state.apply(entry)
        if self._chain.entries[entry.index] is not entry:
            raise BrokenRunError(f"1: {site.name} has another entry {entry.index} than the leader")
        site.chain = self._chain
        site.disk.journal.append(entry)
        if self._is_doomed:
            self._lose_leader_and(site)
            if not site.up:
                return
        if isinstance(entry, Skip):
            void = (entry.fragment, entry.version)
            site.needs = {frame for frame in site.needs if frame[:2] != void}
            state = site.disk.states.get(entry.fragment)
            if state is not None and state.version > entry.version:
                del site.disk.states[entry.fragment]
        if isinstance(entry, Left) and entry.site == site.name:
            site.up, site.gone = False, True
            return
        self._tell_member(site, EntrySaid(entry=entry))
        self._caught_up(site)
        self._ranks_changed(site)

    def _go_back(self, site: _Site, first: int) -> None:
        """Its journal ends outside the run's: it begins again where the two part."""
        if site.welcome is None or site.state.term >= site.welcome.term:
            raise BrokenRunError(f"1: {site.name} has another entry {first} than the leader, of the same term")
        dropped = [entry for entry in site.disk.journal[first:] if isinstance(entry, Round | Skip)]
        del site.disk.journal[first:]
        for entry in dropped:
            state = site.disk.states.get(entry.fragment)
            if state is not None and state.version > entry.version:
                del site.disk.states[entry.fragment]
        site.state = RunState.of(site.disk.journal)
        self._forget_leader(site)
        if dropped and site.ranks is not None:
            self._end_ranks(site, "they have rounds that the run does not have")

    def _caught_up(self, site: _Site) -> None:
        if site.welcome is not None and not site.caught_up and site.state.head.index >= site.welcome.head:
            site.caught_up = True
            self._tell_member(site, site.welcome)

    def _tell_member(self, site: _Site, message: Down) -> None:
        if site.ranks is not None and site.ranks.member is not None:
            if isinstance(message, Open):
                site.ranks.opens[message.fragment] = message
            self._do(site, site.ranks.member.on_down(message))

    # ---- files

    def _fetch(self, site: _Site, frame: Frame, sources: list[str], *, again: bool) -> None:
        """From one of the sources; `again`: until it is here, or a state behind that round is."""
        if frame in site.disk.frames:
            self._on_site(site, 0, lambda: self._fetched(site, frame))
            return
        holders = [one for one in self._can_be_asked(site, sources) if frame in one.disk.frames]
        if holders:
            self._on_site(site, self._random.uniform(0.1, 1), lambda: self._fetched(site, frame))
            return
        if not again or frame not in site.needs:
            return
        skips = len(site.state.skipped)
        for one in self._can_be_asked(site, sources):
            state = one.disk.states.get(frame.fragment)
            fits = state is not None and frame.version < state.version <= site.state.versions[frame.fragment]
            knows = one.state.skipped == site.state.skipped and one.state.term >= site.state.term
            if state is not None and fits and knows:
                self._on_site(
                    site,
                    self._random.uniform(0.2, 2),
                    lambda state=state: self._take_state(site, frame, state, skips),
                )
                return
        if site.welcome is not None and site.state.head.index >= site.welcome.head:
            self._say(site, Lost(fragment=frame.fragment, version=frame.version, site=frame.site, frame=frame.hash))
        self._on_site(site, 4, lambda: self._fetch(site, frame, sources, again=True))

    def _can_be_asked(self, site: _Site, sources: list[str]) -> list[_Site]:
        """Who is reached, by itself or through the leader's agent."""
        leader = LEADER in sources and self._sequencer is not None and self._reach(site.name, LEADER)
        return [
            one
            for one in self._sites.values()
            if one is not site
            and (one.up or one.gone)
            and one.paused_until <= self._now
            and (
                (one.name in sources and self._reach(site.name, one.name)) or (leader and self._reach(LEADER, one.name))
            )
        ]

    def _fetched(self, site: _Site, frame: Frame) -> None:
        self._write(site, frame)
        site.needs.discard(frame)
        self._tell_member(
            site, Fetched(fragment=frame.fragment, version=frame.version, site=frame.site, frame=frame.hash)
        )

    def _take_state(self, site: _Site, frame: Frame, state: _State, skips: int) -> None:
        """Unless a skip came meanwhile, after which that state may be another one."""
        if frame in site.needs and len(site.state.skipped) == skips:
            site.disk.states[frame.fragment] = state
            self._end_ranks(site, "they take a state")
        else:
            self._fetch(site, frame, [*self._sites, LEADER], again=True)

    def _write(self, site: _Site, frame: Frame) -> None:
        site.disk.frames.add(frame)
        self._was_on_disk.add((site.disk.store, frame))

    # ---- ranks

    def _start_ranks(self, site: _Site) -> None:
        ranks = _Ranks(self._hex())

        def up() -> None:
            if site.ranks is None and not site.gone:
                site.ranks = ranks
                self._ranks_changed(site)
                self._on_site(site, site.step_s, lambda: self._step(site, ranks))

        self._on_site(site, self._random.uniform(0.5, 2), up)

    def _end_ranks(self, site: _Site, why: str) -> None:
        site.ranks = None
        site.needs.clear()
        self._say(site, RanksGone(why=why))
        self._start_ranks(site)

    def _ranks_changed(self, site: _Site) -> None:
        """Ranks, a welcome or an entry are new: ranks are introduced, welcomed or said to be ready."""
        ranks = site.ranks
        if ranks is None or site.welcome is None:
            return
        state = site.state
        if ranks.introduced_to is not site.welcome:
            ranks.introduced_to = site.welcome
            digests = tuple(_State(0).digest for _ in range(_FRAGMENTS))
            model = Model(settings={}, layout="0" * 32, fragments=_FRAGMENTS, every=_EVERY)
            owner = Owner(id=ranks.id, host=site.name, port=1)
            self._say(site, RanksUp(owners=(owner,), model=model, digests=digests))
            if ranks.member is not None:
                self._say_ready(site, ranks)
        known = state.sites.get(site.name)
        if ranks.member is None and known is not None and state.head.index >= site.welcome.head:
            self._welcome_ranks(site, ranks)

    def _welcome_ranks(self, site: _Site, ranks: _Ranks) -> None:
        states = [site.disk.states.get(p, _State(0)) for p in range(_FRAGMENTS)]
        ranks.parts = [_Part(state, state.anchor) for state in states]
        ranks.goals = [*site.state.versions]
        ranks.member = self._member(
            site.name, {p: state.version for p, state in enumerate(states)}, sorted(site.disk.frames)
        )
        for entry in site.disk.journal:
            # A state behind a void round is not loaded: such an entry is of a version that is to come.
            if isinstance(entry, Round | Skip) and entry.version >= states[entry.fragment].version:
                self._do(site, ranks.member.on_down(EntrySaid(entry=entry)))
        for one in site.opens.values():
            self._tell_member(site, one)
        self._say_ready(site, ranks)

    def _say_ready(self, site: _Site, ranks: _Ranks) -> None:
        if all(part.state.version >= goal for part, goal in zip(ranks.parts, ranks.goals, strict=True)):
            self._say(site, ReadySaid())

    def _step(self, site: _Site, ranks: _Ranks) -> None:
        if site.ranks is not ranks:
            return
        self._on_site(site, site.step_s * self._random.uniform(0.8, 1.2), lambda: self._step(site, ranks))
        if ranks.member is None or site.leaving:
            if ranks.member is not None:
                self._settle(site, ranks)
            return
        site.steps += 1
        self._queued += 1
        for part in ranks.parts:
            added = self._random.randint(1, 99)
            part.local += added
            part.uncounted.append((self._queued, added))
        self._settle(site, ranks)
        for fragment in range(_FRAGMENTS):
            if site.ranks is ranks and (site.steps + fragment * _EVERY // _FRAGMENTS) % _EVERY == 0:
                self._do(site, ranks.member.due(fragment))
        for fragment in ranks.member.begins() if site.ranks is ranks else []:
            self._make(site, ranks, fragment)

    def _make(self, site: _Site, ranks: _Ranks, fragment: int) -> None:
        part, opened = ranks.parts[fragment], ranks.opens[fragment]
        version = part.state.version
        if not part.uncounted:
            nothing = Pass(fragment=fragment, version=version, attempt=opened.attempt)
            self._do(site, ranks.member.made(nothing) if ranks.member is not None else [])
            return
        delta = part.local - part.state.anchor + part.residual
        coded = delta // 8 * 8
        text = f"{self._hex()} {coded}"
        frame = Frame(fragment, version, site.name, hashlib.sha256(text.encode()).hexdigest())
        steps = frozenset(step for step, _ in part.uncounted)
        self._contents[frame.hash] = _Content(frame, coded, part.state.digest, steps)
        part.frames[frame.hash] = _Own(delta - coded, part.local, len(part.uncounted))
        offer = Offer(
            fragment=fragment,
            version=version,
            attempt=opened.attempt,
            frame=frame.hash,
            coded_bytes=8,
            exact_bytes=0,
            weight=len(part.uncounted),
            step=site.steps,
            squared_norm=float(delta**2),
            lr=0.001,
            every=0,
        )

        def on_disk() -> None:
            if site.ranks is ranks and ranks.member is not None:
                self._write(site, frame)
                self._do(site, ranks.member.made(offer))

        self._on_site(site, self._random.uniform(0.01, 0.1), on_disk)

    def _settle(self, site: _Site, ranks: _Ranks) -> None:
        """Written back at the step hook: every round that is decided, and whose frames are here."""
        while site.ranks is ranks and ranks.member is not None and (settled := ranks.member.next_settled()):
            part = ranks.parts[settled.fragment]
            before = part.state
            if before.version != settled.version:
                raise BrokenRunError(f"{site.name} settles {settled.version} at version {before.version}")
            coded = [self._contents[one.frame].coded for one in settled.entry.members] if settled.entry else []
            part.state = before.after(coded)
            if settled.counted is None:
                part.local += part.state.anchor - before.anchor
            else:
                own = part.frames[settled.counted.frame]
                part.local = part.state.anchor + part.local - own.local
                part.residual = own.residual
                del part.uncounted[: own.steps]
            part.frames.clear()
            self._check_part(site, settled.fragment, part)
            disk = site.disk
            if self._random.random() < 0.3:
                disk.states[settled.fragment] = part.state
                old = part.state.version
                disk.frames = {one for one in disk.frames if one[0] != settled.fragment or one.version >= old}
            self._do(site, ranks.member.applied(settled, part.state.digest))
            self._say_ready(site, ranks)

    def _do(self, site: _Site, acts: list[Act]) -> None:
        for act in acts:
            match act:
                case Say(Need() as need):
                    frame = Frame(need.fragment, need.version, need.site, need.frame)
                    if frame not in site.needs and frame[:2] not in site.state.skipped:
                        site.needs.add(frame)
                        everybody = [*self._sites, LEADER]
                        self._on_site(
                            site, 0.1, lambda frame=frame, names=everybody: self._fetch(site, frame, names, again=True)
                        )
                case Say():
                    self._say(site, act.message)
                case SendFrame():
                    for peer in act.peers:
                        self._mail(site, peer.site, peer.owners[0].id, act.offer)
                case Recompute():
                    raise BrokenRunError(f"4: {site.name} is to repair fragment {act.fragment}")
                case StartAgain():
                    self._end_ranks(site, act.why)
                    return

    def _mail(self, site: _Site, name: str, process: str, offer: Offer) -> None:
        peer = self._sites[name]
        frame = Frame(offer.fragment, offer.version, site.name, offer.frame)
        pair = (site.name, name)
        self._mail_sent[pair] = max(self._mail_sent.get(pair, 0), self._now + self._delay())
        sender = site.ranks

        def arrives() -> None:
            if peer.ranks is None or peer.ranks.id != process or site.ranks is not sender or not peer.up:
                return
            if not self._reach(*pair):
                # A channel resumes; where the cut is long, it does not.
                if self._random.random() < 0.7:
                    self._at(2, arrives)
                return
            self._on_site(peer, self._random.uniform(0.01, 0.1), lambda: on_disk(peer.ranks))

        def on_disk(ranks: _Ranks | None) -> None:
            if ranks is None or ranks.id != process:
                return
            if ranks.member is not None:
                self._write(peer, frame)
                peer.needs.discard(frame)
                self._do(peer, ranks.member.arrived(*frame, by_mail=True))

        self._at_time(self._mail_sent[pair], arrives)

    # ---- checks

    def _appended(self, entry: Entry) -> None:
        """The leader's disk has it."""
        if isinstance(entry, Genesis) and self._chain.entries:
            raise BrokenRunError("1: a second genesis")
        if isinstance(entry, Round):
            self._check_round(entry)
        self._chain.append(entry)
        if isinstance(entry, End):
            raise _RunHasEnded

    def _check_round(self, entry: Round) -> None:
        if self._sequencer is None:
            raise BrokenRunError("the leader is not there")
        chain, p, v = self._chain, entry.fragment, entry.version
        if v != len(chain.rounds[p]):
            raise BrokenRunError(f"2: fragment {p} has a second round {v}")
        digest = chain.truth[p][v].digest
        if entry.base not in (None, digest):
            raise BrokenRunError(f"4: entry {entry.index} has another base than its journal gives")
        sites = self._sequencer.state.sites
        live = [site for site in sites.values() if site.standing is Standing.READY]
        counted = chain.counted[p]
        for listed in entry.members:
            content = self._contents[listed.frame]
            if content.frame != Frame(p, v, listed.site, listed.frame) or content.base != digest:
                raise BrokenRunError(f"5: entry {entry.index} lists a delta to another state")
            held = sum((self._stores[site.name], content.frame) in self._was_on_disk for site in live)
            if held < min(2, len(live)):
                raise BrokenRunError(f"3: entry {entry.index} lists a frame that {held} of {len(live)} live sites have")
            if content.steps & counted:
                raise BrokenRunError(f"12: entry {entry.index} counts steps of {listed.site} again")
            counted = counted | content.steps

    def _check_part(self, site: _Site, fragment: int, part: _Part) -> None:
        head = site.state.head.index
        known = [digest for index, digest in site.chain.digests[fragment, part.state.version] if index <= head]
        if not known or part.state.digest != known[-1]:
            raise BrokenRunError(f"4: {site.name} has another fragment {fragment} than its journal gives")
        if part.local - part.state.anchor != sum(added for _, added in part.uncounted):
            raise BrokenRunError(
                f"6: {site.name} has other uncounted steps in fragment {fragment} than its weights say"
            )
