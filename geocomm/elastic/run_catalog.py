"""The run's data set as its leader reads it from the catalog, and which shards of it a site reads next."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from geocomm.data.catalog import Catalog
from geocomm.data.deals import DEALS_OF_A_PASS, Dealer, copies
from geocomm.data.read_version import ReadVersion, sequences_of
from geocomm.journal.dealt_shards import DealtShards
from geocomm.journal.run_state import RunState

_TOO_FEW = 2
"""A person hears of a label of which all was dealt so many times less often than other data."""


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
    found = {number: before.get(number) or ReadVersion.read(catalog, number) for number in wanted}
    for number, sha256 in versions.items():
        found[number].require(sha256)
    return CatalogData(found, sequence_length, held_out_every)


class CatalogData:
    """`RunData` of these versions, the newest one and those that deals are of."""

    def __init__(self, versions: Mapping[int, ReadVersion], sequence_length: int, held_out_every: int) -> None:
        self.versions = versions
        self._newest = versions[max(versions)]
        self._rules = self._newest.version.rules
        self._sequences = sequences_of(self._newest.shards, sequence_length, held_out_every)
        self._rows = np.flatnonzero(self._sequences)
        """Shards of less than a sequence are never dealt."""
        self._shards = [self._newest.shards[row] for row in self._rows]
        self._rows_of = copies(self._shards)
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
        most = max(1, len(self._shards) // (DEALS_OF_A_PASS * len(speeds)))
        rows = [int(self._rows[row]) for row in found[:most]]
        if not rows:
            return None
        return self._newest.text(rows), int(self._sequences[rows].sum())

    def may_read(self, state: RunState, site: str, deal: DealtShards) -> bool:
        """See `RunData`."""
        labels = self._newest.labels_of(self.versions[state.data[deal.data].number].dealt(deal.shards))
        return labels is not None and self._rules.may_read(site, labels)

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
                    self._dealt[self._rows_of.get(shard.sha256, [])] += 1
        self._counted = max(self._counted, state.head.index)
