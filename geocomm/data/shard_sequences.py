"""The sequences of a data set's shards in the order of deals: eight shards at a time, mixed inside of a deal.

The order is a function of the run's seed alone, so a run's whole position is the number of sequences that all ranks
together have consumed, whatever the number of ranks. Where a run takes over a newer version, deals that have begun stay
as they were: `readings` says from which position on each version is read. Imports no torch.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.corpus.packing import Sequences, held_out_every, named_seed
from geocomm.data.catalog import Catalog, Shard, Version
from geocomm.data.shard_stores import folder_of, mapped

SHARDS_OF_DEAL = 8
_PASSES = 1 << 63
"""Keys of passes begin here, those of deals at 0."""


class Reading(NamedTuple):
    """A version that a run reads, or has read."""

    number: int
    sha256: str
    """Of the version's file."""
    start: int
    """The position from which on deals are made of it."""


@dataclass(frozen=True)
class SetName:
    """A data set at a version: `folder@17`, or the newest of `folder`."""

    url: str
    number: int | None

    @staticmethod
    def parse(text: str) -> SetName:
        """Raises BadInput for a version that is no number."""
        url, at, number = text.rpartition("@")
        if not at:
            return SetName(text, None)
        if not number.isdecimal():
            raise BadInput(f"{text}: the version after @ is no number")
        return SetName(url, int(number))


@dataclass(frozen=True)
class _Deal:
    start: int
    """The position of its first sequence."""
    number: int
    shards: NDArray[np.int64]


class ShardSequences(Sequences):
    """The sequences of a data set that a site may read; the rest of each shard below one sequence is dropped."""

    def __init__(
        self,
        name: SetName,
        site: str,
        sequence_length: int,
        held_out_fraction: float,
        seed: int,
        order: str = "",
        readings: Sequence[Reading] = (),
    ) -> None:
        """site: the own one, which the rules of the data set are applied to. readings: what the run has read before; it
        goes on with these. Raises BadInput."""
        super().__init__(sequence_length)
        self.name, self._site = name, site
        self._given = held_out_fraction, seed, order
        self._catalog = Catalog(name.url)
        self._every = held_out_every(held_out_fraction)
        self._run = named_seed(seed, order)
        text = f"catalog {sequence_length} {held_out_fraction} {seed}"
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()
        self.version: Version = self._catalog.read(name.number)
        own = Reading(self.version.number, self._catalog.digest(self.version.number), 0)
        self.readings = tuple(readings) or (own,)
        self._shards: list[Shard] = []
        self._pools = [self._pool(reading) for reading in self.readings]
        tokens = np.array([shard.tokens for shard in self._shards], dtype=np.int64)
        counts = tokens // sequence_length
        self._first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        """By shard: the number of its first sequence."""
        self._train_counts = counts - (counts // self._every if self._every else 0)
        newest = self._pools[-1]
        self.train_count = int(self._train_counts[newest].sum())
        self.token_count = int(tokens[newest].sum())
        places = [self._shards[int(number)].place for number in newest]
        self.pool_sha256 = hashlib.sha256(repr(places).encode()).hexdigest()
        """Of the shards that the site may read now."""
        self._held_out_shards = newest
        self._deals: list[_Deal] = []
        self._left: NDArray[np.int64] = newest[:0]
        self._reading, self._pass = -1, 0
        self._order: tuple[int, NDArray[np.int64]] = (-1, newest[:0])

    def _pool(self, reading: Reading) -> NDArray[np.int64]:
        """Numbers of the shards that the site may read in a version; new ones are added to the list of all."""
        version = self._catalog.read(reading.number)
        if self._catalog.digest(reading.number) != reading.sha256:
            raise BadInput(f"version {reading.number} of {self.name.url} is not the one that the run has read")
        shards = self._catalog.shards(version)
        if any(shard.labels for shard in shards) and self._site not in version.rules.sites:
            raise BadInput(
                f"{self.name.url} has labels, and its [sites] lack this site, {self._site}: GEOCOMM_SITE names it"
            )
        known = {shard.place: number for number, shard in enumerate(self._shards)}
        pool: list[int] = []
        for shard in shards:
            if not version.rules.may_read(self._site, shard.labels):
                continue
            if shard.place not in known:
                known[shard.place] = len(self._shards)
                self._shards.append(shard)
            pool.append(known[shard.place])
        return np.array(pool, dtype=np.int64)

    def renewed(self, readings: Sequence[Reading], position: int) -> ShardSequences:
        """The same for a run that has read these up to `position`: what is newer here is read from there on.

        Raises BadInput where the version here is older, or those that were read are not there any more.
        """
        last, own = readings[-1], self.readings[-1]
        if own.number < last.number:
            raise BadInput(f"the run has read version {last.number} of {self.name.url}, and this one is {own.number}")
        more = [] if own.number == last.number else [own._replace(start=position)]
        return ShardSequences(self.name, self._site, self.sequence_length, *self._given, readings=[*readings, *more])

    @override
    def sequence_number(self, position: int) -> int:
        deal = self._deal_at(position)
        if self._order[0] != deal.number:
            self._order = deal.number, self._mixed(deal)
        return int(self._order[1][position - deal.start])

    def _deal_at(self, position: int) -> _Deal:
        while not self._deals or self._end(self._deals[-1]) <= position:
            self._deals.append(self._next_deal())
        return self._deals[bisect_right(self._deals, position, key=lambda deal: deal.start) - 1]

    def _end(self, deal: _Deal) -> int:
        return deal.start + int(self._train_counts[deal.shards].sum())

    def _next_deal(self) -> _Deal:
        start = self._end(self._deals[-1]) if self._deals else 0
        reading = bisect_right(self.readings, start, key=lambda one: one.start) - 1
        if reading != self._reading:
            # What this pass has dealt stays dealt; new shards join it.
            pool, before = self._pools[reading], self._pools[self._reading] if self._reading >= 0 else self._left
            dealt = np.setdiff1d(before, self._left)
            self._left, self._reading = self._shuffled(np.setdiff1d(pool, dealt)), reading
        if len(self._left) == 0:
            self._pass += 1
            self._left = self._shuffled(np.sort(self._pools[reading]))
        deal = _Deal(start, len(self._deals), self._left[:SHARDS_OF_DEAL])
        self._left = self._left[SHARDS_OF_DEAL:]
        return deal

    def _shuffled(self, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        return shards[argsort(self._run, _PASSES + self._pass, len(shards))]

    def _mixed(self, deal: _Deal) -> NDArray[np.int64]:
        """Numbers of a deal's sequences, in its order."""
        bounds = [self._bounds(shard) for shard in deal.shards]
        numbers = np.concatenate([np.arange(first, end) for first, end in bounds])
        if self._every:
            within = np.concatenate([np.arange(end - first) for first, end in bounds])
            numbers = numbers[within % self._every != self._every - 1]
        return numbers[argsort(self._run, deal.number, len(numbers))]

    def _bounds(self, shard: np.int64) -> tuple[int, int]:
        return int(self._first[shard]), int(self._first[shard + 1])

    @property
    @override
    def held_out_count(self) -> int:
        pool = self._held_out_shards
        return int((self._first[pool + 1] - self._first[pool] - self._train_counts[pool]).sum())

    @override
    def held_out(self, limit: int) -> NDArray[np.int64]:
        found: list[NDArray[np.int64]] = []
        for shard in self._held_out_shards:
            if limit <= 0 or not self._every:
                break
            first, end = self._bounds(shard)
            numbers = np.arange(first + self._every - 1, end, self._every)[:limit]
            limit -= len(numbers)
            found.append(numbers)
        return np.concatenate(found) if found else self._left[:0]

    @override
    def rows(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        return np.stack([self._row(number) for number in numbers])

    def _row(self, number: int) -> NDArray[np.int64]:
        shard = self._shards[index := int(np.searchsorted(self._first, number, side="right")) - 1]
        path = folder_of(self.version.rules.require_store(shard.store).url) / shard.path
        begin = shard.offset // self.version.width + (number - int(self._first[index])) * self.sequence_length
        row = mapped(path, self.version.dtype)[begin : begin + self.sequence_length]
        if len(row) < self.sequence_length:
            raise BadInput(f"{path} of {self.name.url} is shorter than its shards: geocomm data check says more")
        return row.astype(np.int64)


def argsort(run: int, key: int, count: int) -> NDArray[np.int64]:
    """An order of 0 to count - 1, by a run and a key: sorted raw output of Philox, whose stream numpy guarantees."""
    return np.argsort(np.random.Philox(key=np.array([run, key], np.uint64)).random_raw(count), kind="stable")
