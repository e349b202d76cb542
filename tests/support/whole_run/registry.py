"""What only the checks of a simulated run know."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from geocomm.core.records import Hash
from geocomm.elastic.journal.entries import AnyRound, Entry, Skip, TermBegun
from support.whole_run.data import Life, Sequence
from support.whole_run.regions import SimulatedRegions

if TYPE_CHECKING:
    from support.whole_run.ranks import Rank


class Registry:
    """Of frames, by the beginning of their hash; of sites, of entries."""

    def __init__(self, regions: SimulatedRegions) -> None:
        self.regions = regions
        self.steps: dict[str, frozenset[int]] = {}
        """In a frame."""
        self.read: dict[str, tuple[Life, frozenset[Sequence]]] = {}
        """By which ranks the steps in a frame were made, and what they have read."""
        self.entries: dict[Hash, Entry] = {}
        """All that were ever in a journal."""
        self.held: dict[str, set[str]] = {}
        """The run folders, by their own names, on whose disk a frame has been."""
        self.vouched: dict[Hash, dict[str, frozenset[str]]] = {}
        """Of rounds: those folders, by frame, when the first journal had the entry."""
        self.states = defaultdict[tuple[str, int, int], set[str]](set)
        """By site, fragment and version: the digests of the states that its ranks have written. Rounds before a version
        may become void, and then it is another state."""
        self.broken: list[str] = []
        self.numbers = 0
        self.repairs = 0
        self.has_damage = False
        """Disks have changed frames or states."""
        self.terms: Counter[str] = Counter()
        """By site: the highest that its agent has promised to follow."""
        self.begun: dict[int, TermBegun] = {}
        """By term."""
        self.is_cut = False
        """Two sides do not hear of each other, and may begin the same term with --force."""
        self.counted_at: dict[str, float] = {}
        """By site: when a rank was last told of a round that lists a frame of it."""
        self.ranks: dict[str, Rank] = {}
        """By the name of the process."""

    def follows(self, site: str, term: int) -> None:
        """The agent of a site takes a leader of this term for its own."""
        if term < self.terms[site]:
            self.broken.append(f"{site} follows a leader of term {term}, and has followed one of {self.terms[site]}")
        self.terms[site] = term

    def appended(self, entries: Iterable[Entry]) -> None:
        """These come into a journal."""
        for entry in entries:
            if isinstance(entry, AnyRound) and entry.hash not in self.entries:
                frames = [one.frame[:16] for one in entry.frames]
                self.vouched[entry.hash] = {frame: frozenset(self.held.get(frame, ())) for frame in frames}
            is_second = isinstance(entry, TermBegun) and self.begun.setdefault(entry.term, entry).hash != entry.hash
            if is_second and not self.is_cut and entry.hash not in self.entries:
                self.broken.append(f"another one than {self.begun[entry.term].site} begins term {entry.term}, too")
            self.entries[entry.hash] = entry

    def chain(self, head: Hash) -> list[Entry]:
        """The journal that ends with the entry of this hash, from the run's first entry on."""
        entries = list[Entry]()
        while (entry := self.entries.get(head)) is not None:
            entries.append(entry)
            head = entry.prev
        return entries[::-1]


def frames_of(entries: list[Entry]) -> list[tuple[AnyRound, bool]]:
    """The rounds of a journal, and whether each counts."""
    void = {(one.fragment, one.version) for one in entries if isinstance(one, Skip)}
    return [(one, (one.fragment, one.version) not in void) for one in entries if isinstance(one, AnyRound)]
