"""The data set of a simulated run: a real catalog of small shards, some of which not all sites may read, and what must
hold of what sites read of it.

Each sequence that was dealt counts once for each fragment, but for what ranks read again that began anew: what did not
count for all fragments then, and a little more after a round that became void. Who is dealt a shard may read it, by the
version in force.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from geocomm.data import catalog
from geocomm.data.catalog import Label, Rules, Shard, Store, Version
from geocomm.data.deal_records import DealtSet, DealtShards, Piece, shards_of
from geocomm.elastic.journal.entries import AnyRound, Deal, Entry, Skip, TakenBack
from geocomm.elastic.journal.run_state import RunState

SET = DealtSet(set="simulated", sequence_length=8)
Sequence = tuple[int, int]
"""A deal, by the index of its entry, and a place in its order."""
_SHARDS = 24, 60
_SEQUENCES = 1, 9
"""Of a shard."""
_LABELLED = 0.3


@dataclass(frozen=True)
class Life:
    """Ranks of a site, from their start to their end."""

    site: str
    head: int
    """The entry after which they were told where the site is in its data."""


_Counted = dict[int, dict[Sequence, list[tuple[int, Life]]]]
"""By fragment and sequence: the entries that count it, and whose frames they list."""


class SimulatedSet:
    """Its catalog, to which a person adds versions."""

    def __init__(self, folder: Path, sites: Iterable[str], chance: random.Random) -> None:
        """folder: of the catalog. Half of the sites or so are in another region."""
        self._chance, self.is_away = chance, False
        self._catalog = catalog.Catalog(str(folder))
        self._sites = {site: chance.choice(("east", "west")) for site in sites}
        readers = [*sorted(set(self._sites.values())), *sorted(self._sites)]
        self._labels = {f"for {who}".replace(" ", "-"): Label(readers=(who,)) for who in readers}
        self._shards = [self._shard(number) for number in range(chance.randint(*_SHARDS))]
        self._versions: list[Version] = []
        self._of_versions: list[list[Shard]] = []
        self.publish()

    @property
    def number(self) -> int:
        """Of the newest version."""
        return len(self._versions)

    def change(self) -> None:
        """The next version has more shards, and some of before with other labels, or not any more."""
        self._shards = [
            shard if self._chance.random() < 0.8 else shard._replace(labels=self._drawn_labels())
            for shard in self._shards
            if self._chance.random() < 0.95
        ]
        self._shards += [self._shard(self.number * 1000 + number) for number in range(self._chance.randint(1, 9))]
        self.publish()

    def publish(self) -> None:
        """The shards as they are now are a version."""
        rules = Rules(sites=self._sites, stores={"disk": Store(url="/simulated")}, labels=self._labels)
        version = Version(number=self.number + 1, tokenizer="t", vocabulary=1 << 20, dtype="<u4", rules=rules, parts=())
        self._versions.append(self._catalog.add(version, self._shards))
        self._of_versions.append([*self._shards])

    def put(self) -> Any:
        """In the place of the catalog of any URL."""
        really, known = catalog.Catalog, self

        def opened(url: str) -> catalog.Catalog:
            if known.is_away:
                raise OSError(f"{url} does not answer")
            return really(known._catalog.url)

        return mock.patch.object(catalog, "Catalog", opened)

    def shards(self, number: int, text: str) -> list[Shard]:
        """Those of a deal of this version."""
        return [self._of_versions[number - 1][place] for part, place in shards_of(text)]

    def may_read(self, site: str, number: int, shards: Iterable[Shard]) -> bool:
        """Whether this version has the shards, and lets the site read them."""
        labels = {shard.sha256: shard.labels for shard in self._of_versions[number - 1]}
        rules = self._versions[number - 1].rules
        return all(one.sha256 in labels and rules.may_read(site, labels[one.sha256]) for one in shards)

    def _shard(self, number: int) -> Shard:
        tokens = SET.sequence_length * self._chance.randint(*_SEQUENCES)
        sha256 = hashlib.sha256(f"{number}".encode()).hexdigest()
        return Shard(sha256, "disk", f"{number}.tokens", 0, tokens, self._drawn_labels())

    def _drawn_labels(self) -> tuple[str, ...]:
        return (self._chance.choice([*self._labels]),) if self._chance.random() < _LABELLED else ()


class DataChecks:
    """What a run's journal says of its data, from the first entry on."""

    def __init__(self, known: SimulatedSet, read: dict[str, tuple[Life, frozenset[Sequence]]]) -> None:
        """read: by the beginning of a frame's hash, what the steps in it have read, and which ranks made them."""
        self._known, self._read = known, read

    def broken(self, entries: list[Entry]) -> str:
        """What does not hold; empty: nothing."""
        state, lines = RunState(), dict[str, list[Sequence]]()
        dealt_at = dict[tuple[str, Sequence], int]()
        counted: _Counted = {}
        void = {(one.fragment, one.version) for one in entries if isinstance(one, Skip)}
        for entry in entries:
            if isinstance(entry, TakenBack):
                del lines[entry.site][state.position(entry.site) :]
            positions = {site: state.position(site) for site in state.sites}
            state.apply(entry)
            if isinstance(entry, Deal):
                if not self._may_read(state, entry.site, state.deals[entry.rest or entry.index]):
                    return f"entry {entry.index} deals {entry.site} what the data's version denies it"
                piece = state.sites[entry.site].line[-1]
                lines.setdefault(entry.site, []).extend(_sequences([piece]))
                dealt_at |= {(entry.site, one): entry.index for one in _sequences([piece])}
            if isinstance(entry, AnyRound) and (entry.fragment, entry.version) not in void:
                of_fragment = counted.setdefault(entry.fragment, {})
                for listed in entry.members:
                    life, read = self._read[listed.frame[:16]]
                    # Ranks that began anew read some again that counts in every fragment.
                    new = read - set(lines.get(listed.site, ())[: positions[listed.site]])
                    deals = [state.deals[index] for index in {index for index, _ in new} & state.deals.keys()]
                    if not all(self._may_read(state, listed.site, deal) for deal in deals):
                        return f"entry {entry.index} counts what the data's version denies {listed.site}"
                    if strange := read - set(lines.get(listed.site, ())):
                        return f"entry {entry.index} counts what was not dealt to {listed.site}: {min(strange)}"
                    for one in read:
                        of_fragment.setdefault(one, []).append((entry.index, life))
        first_void = min((one.index for one in entries if isinstance(one, Skip)), default=len(entries))
        return self._lost(state, lines, counted) or _repeated(counted, dealt_at, len(state.versions), first_void)

    def _may_read(self, state: RunState, site: str, deal: DealtShards) -> bool:
        """Whether the version in force has all that was dealt, and lets the site read it."""
        assert state.data_in_force is not None
        shards = self._known.shards(state.data[deal.data].number, deal.shards)
        return self._known.may_read(site, state.data_in_force.number, shards)

    def _lost(self, state: RunState, lines: dict[str, list[Sequence]], counted: dict[int, dict[Sequence, Any]]) -> str:
        """What sites read on behind, and does not count; and what is in several places, or in none."""
        for site, line in lines.items():
            for fragment in range(len(state.versions)):
                missed = [one for one in line[: state.position(site)] if one not in counted.get(fragment, {})]
                if missed:
                    return f"{site} reads on from {state.position(site)}, and {missed[0]} does not count in {fragment}"
        places = Counter(one for line in [*lines.values(), _sequences(state.rests)] for one in line)
        whole = {(index, at) for index, deal in state.deals.items() for at in range(deal.sequences)}
        if max(places.values(), default=1) > 1 or whole - places.keys():
            return "what was dealt is not in one place each"
        return ""


def _repeated(counted: _Counted, dealt_at: dict[tuple[str, Sequence], int], fragments: int, first_void: int) -> str:
    """What counts again, though the ranks that read it knew that it counted for all fragments. first_void: the entry
    from which on a site's place in its data is known less exactly."""

    def counts_everywhere(one: Sequence, site: str, since: int, known: int) -> bool:
        """By this site, after the entry `since` that dealt it: what was counted of it before for some fragments, by
        another site or this one, until it was taken back, nobody tells it."""
        times = (counted.get(fragment, {}).get(one, ()) for fragment in range(fragments))
        return all(any(since < index <= known and by.site == site for index, by in found) for found in times)

    for fragment, of_fragment in counted.items():
        for one, times in of_fragment.items():
            for index, life in times if len(times) > 1 else ():
                dealt = dealt_at.get((life.site, one), -1)
                if life.head < first_void and counts_everywhere(one, life.site, dealt, life.head):
                    return f"entry {index} counts {one} of {life.site} again in fragment {fragment}"
    return ""


def _sequences(line: Iterable[Piece]) -> list[Sequence]:
    return [(one.deal, one.start + at) for one in line for at in range(one.sequences)]
