"""A whole elastic run in one process and in virtual time, under faults, which checks what must always hold.

Leader and ranks decide by the real `Sequencer` and `Member`. The rest is as small as it can be and still be exact: a
fragment is an integer, a step adds to it, a frame rounds the delta down to a multiple of 8 and keeps the residual.
Equal seeds give equal histories.

What is checked, by the numbers of the rules: 1 one chain, which a site stores before its ranks see it; 2 one round
entry for each fragment and version; 3 a listed frame lay on two live sites' disks; 4 equal journals give equal states;
5 who offers has the state of the journal; 6 residual and uncounted steps change with a listed frame only; 10 terms
never fall; 11 no two clocks are compared (each leader has another one, and members have none); 12 a step counts once
for each fragment; 13 what a site has read, so that it reads on behind it, counts in every fragment; 14 what was dealt
is one site's to read, or waits for one, and no site counts anything else; 15 it may read it; 16 no more counts twice
than sites that died had in some fragments alone. And once the faults are over, the run goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from geocomm.elastic.journal.entries import Entry
from geocomm.elastic.journal.member import Member
from geocomm.elastic.journal.messages import Leave
from geocomm.elastic.journal.run_state import Standing
from geocomm.elastic.journal.sequencer import Sequencer
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from support.journal.simulated_agents import SimulatedAgents
from support.journal.simulated_chain import FRAGMENTS, Chain, Contents
from support.journal.simulated_checks import BrokenRunError, Checks, RunHasEnded, repeats
from support.journal.simulated_data import DATA
from support.journal.simulated_leader import SimulatedLeader
from support.journal.simulated_lines import LEADER, Lines
from support.journal.simulated_ranks import SimulatedRanks
from support.journal.simulated_site import Disk, Site
from support.journal.simulated_time import SimulatedTime

TERMS = LeaderSettings(
    attempt_s=12.0, lost_s=20.0, lost_said_s=12.0, snapshot_s=6.0, data=DATA, doubt_s=10.0, ahead_s=30.0
)
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
    "bits": 0.2,
}
"""How often each comes, beside the others; one comes every 3 s or so. `all`: the leader and all sites are killed at
once. `disk`: a site is killed and its disk is lost. `line`: two sites are cut from each other; `uplink`: one from the
leader. `hub`: the leader is killed and its disk is lost, and then a site is promoted; half the time the site that has
its last entry is killed too, or cut off from all. `bits`: a site says a wrong digest of what it applies next."""

_QUIET_S = 8.0
"""Before the first fault."""
_FAULTS_S = 60.0
_PEACE_S = 240.0
"""For so long after the faults the run may take to go on: several frames may be lost, one behind the other."""


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
    repaired_in_vain: int
    """See `Checks`."""
    counted: int
    """Sequences that count, of all fragments."""
    repeated: int
    """Of these, those that count more than once."""
    read_again: int
    """Sequences that ranks have read once more."""
    said_again: int
    """Of these, what the leader says since it began."""


class SimulatedRun:
    """One history. sites: how many; None: 2 to 5. faults: see FAULTS. reduce: "all" or "aggregator"; None: one of them.

    terms, member, sequencer: others, to look whether the checks find what a mistake in them does.
    """

    def __init__(
        self,
        seed: int,
        *,
        sites: int | None = None,
        faults: Mapping[str, float] = FAULTS,
        terms: LeaderSettings = TERMS,
        member: type[Member] = Member,
        sequencer: type[Sequencer] = Sequencer,
        reduce: str | None = None,
    ) -> None:
        self._seed = seed
        self._weights = faults
        self._faults: Counter[str] = Counter()
        self._time = SimulatedTime(seed)
        self._random = self._time.random
        self._lines = Lines(self._time)
        contents = Contents()
        chain, self._checks = Chain(contents), Checks(contents)
        checks = self._checks
        count = sites or self._random.randint(2, 5)
        slow = self._random.randrange(count)
        self._sites: dict[str, Site] = {}
        for i, name in enumerate("abcde"[:count]):
            step_s = self._random.uniform(0.4, 0.7) * (3 if i == slow else 1)
            self._sites[name] = Site(self._time, name, step_s, self._time.hex(), chain)
        world = (self._time, self._lines, self._sites)
        self._leader = SimulatedLeader(*world, chain, checks, terms, sequencer)
        if reduce is None:
            reduce = "aggregator" if seed % 2 else "all"
        self._ranks = SimulatedRanks(*world, self._leader, checks, contents, member, reduce)
        self._agents = SimulatedAgents(*world, self._leader, self._ranks, checks)

    def run(self) -> History:
        """Let it happen."""
        broken, still = "", False
        try:
            self._leader.start()
            for site in self._sites.values():
                self._time.after(self._random.uniform(0, 3), lambda site=site: self._agents.start(site))
            self._time.pass_until(_QUIET_S)
            self._time.after(0, self._fault)
            self._time.pass_until(_QUIET_S + _FAULTS_S)
            still = not self._goes_on()
        except BrokenRunError as error:
            broken = str(error)
        except RunHasEnded:
            pass
        return History(
            self._seed,
            tuple(self._leader.chain.entries),
            broken,
            still,
            self._faults,
            self._time.now,
            self._checks.repaired_in_vain,
            sum(sum(read.values()) for read in self._leader.chain.read),
            repeats(self._leader.chain),
            self._checks.read.total() - len(self._checks.read),
            0 if self._leader.sequencer is None else self._leader.sequencer.deals.repeated_tokens,
        )

    def _goes_on(self) -> bool:
        """Whether in the time of peace every fragment takes two rounds, and all sites come to the same head."""
        self._lines.heal_all()
        self._leader.restart()
        for site in self._sites.values():
            if not site.up and not site.gone:
                self._agents.start(site)
        began = [len(rounds) for rounds in self._leader.chain.rounds]
        end = self._time.now + _PEACE_S
        while self._time.now < end:
            self._time.pass_until(self._time.now + 1)
            rounds = self._leader.chain.rounds
            if all(len(rounds[p]) >= began[p] + 2 for p in range(FRAGMENTS)) and self._is_level():
                return True
        return False

    def _is_level(self) -> bool:
        """Whether every site that has not left takes part, and is at the head or a round behind."""
        sequencer = self._leader.sequencer
        if sequencer is None:
            return False
        for site in self._sites.values():
            standing = sequencer.state.sites.get(site.name)
            if site.gone or (standing is not None and standing.standing is Standing.LEFT):
                continue
            if standing is None or standing.standing is not Standing.READY or site.ranks is None:
                return False
            member, rounds = site.ranks.member, self._leader.chain.rounds
            if member is None or any(member.versions[p] < len(rounds[p]) - 1 for p in range(FRAGMENTS)):
                return False
        return True

    def _fault(self) -> None:
        if self._time.now >= _QUIET_S + _FAULTS_S:
            return
        self._time.after(self._random.expovariate(1 / 3), self._fault)
        kind = self._random.choices([*self._weights], [*self._weights.values()])[0]
        site = self._random.choice([*self._sites.values()])
        match kind:
            case "leader":
                self._leader.kill()
            case "hub" if self._random.random() < 0.5:
                self._leader.lose()
            case "hub":
                self._leader.is_doomed = True
            case "line" | "uplink":
                ends = self._random.sample([*self._sites], 2) if kind == "line" else [site.name, LEADER]
                self._leader.cut(frozenset(ends), self._random.uniform(1, 25))
            case "all":
                self._leader.kill()
                for one in self._sites.values():
                    self._agents.kill(one)
            case _ if not site.up:
                return
            case "site" | "disk":
                self._agents.kill(site)
                if kind == "disk":
                    site.disk = Disk(self._time.hex())
            case "bits" if not any(one.says_wrong_bits or one.has_wrong_bits for one in self._sites.values()):
                site.says_wrong_bits = True
            case "pause":
                site.pause(self._random.uniform(1, 20))
            case "ranks" if site.ranks is not None:
                self._ranks.end(site, "killed")
            case "agent":
                self._agents.forget_leader(site)
            case "leave" if site.ranks and sum(not one.leaving for one in self._sites.values()) > 2:
                site.leaving = True
                self._leader.say(site, Leave())
            case _:
                return
        self._faults[kind] += 1
