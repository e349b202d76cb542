"""What must always hold in a simulated run. The numbers are those of the rules in `simulated_run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from geocomm.core.records import Hash
from geocomm.elastic.journal.entries import AnyRound
from geocomm.elastic.journal.member import Frame
from geocomm.elastic.journal.run_state import RunState, SiteRecord, Standing
from support.journal.simulated_chain import Chain, Contents
from support.journal.simulated_data import Sequence, sequences_of
from support.journal.simulated_site import Part, Site


class BrokenRunError(AssertionError):
    """Something that must always hold does not."""


class RunHasEnded(Exception):
    """Nobody is left who takes part: what may be asked of a run that goes on is not asked of this one."""


class Checks:
    """They raise BrokenRunError."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._was_on_disk: set[tuple[str, Frame]] = set()
        """(store, frame)."""
        self.stores: dict[str, str] = {}
        """By site: its disk, as its last Hello said."""
        self.wrong_bits_said = 0
        self.repaired_in_vain = 0
        """Times that a site with right bits had to start again, or was stopped, for the wrong ones of another, though
        a third was there."""
        self.read_again = 0
        """How much may count twice, of all fragments."""
        self.most_again = 0
        """At one death."""
        self._lines: dict[str, set[Sequence]] = {}
        """By site, after the last entry."""
        self._for_good: dict[str, set[Sequence]] = {}
        """By site: what is in no line any more, since it counts. Ranks that began before the last frame of those before
        them counted read it again."""
        self.read: Counter[Sequence] = Counter()
        """How often ranks have read each sequence, whether it counts or not."""

    def repairs(self, site: Site) -> None:
        """A site is told to repair, or is stopped for its bits."""
        if not self.wrong_bits_said:
            raise BrokenRunError(f"4: {site.name} is to repair a fragment, or to stop for one")
        self.repaired_in_vain += not site.has_wrong_bits and len(site.state.live) > 2

    def written(self, store: str, frame: Frame) -> None:
        """A frame lies on a disk."""
        self._was_on_disk.add((store, frame))

    def check_round(self, entry: AnyRound, chain: Chain, sites: Mapping[str, SiteRecord]) -> None:
        """A round is to be appended to the leader's journal. sites: as they stand in it."""
        p, v = entry.fragment, entry.version
        if v != len(chain.rounds[p]):
            raise BrokenRunError(f"2: fragment {p} has a second round {v}")
        digest = chain.truth[p][v].digest
        live = [site for site in sites.values() if site.standing is Standing.READY]
        if entry.base not in (None, digest) and not (
            self.wrong_bits_said and len(live) == 1
        ):  # who is alone is believed
            raise BrokenRunError(f"4: entry {entry.index} has another base than its journal gives")
        for one in entry.frames:
            frame = Frame(p, v, one.site, one.frame)
            held = sum((self.stores[site.name], frame) in self._was_on_disk for site in live)
            if held < min(2, len(live)):
                raise BrokenRunError(f"3: entry {entry.index} needs a frame that {held} of {len(live)} live sites have")
        counted = chain.counted[p]
        for listed in entry.members:
            content = self._contents[listed.frame]
            if content.frame[:3] != (p, v, listed.site) or content.base != digest:
                raise BrokenRunError(f"5: entry {entry.index} lists a delta to another state")
            if content.steps & counted:
                raise BrokenRunError(f"12: entry {entry.index} counts steps of {listed.site} again")
            counted = counted | content.steps
            if not content.read <= {*sequences_of(sites[listed.site].line)} | self._for_good.get(listed.site, set()):
                raise BrokenRunError(f"14: entry {entry.index} counts what was not dealt to {listed.site}")

    def check_read(self, chain: Chain, state: RunState) -> None:
        """An entry was appended. state: after it."""
        lines = {name: sequences_of(site.line) for name, site in state.sites.items()}
        for name, line in lines.items():
            for fragment, read in enumerate(chain.read):
                missed = [one for one in line[: state.position(name) - state.line_begins(name)] if read[one] < 1]
                if missed:
                    raise BrokenRunError(
                        f"13: {name} would read on from {state.position(name)}, but {missed[0]} does not count in "
                        f"fragment {fragment}"
                    )
        found = Counter(one for line in [*lines.values(), sequences_of(state.rests)] for one in line)
        whole = {(index, i) for index, deal in state.deals.items() for i in range(deal.sequences)}
        forgotten = whole - found.keys()
        for name, line in self._lines.items():
            self._for_good.setdefault(name, set()).update(line - found.keys())
        self._lines = {name: {*line} for name, line in lines.items()}
        if found.keys() - whole or max(found.values(), default=1) > 1:
            raise BrokenRunError(f"14: entry {state.head.index}: what was dealt is not in one place each")
        if any(read[one] < 1 for read in chain.read for one in forgotten):
            raise BrokenRunError(f"14: entry {state.head.index}: what is in no place any more does not count")
        if (repeated := repeats(chain)) > self.read_again:
            raise BrokenRunError(f"16: {repeated} count twice, and {self.read_again} could")

    def reads_again(self, chain: Chain, sequences: Iterable[Sequence]) -> None:
        """A site begins to read these, or others do: what counts of them in some fragments may count there again."""
        again = sum(max(0, read[one]) for one in sequences for read in chain.read)
        self.read_again += again
        self.most_again = max(self.most_again, again)

    def counts_late(self, frame: Hash) -> None:
        """Ranks that have ended made it: those that came since may have read the same."""
        self.read_again += len(self._contents[frame].read)

    def check_part(self, site: Site, fragment: int, part: Part) -> None:
        """A rank of the site has settled a round."""
        head = site.state.head.index
        known = [digest for index, digest in site.chain.digests[fragment, part.state.version] if index <= head]
        if not known or part.state.digest != known[-1]:
            raise BrokenRunError(f"4: {site.name} has another fragment {fragment} than its journal gives")
        if part.local - part.state.anchor != sum(step.added for step in part.uncounted):
            raise BrokenRunError(
                f"6: {site.name} has other uncounted steps in fragment {fragment} than its weights say"
            )


def repeats(chain: Chain) -> int:
    """How much counts more often than once, of all fragments."""
    return sum(max(0, often - 1) for read in chain.read for often in read.values())
