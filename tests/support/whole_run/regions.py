"""The regions of a simulated run, and what crosses from one to another."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence

from geocomm.elastic.journal.entries import AnyRound, Entry, Ready, SummedRound
from geocomm.elastic.journal.messages import Offer, Summed
from geocomm.group.planning.regions import Regions
from support.whole_run.anchors import FRAGMENTS

_FIRST_ROUNDS = 2 * FRAGMENTS
"""After the last site is ready: those may have begun before."""


class SimulatedRegions:
    """Two, of sites that are drawn; of no sites there are none. What is near takes no time."""

    def __init__(self, seed: int, names: Sequence[str] = (), *, is_healthy: bool = False) -> None:
        """is_healthy: nothing befalls the run."""
        self.groups: tuple[tuple[str, ...], ...] = ()
        self.is_healthy = is_healthy
        if len(names) > 1:
            chance = random.Random(f"regions {seed}")
            mixed, size = chance.sample(names, len(names)), chance.randint(1, len(names) - 1)
            self.groups = tuple(sorted(mixed[:size])), tuple(sorted(mixed[size:]))
        self._regions = Regions(names, self.groups)
        self._crossed = Counter[tuple[str, tuple[str, ...]]]()
        """By frame and region: how often the one was sent to the other."""
        self._in_round = defaultdict[tuple[int, int, str, str], set[str]](set)
        """By fragment, version, and the first sites of two regions: frames that ranks sent from one to the other."""

    def are_near(self, one: str, other: str) -> bool:
        """Whether two sites share a region."""
        return other in self._regions.of(one)

    def has_several(self, name: str) -> bool:
        """Whether a site may be a head."""
        return len(self._regions.of(name)) > 1

    def mailed(self, made: Offer | Summed, here: str, there: str) -> None:
        """A frame goes from one rank to another."""
        self.sent(made.frame, here, there)
        ends = self._regions.of(here)[0], self._regions.of(there)[0]
        self._in_round[made.fragment, made.version, *ends].add(made.frame)

    def sent(self, frame: str, here: str, there: str) -> None:
        """A frame goes from one site to another."""
        if not self.are_near(here, there):
            self._crossed[frame, self._regions.of(there)] += 1

    def broken(self, chain: Sequence[Entry]) -> str:
        """Whether more than one copy of a frame went to a region in a healthy run, or more than one frame to the
        aggregator's; empty: none did."""
        if not self.is_healthy:
            return ""
        ready = max(entry.index for entry in chain if isinstance(entry, Ready))
        rounds = [entry for entry in chain if isinstance(entry, AnyRound) and entry.index > ready]
        for entry in rounds[_FIRST_ROUNDS:]:
            for one in entry.frames:
                for region in self.groups:
                    crossed = self._crossed[one.frame, region]
                    if one.site not in region and crossed != 1:
                        return f"{crossed} copies of the frame of {one.site} in entry {entry.index} went to {region}"
            if isinstance(entry, SummedRound):
                for region in self.groups:
                    ends = region[0], self._regions.of(entry.sum.site)[0]
                    frames = self._in_round[entry.fragment, entry.version, *ends]
                    if ends[0] != ends[1] and len(frames) > 1:
                        return f"{len(frames)} frames of {region} went to {entry.sum.site} in entry {entry.index}"
        return ""
