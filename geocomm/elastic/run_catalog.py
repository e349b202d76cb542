"""The run's data set as its leader reads it from the catalog, and which shards of it a site reads next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from geocomm.core.bad_input import BadInput
from geocomm.data.catalog import Catalog, Shard, Version
from geocomm.data.deals import Dealer, copies
from geocomm.journal.dealt_shards import shards_of, text_of
from geocomm.journal.run_state import RunState
from geocomm.journal.site_line import DealtShards

_TOO_FEW = 2
"""A person hears of a label of which all was dealt so many times less often than other data."""
_DEALS_OF_A_PASS = 4
"""Of a site, at least, where a data set is so small that deals of eight shards are fewer."""


@dataclass(frozen=True)
class ReadVersion:
    """A version, with its shards."""

    version: Version
    sha256: str
    """Of its file."""
    shards: tuple[Shard, ...]

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """By shard: its part, and its number there."""
        return [(part, number) for part, one in enumerate(self.version.parts) for number in range(one.shards)]

    def dealt(self, text: str) -> list[Shard]:
        """The shards of a deal."""
        firsts = np.cumsum([0, *(part.shards for part in self.version.parts)])
        return [self.shards[int(firsts[part]) + number] for part, number in shards_of(text)]


def read_data(
    name: str, versions: Mapping[int, str], sequence_length: int, held_out_every: int, known: CatalogData | None
) -> CatalogData:
    """The newest version of a catalog, and those that deals are of: SHA-256 by number. `known`, where that is the same;
    else it is not read again. It may take seconds. Raises BadInput, OSError."""
    catalog = Catalog(name)
    before: Mapping[int, ReadVersion] = {} if known is None else known.versions
    numbers = catalog.numbers()
    wanted = {*versions, *numbers[-1:]} or {1}
    if known is not None and wanted <= before.keys() and max(wanted) == known.number:
        return known
    found = {number: before.get(number) or _read(catalog, number) for number in wanted}
    for number, sha256 in versions.items():
        if found[number].sha256 != sha256:
            raise BadInput(f"version {number} of {name} is another one than the run has read: restore its file")
    return CatalogData(found, sequence_length, held_out_every)


def _read(catalog: Catalog, number: int) -> ReadVersion:
    version = catalog.read(number)
    return ReadVersion(version, catalog.digest(number), tuple(catalog.shards(version)))


class CatalogData:
    """`RunData` of these versions, the newest one and those that deals are of."""

    def __init__(self, versions: Mapping[int, ReadVersion], sequence_length: int, held_out_every: int) -> None:
        self.versions = versions
        self._newest = versions[max(versions)]
        self._rules = self._newest.version.rules
        counts = np.array([shard.tokens for shard in self._newest.shards], np.int64) // sequence_length
        self._sequences = counts - (counts // held_out_every if held_out_every else 0)
        self._rows = np.flatnonzero(self._sequences)
        """Shards of less than a sequence are never dealt."""
        self._shards = [self._newest.shards[row] for row in self._rows]
        self._rows_of = copies(self._shards)
        self._labels: dict[str, set[str]] = {}
        """By SHA-256, those of all the places that it lies in."""
        for shard in self._newest.shards:
            self._labels.setdefault(shard.sha256, set()).update(shard.labels)
        self._classes = sorted({shard.labels for shard in self._shards})
        """Labels that shards have together."""
        class_of = {labels: number for number, labels in enumerate(self._classes)}
        self._class = np.array([class_of[shard.labels] for shard in self._shards], np.int64)
        """By row."""
        self._dealt = np.zeros(len(self._shards), np.int32)
        self._counted = -1
        """The index of the last deal that is in `dealt`."""
        self._dealer: Dealer | None = None
        self._readable: dict[str, int] = {}
        """By site, in a pass."""

    @property
    def number(self) -> int:
        """See `RunData`."""
        return self._newest.version.number

    @property
    def sha256(self) -> str:
        """See `RunData`."""
        return self._newest.sha256

    def next_deal(self, state: RunState, site: str, speeds: Mapping[str, float]) -> tuple[str, int] | None:
        """See `RunData`."""
        if state.genesis is None:
            return None
        if self._dealer is None:
            self._dealer = Dealer(self._rules, self._shards, int(state.genesis.run[:16], 16))
        self._count(state)
        found = self._dealer.next_shards(site, state.head.index + 1, speeds, self._dealt)
        most = max(1, len(self._shards) // (_DEALS_OF_A_PASS * len(speeds)))
        rows = [int(self._rows[row]) for row in found[:most]]
        if not rows:
            return None
        return text_of(self._newest.places[row] for row in rows), int(self._sequences[rows].sum())

    def may_read(self, state: RunState, site: str, deal: DealtShards) -> bool:
        """See `RunData`."""
        shards = self.versions[state.data[deal.data].number].dealt(deal.shards)
        labels = [self._labels.get(shard.sha256) for shard in shards]
        return all(one is not None and self._rules.may_read(site, one) for one in labels)

    def readable(self, site: str) -> int:
        """See `RunData`."""
        if site not in self._readable:
            readable = np.array([self._rules.may_read(site, labels) for labels in self._classes], bool)
            self._readable[site] = int(self._sequences[self._rows][readable[self._class]].sum())
        return self._readable[site]

    def undealt(self, state: RunState) -> int:
        """See `RunData`."""
        self._count(state)
        firsts = [rows[0] for rows in self._rows_of.values()]
        dealt = self._dealt[firsts]
        return int((self._sequences[self._rows][firsts] * (max(1, dealt.max(initial=0)) - dealt)).sum())

    def waits(self, state: RunState, sites: Collection[str]) -> list[str]:
        """See `RunData`."""
        self._count(state)
        most, found = self._dealt.max(initial=0), list[str]()
        for number, labels in enumerate(self._classes):
            if not labels:  # whoever is there reads it next
                continue
            name, dealt = " with ".join(labels), self._dealt[self._class == number]
            readers = [site for site in self._rules.sites if self._rules.may_read(site, labels)]
            if set(readers).isdisjoint(sites):
                if dealt.min() < max(1, most):
                    found.append(f"label {name} waits for {' or '.join(readers)}, and nobody else may read it")
            elif most - dealt.max() >= _TOO_FEW:  # not only what is new
                found.append(f"label {name} is read less often than other data")
        return found

    def _count(self, state: RunState) -> None:
        """How often each shard was dealt, whatever the version: by what is in it."""
        for index, deal in state.deals.items():
            if index > self._counted:
                for shard in self.versions[state.data[deal.data].number].dealt(deal.shards):
                    for row in self._rows_of.get(shard.sha256, []):
                        self._dealt[row] += 1
        self._counted = max(self._counted, state.head.index)
