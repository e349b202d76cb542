"""A version of a data set whose shards are dealt, by an elastic run's leader or in a job of fixed sites: which of them
can be, and how often each was. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from geocomm.data.catalog import Shard
from geocomm.data.deals import SHARDS_OF_DEAL, Dealer, copies
from geocomm.data.read_version import ReadVersion, sequences_of


class DealtVersion:
    """Its shards of at least a sequence; others are never dealt."""

    def __init__(self, read: ReadVersion, sequence_length: int, held_out_every: int) -> None:
        """It takes a part of a second for many shards."""
        self.read, self.rules = read, read.version.rules
        sequences = sequences_of(read.shards, sequence_length, held_out_every)
        self._rows = np.flatnonzero(sequences)
        self.shards = [read.shards[row] for row in self._rows]
        self.sequences = sequences[self._rows]
        """By shard: that are trained on."""
        self.dealt = np.zeros(len(self.shards), np.int32)
        """By shard: how often."""
        self.labels = sorted({shard.labels for shard in self.shards})
        """That shards have together."""
        number_of = {labels: number for number, labels in enumerate(self.labels)}
        self.label_numbers = np.array([number_of[shard.labels] for shard in self.shards], np.int64)
        """By shard: the number of its labels."""
        self._copies = copies(self.shards)
        self.firsts = [numbers[0] for numbers in self._copies.values()]
        """The number of each shard; of one that lies in several places, that of the first copy."""
        self.dealer = Dealer(self.rules, self.shards)
        self._readable: dict[str, int] = {}

    def readable(self, site: str) -> int:
        """Sequences that a site may read, in a pass."""
        if site not in self._readable:
            may = np.array([self.rules.may_read(site, labels) for labels in self.labels], bool)
            self._readable[site] = int(self.sequences[may[self.label_numbers]].sum())
        return self._readable[site]

    def may_read(self, site: str, shards: Iterable[Shard]) -> bool:
        """Whether a site may read all of these shards of any version, and this one still has them."""
        copies_of = [self._copies.get(shard.sha256, []) for shard in shards]
        return all(copies_of) and all(
            self.rules.may_read(site, self.shards[number].labels) for numbers in copies_of for number in numbers
        )

    def count(self, shards: Iterable[Shard], times: int = 1) -> None:
        """Shards of any version were dealt so many times more. They are known by what is in them."""
        for shard in shards:
            self.dealt[self._copies.get(shard.sha256, [])] += times

    def next_deal(
        self, site: str, deal: tuple[int, int], speeds: Mapping[str, float], most: int = SHARDS_OF_DEAL
    ) -> tuple[str, Sequence[Shard], int]:
        """Text, shards and sequences of the next deal, of at most so many shards; none where there is nothing that the
        site may read. deal: see `Dealer`."""
        found = self.dealer.next_shards(site, deal, speeds, self.dealt)[:most]
        text = self.read.text(int(self._rows[number]) for number in found)
        return text, [self.shards[number] for number in found], int(self.sequences[found].sum())
