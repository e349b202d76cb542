"""A version of a data set with its shards, which of them a deal names, and, where they are dealt by an elastic run's
leader or in a job of fixed sites, which can be, and how often each was. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from geocomm.core.bad_input import BadInput
from geocomm.data.catalog import Catalog, Shard, Version
from geocomm.data.deal_records import shards_of, text_of
from geocomm.data.deals import SHARDS_OF_DEAL, Dealer, copies


@dataclass(frozen=True)
class ReadVersion:
    """A version, with its shards."""

    url: str
    """The catalog's place."""
    version: Version
    sha256: str
    """The hash of the version's file."""
    shards: tuple[Shard, ...]

    @classmethod
    def read(cls, catalog: Catalog, number: int | None, sha256: str | None = None) -> ReadVersion:
        """number: None for the newest. sha256: of its file, where that is known. It may take seconds. Raises BadInput,
        also for a version of another hash."""
        version = catalog.read(number, sha256)
        digest = catalog.digest(version.number, sha256)
        found = cls(catalog.url, version, digest, tuple(catalog.shards(version)))
        found.require(sha256 or digest)
        return found

    def require(self, sha256: str) -> None:
        """Raise BadInput where it is another one than the run has read."""
        if self.sha256 != sha256:
            raise BadInput(
                f"version {self.version.number} of {self.url} is another one than the run has read: restore its file"
            )

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """By shard: its part, and its number there."""
        return [(part, number) for part, one in enumerate(self.version.parts) for number in range(one.shards)]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(part.shards for part in self.version.parts)]

    def text(self, rows: Iterable[int]) -> str:
        """The text of a deal of these shards."""
        return text_of(self._places[row] for row in rows)

    def dealt(self, text: str) -> list[Shard]:
        """The shards of a deal. Raises BadInput for shards that it does not have."""
        try:
            return [self.shard(part, number) for part, number in shards_of(text)]
        except ValueError:
            raise self._lacks(text) from None

    def shard(self, part: int, number: int) -> Shard:
        """A shard that was dealt. Raises BadInput where there is none."""
        try:
            return self.shards[self._starts[part] + number]
        except IndexError:
            raise self._lacks(f"{part}:{number}") from None

    def _lacks(self, shards: str) -> BadInput:
        return BadInput(f"version {self.version.number} of {self.url} has no shards {shards}, which were dealt")


def sequences_of(shards: Sequence[Shard], length: int, held_out_every: int) -> NDArray[np.int64]:
    """By shard: its sequences of so many tokens that are trained on."""
    counts = np.array([shard.tokens for shard in shards], np.int64) // length
    return counts - (counts // held_out_every if held_out_every else 0)


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
