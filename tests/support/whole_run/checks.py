"""What must hold in a simulated run once its faults are over."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.snapshots import Manifest
from geocomm.elastic.journal.entries import AnyRound, Entry, Genesis, Kept, Snapshot
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.messages import Wanted
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.wire.greeting import Purpose
from support.whole_run.agents import store_of_process
from support.whole_run.anchors import FRAGMENTS
from support.whole_run.data import DataChecks
from support.whole_run.faults import STRANGE
from support.whole_run.registry import frames_of

if TYPE_CHECKING:
    from support.whole_run.sites import Site
    from support.whole_run.whole_run import WholeRun

WORD_S = 30.0
"""A word is due when something has kept a site waiting for 10 s; a dial in vain takes 15 s, and there may be two."""
_IDLE_S = 45.0


@dataclass(frozen=True)
class Place:
    """Where a run was."""

    index: int
    versions: list[int]


class Checks:
    """They end the history where something does not hold."""

    def __init__(self, run: WholeRun) -> None:
        self._run = run

    def lacks(self, first: Place) -> str:
        """What is missing before all is well again; empty: nothing."""
        state, entries = self._run.newest()
        if not state.versions:
            return "no run has begun"
        for fragment, version in enumerate(state.versions):
            if version < first.versions[fragment] + 3:
                return f"fragment {fragment} has had {version - first.versions[fragment]} rounds"
        counted = {
            one.site
            for entry in entries
            if isinstance(entry, AnyRound) and entry.index > first.index
            for one in entry.members
        }
        for site in self._run.sites.values():
            known = state.sites.get(site.name)
            if site.lost:
                if state.data and state.left(site.name):
                    return f"{site.name} is gone, and what was dealt to it is not taken back"
                continue
            if site is self._run.skipped:
                if known is not None and known.standing is Standing.READY:
                    return f"{site.name} is ready, and has not said a word but Hello"
                continue
            if known is None or known.standing is not Standing.READY:
                return f"{site.name} is {known.standing if known else 'unknown'}"
            if site.name not in counted:
                return f"{site.name} has not counted"
            own = site.state()[0]
            if own.head.index < state.head.index - 3 or own.term != state.term:
                return f"the journal of {site.name} ends at {own.head.index}, and that of the run at {state.head.index}"
            rank = site.rank
            if rank is None or rank.member is None:
                return f"{site.name} has no rank that trains"
            behind = [p for p, v in rank.member.versions.items() if v < state.versions[p] - 1]
            if behind:
                return f"{site.name} is behind in fragment {behind[0]}"
        copies = sum(not site.lost and site is not self._run.skipped for site in self._run.sites.values())
        if copies >= self._run.terms.copies and not any(index > first.index for index in state.kept):
            return "no snapshot is kept since"
        return ""

    def lacks_copies(self, site: Site, last: Site) -> str:
        """What ranks that begin at a site lack of what its journal lists, though the last site has it; empty:
        nothing."""
        store, other = store_of_process(str(site.run_dir)), store_of_process(str(last.run_dir))
        with contextlib.closing(SqliteJournal(RunDir(site.run_dir).journal, read_only=True)) as journal:
            state = journal.state()
            for fragment, version in enumerate(state.versions):
                base = store.latest_state(fragment, version) or 0
                if base < (journal.first_round(fragment) or 0):
                    return f"a state of fragment {fragment}"
                for entry in journal.rounds(fragment, base):
                    for listed in entry.frames if (fragment, entry.version) not in state.skipped else ():
                        named = Wanted.listed(entry, listed).named
                        if other.has_frame(**named) and not store.has_frame(**named):
                            return f"the frame of {listed.site} (fragment {fragment}, {entry.version})"
        return ""

    def words(self, began: float) -> None:
        """Whatever keeps a site from counting is said."""
        for name, site in self._run.sites.items():
            since, now = max(began, site.up_since, self._run.registry.counted_at.get(name, 0.0)), self._run.loop.time()
            said = max(since, self._run.words.get(name, 0.0))
            if site.machine.up and now - said > WORD_S + 2 * (said - since):  # as `Patience` goes on
                raise self._run.broke(f"{name} has not counted for {now - since:.0f} s, and nobody says why")

    def bounds(self) -> None:
        """Nothing is kept that nobody wants."""
        for site in self._run.sites.values():
            strange = [path.name for path in RunDir(site.run_dir).fragments.glob(f"*@{STRANGE // 1000}*")]
            if strange:
                raise self._run.broke(f"{site.name} has made a folder for {strange[0]}, a frame that was never made")
            for stream in () if site.agent is None else site.agent.streams:
                idle = stream.purpose is Purpose.FETCH and not stream.asks
                if idle and stream.used_at < self._run.loop.time() - _IDLE_S:
                    raise self._run.broke(f"{site.name} keeps a connection that it has not used for {_IDLE_S:.0f} s")

    def chain(self) -> None:
        state, entries = self._run.newest()
        self._run.history.entries = state.head.index + 1
        if self._run.registry.broken:
            raise self._run.broke(self._run.registry.broken[0])
        if self._run.registry.repairs and not self._run.registry.has_damage:
            raise self._run.broke("a site was told to repair")
        chain = self._run.registry.chain(state.head.hash)
        if why := DataChecks(self._run.data, self._run.registry.read).broken(chain):
            raise self._run.broke(why)
        self._replay(chain, state)
        self._snapshots(chain)
        if why := self._run.registry.regions.broken(chain):
            raise self._run.broke(why)
        if lost := self._run.person.to_outlive.items() - {(entry.index, entry.hash) for entry in chain}:
            raise self._run.broke(f"the run has lost entry {min(lost)[0]}, which most sites had")
        hashes = {entry.index: entry.hash for entry in entries}
        for site in self._run.sites.values():
            if not site.lost and site is not self._run.skipped:  # that one may have led, and hears of no other leader
                for entry in site.state()[1]:
                    if hashes.get(entry.index, entry.hash) != entry.hash:
                        raise self._run.broke(f"entry {entry.index} of {site.name} is another one")
        counted: dict[int, set[int]] = {fragment: set() for fragment in range(FRAGMENTS)}
        for one, counts in frames_of(entries):
            for listed in one.members if counts else ():
                steps = self._run.registry.steps[listed.frame[:16]]
                if steps & counted[one.fragment]:
                    raise self._run.broke(f"entry {one.index} counts steps of {listed.site} again")
                counted[one.fragment] |= steps

    def _snapshots(self, chain: list[Entry]) -> None:
        """What is kept has the bits that ranks have written, whatever disks do."""
        run, asked = "", dict[int, Snapshot]()
        for entry in chain:
            match entry:
                case Genesis():
                    run = entry.run
                case Snapshot():
                    asked[entry.index] = entry
                case Kept(snapshot=index, sites=sites):
                    of = asked[index]
                    states = [(sites[0], fragment, version) for fragment, version in enumerate(of.versions)]
                    right = {
                        Manifest(run=run, index=index, entry=of.hash, versions=of.versions, digests=digests).digest
                        for digests in itertools.product(*(self._run.registry.states[one] for one in states))
                    }
                    if entry.digest not in right:
                        raise self._run.broke(f"entry {entry.index} keeps a snapshot that disks have changed")
                case _:
                    pass

    def _replay(self, chain: list[Entry], own: RunState) -> None:
        """A listed frame was on the disks of two live sites, or of one where one was live; and a journal that has let
        go of entries says the same as all of them."""
        state = RunState()
        for entry in chain:
            if isinstance(entry, AnyRound):
                live = {state.sites[name].store for name in state.live}
                for frame, stores in self._run.registry.vouched[entry.hash].items():
                    if len(live & stores) < min(2, len(live)):
                        at = f"{len(live & stores)} of {len(live)} live sites"
                        raise self._run.broke(f"entry {entry.index} lists frame {frame}, which {at} had")
            state.apply(entry)
        if state.text != own.text:
            raise self._run.broke("a journal says another thing than the entries from the first one on")
