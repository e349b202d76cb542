"""The journal of a simulated run, and what is so after it: what the checks compare sites with."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

from geocomm.core.records import Hash
from geocomm.elastic.journal.entries import AnyRound, Digest, Entry, Skip
from geocomm.elastic.journal.member import Frame
from support.journal.simulated_data import Sequence

FRAGMENTS = 2


@dataclass(frozen=True)
class State:
    """A fragment at a version."""

    version: int
    anchor: int = 0
    chain: str = ""
    """Stands for the momentum: depends on every frame, and on their order."""

    @property
    def digest(self) -> Digest:
        """That a site says of it."""
        return hashlib.md5(f"{self.version} {self.anchor} {self.chain}".encode()).hexdigest()

    def after(self, coded: list[int]) -> State:
        """The next one, by a round of these frames; none: the round is void."""
        chain = hashlib.md5(f"{self.chain} {coded}".encode()).hexdigest() if coded else self.chain
        return State(self.version + 1, self.anchor + sum(coded), chain)


@dataclass(frozen=True)
class Content:
    """What is in a frame, and what only the checks know of it."""

    frame: Frame
    coded: int
    base: Digest
    steps: frozenset[int]
    read: frozenset[Sequence]
    """That these steps have read."""


class Contents:
    """Of all frames, by the beginning of their hash; and of the averages that aggregators have made."""

    def __init__(self) -> None:
        self._frames: dict[str, Content] = {}
        self.sums: dict[Hash, list[int]] = {}
        """What is in the members' frames, in their order."""

    def __getitem__(self, frame: str) -> Content:
        return self._frames[frame[:16]]

    def __setitem__(self, frame: Hash, content: Content) -> None:
        self._frames[frame[:16]] = content


class Chain:
    """A journal, and what is so after it: what the checks compare with."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self.entries: list[Entry] = []
        self.hashes: list[Hash] = []
        self.counted: list[set[int]] = [set() for _ in range(FRAGMENTS)]
        """By fragment: the steps that count."""
        self.read: list[Counter[Sequence]] = [Counter() for _ in range(FRAGMENTS)]
        """By fragment: how often each counts."""
        self.rounds: list[list[AnyRound]] = [[] for _ in range(FRAGMENTS)]
        self.truth: list[list[State]] = [[State(0)] for _ in range(FRAGMENTS)]
        self.digests: dict[tuple[int, int], list[tuple[int, Digest]]] = {}
        """By fragment and version: from which entry on it has which digest."""
        for fragment in range(FRAGMENTS):
            self.digests[fragment, 0] = [(0, State(0).digest)]

    def until(self, length: int) -> Chain:
        """Another one, with the first entries of this one."""
        chain = Chain(self._contents)
        for entry in self.entries[:length]:
            chain.append(entry)
        return chain

    def append(self, entry: Entry) -> None:
        """Another entry, after which other things are so."""
        self.entries.append(entry)
        self.hashes.append(entry.hash)
        if isinstance(entry, AnyRound):
            self._take_round(entry)
        if isinstance(entry, Skip):
            self._void(entry)

    def _take_round(self, entry: AnyRound) -> None:
        p, v = entry.fragment, entry.version
        self.counted[p] = self.counted[p].union(*(self._contents[one.frame].steps for one in entry.members))
        for one in entry.members:
            self.read[p].update(self._contents[one.frame].read)
        self.rounds[p].append(entry)
        self.truth[p].append(self.truth[p][v].after([self._contents[one.frame].coded for one in entry.members]))
        self.digests[p, v + 1] = [(entry.index, self.truth[p][v + 1].digest)]

    def _void(self, entry: Skip) -> None:
        """From that version on, the fragment has had other states."""
        p = entry.fragment
        for listed in self.rounds[p][entry.version].members:
            self.counted[p] -= self._contents[listed.frame].steps
            self.read[p].subtract(self._contents[listed.frame].read)
        skips = {(one.fragment, one.version) for one in self.entries if isinstance(one, Skip)}
        for version in range(entry.version, len(self.rounds[p])):
            members = self.rounds[p][version].members
            coded = [] if (p, version) in skips else [self._contents[one.frame].coded for one in members]
            self.truth[p][version + 1] = self.truth[p][version].after(coded)
            self.digests[p, version + 1].append((entry.index, self.truth[p][version + 1].digest))
