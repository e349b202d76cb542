"""What a site of a simulated run has: its disk, its ranks and their copies of the fragments, its agent's connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from geocomm.core.records import Hash
from geocomm.elastic.journal.entries import Entry
from geocomm.elastic.journal.member import Frame, Member
from geocomm.elastic.journal.messages import Open, Welcome
from geocomm.elastic.journal.run_state import RunState
from support.journal.simulated_chain import Chain, State
from support.journal.simulated_data import Sequence
from support.journal.simulated_lines import Link
from support.journal.simulated_time import SimulatedTime


@dataclass
class Disk:
    """What outlives a site's machine."""

    store: str
    """Its name."""
    term: int = 0
    """The highest seen."""
    base: RunState = field(default_factory=RunState)
    """What the entries before those of `journal` say."""
    journal: list[Entry] = field(default_factory=list[Entry])
    frames: set[Frame] = field(default_factory=set[Frame])
    states: dict[int, State] = field(default_factory=dict[int, State])
    snapshots: set[int] = field(default_factory=set[int])
    """Indices of the entries."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no journal."""
        return self.base.genesis is None and not self.journal

    @property
    def state(self) -> RunState:
        """What the journal says."""
        state = RunState.read(self.base.text)
        for entry in self.journal:
            state.apply(entry)
        return state

    def hash_at(self, index: int) -> Hash | None:
        """Of an entry; None: it is not there, or not any more."""
        place = index - self.base.head.index - 1
        if place < 0:
            return self.base.head.hash if place == -1 else None
        return self.journal[place].hash if place < len(self.journal) else None

    def replayed_from(self, fragment: int) -> int:
        """The lowest version of a fragment from which the journal goes on."""
        return self.base.versions[fragment] if self.base.versions else 0

    def forget(self, before: int) -> None:
        """Put a state in the place of the entries before this one, where the site has that snapshot."""
        while before in self.snapshots and self.base.head.index < before - 1:
            self.base.apply(self.journal.pop(0))

    def cut(self, first: int) -> list[Entry]:
        """Take the entries from `first` on out; which these were."""
        if first <= self.base.head.index:
            self.base = RunState()
            self.states.clear()
            first = 0
        place = first - self.base.head.index - 1
        cut = self.journal[place:]
        del self.journal[place:]
        return cut


@dataclass
class OwnFrame:
    """An own frame, as long as it may count."""

    residual: int
    local: int
    steps: int
    """How many of the uncounted ones it has."""


@dataclass(frozen=True)
class Step:
    """An optimizer step of a site."""

    number: int
    """Over all sites."""
    added: int
    """To the fragment."""
    token: int
    """Which one of the site's line it has read."""
    sequence: Sequence
    """What stood there."""


@dataclass
class Part:
    """A rank's copy of a fragment."""

    state: State
    local: int
    residual: int = 0
    uncounted: list[Step] = field(default_factory=list[Step])
    frames: dict[Hash, OwnFrame] = field(default_factory=dict[Hash, OwnFrame])


class Ranks:
    """The ranks of a site, as one process that owns all fragments."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.member: Member | None = None
        self.parts: list[Part] = []
        self.goals: list[int] = []
        self.read = 0
        """Tokens of the site's line, those of earlier starts that count included."""
        self.introduced_to: Welcome | None = None


class Site:
    """A site: its machine, and what runs on it."""

    def __init__(self, time: SimulatedTime, name: str, step_s: float, store: str, chain: Chain) -> None:
        self._time = time
        self.name = name
        self.chain = chain
        """That of which its journal is the beginning."""
        self.step_s = step_s
        self.disk = Disk(store)
        self.state = RunState()
        self.process = 0
        """Which start of the site this is: events of an earlier one are void."""
        self.up = False
        self.gone = False
        """It has left."""
        self.leaving = False
        self.says_wrong_bits = False
        """Of the next round that its ranks apply."""
        self.has_wrong_bits = False
        """It has said so, and its ranks have not started again since."""
        self.paused_until = 0.0
        self.parked: list[Callable[[], None]] = []
        """What happens once the pause is over, in order."""
        self.steps = 0
        self.link: Link | None = None
        self.welcome: Welcome | None = None
        self.state_text = ""
        """Of a state that arrives in parts."""
        self.caught_up = False
        """The entries that the leader had at the welcome are here, and the ranks know them."""
        self.opens: dict[int, Open] = {}
        self.ranks: Ranks | None = None
        self.needs: set[Frame] = set()

    def later(self, delay: float, do: Callable[[], None]) -> None:
        """Have something happen in `delay` seconds in this start of the site, and not while it is paused."""
        self.at(self._time.now + delay, do)

    def at(self, time: float, do: Callable[[], None]) -> None:
        """The same at `time`."""
        process = self.process

        def when_running() -> None:
            if not self.up or self.process != process:
                return
            if self.paused_until > self._time.now or self.parked:
                self.parked.append(do)
            else:
                do()

        self._time.at(time, when_running)

    def pause(self, duration: float) -> None:
        """Stop for so long; then all happens at once that was due."""
        self.paused_until = max(self.paused_until, self._time.now + duration)
        process = self.process

        def resume() -> None:
            if self.process != process or self.paused_until > self._time.now:
                return
            parked, self.parked = self.parked, []
            for do in parked:
                if self.process == process and self.up:
                    do()

        self._time.at(self.paused_until, resume)
