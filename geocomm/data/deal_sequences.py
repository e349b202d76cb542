"""The sequences of shards in the order of deals: some shards at a time, mixed inside of a deal; those
of a leader come one deal after the other. Imports no torch."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.core.units import count_text
from geocomm.data.catalog import KeptCatalog, Shard, Version
from geocomm.data.corpus.packing import Sequences
from geocomm.data.deal_records import SiteDeal
from geocomm.data.dealt_version import ReadVersion
from geocomm.data.shard_cache import ShardCache, own_far_rate
from geocomm.data.shard_stores import ShardStores

if TYPE_CHECKING:
    from geocomm.data.site_deals import SiteDeals


class DealtTo(NamedTuple):
    """Shards that are read next, or a part of their sequences."""

    at: int
    """The position of the first sequence that is read."""
    key: int
    """What draws the order: equal for all parts of one deal, and for no others."""
    shards: NDArray[np.int64]
    """Their numbers."""
    first: int = 0
    """In the order: the first sequence that is read."""


class DealSequences(Sequences):
    """The whole sequences of shards, which are numbered as they come; who deals them, a subclass says."""

    version: Version
    """The newest one that is read."""

    def __init__(self, url: str, sequence_length: int, every: int, run: int) -> None:
        """url: of the catalog. every: one of so many sequences of a shard is held out; 0: none. run: what the orders
        follow from, with the keys of deals."""
        super().__init__(sequence_length)
        self.url = url
        self._catalog = KeptCatalog(url)
        self._cache: ShardCache | None = None
        self._every, self._run = every, run
        self._shards: list[Shard] = []
        self._numbers: dict[tuple[str, str, str, int], int] = {}
        self._first = np.zeros(1, np.int64)
        """By shard: the number of its first sequence."""
        self._held_out_shards = self._first[:0]
        self._line: list[DealtTo] = []
        """What was dealt so far, by position; a subclass adds to it."""
        self._order: tuple[int, NDArray[np.int64]] = (-1, self._first[:0])

    def _index_at(self, position: int) -> int:
        """In the line: the deal that has the sequence at this position."""
        return bisect_right(self._line, position, key=lambda deal: deal.at) - 1

    def _numbered(self, shards: Iterable[Shard]) -> NDArray[np.int64]:
        """The numbers of shards; new ones get the next."""
        numbers: list[int] = []
        for shard in shards:
            numbers.append(self._numbers.setdefault((shard.sha256, *shard.place), len(self._shards)))
            if numbers[-1] == len(self._shards):
                self._shards.append(shard)
        counts = [shard.tokens // self.sequence_length for shard in self._shards[len(self._first) - 1 :]]
        self._first = np.append(self._first, self._first[-1] + np.cumsum(counts, dtype=np.int64))
        return np.array(numbers, dtype=np.int64)

    def _read_from(self, version: Version, shards: Iterable[Shard], site: str) -> None:
        """Read shards where this version says that they lie. shards: all of the version."""
        self.version, stores = version, ShardStores(version, shards, site)
        if self._cache is None:
            far_rate = own_far_rate(site)
            self._cache = ShardCache(stores, far_rate=far_rate, newest=self._newest_stores, hear=self._hear)
        self._cache.read_from(stores, self._catalog.kept_shards)

    def _newest_stores(self) -> ShardStores | None:
        """By the newest version, where a leader takes back what it denies."""
        return None

    def _hear(self) -> None:
        """Raise what ends a wait for a shard."""

    def _want(self, deals: Iterable[DealtTo]) -> None:
        """These are read next."""
        if self._cache is not None:
            self._cache.want([self._shards[int(number)] for deal in deals for number in deal.shards])

    def _train_count(self, shards: NDArray[np.int64]) -> int:
        """How many sequences of these shards are not held out."""
        counts = self._first[shards + 1] - self._first[shards]
        return int((counts - counts // self._every if self._every else counts).sum())

    @override
    def micro_batch(self, consumed: int, micro_step: int, rank: int, world_size: int, size: int) -> NDArray[np.int64]:
        """See `Sequences`."""
        if self._cache is not None:
            self._cache.row_bytes = self.sequence_length * self.version.width * world_size
        return super().micro_batch(consumed, micro_step, rank, world_size, size)

    @override
    def sequence_number(self, position: int) -> int:
        deal = self._line[self._index_at(position)]
        if self._order[0] != deal.key:
            self._order = deal.key, self._mixed(deal)
        return int(self._order[1][deal.first + position - deal.at])

    def _mixed(self, deal: DealtTo) -> NDArray[np.int64]:
        """Numbers of a deal's sequences, in its order."""
        bounds = [self._bounds(shard) for shard in deal.shards]
        numbers = np.concatenate([np.arange(first, end) for first, end in bounds])
        if self._every:
            within = np.concatenate([np.arange(end - first) for first, end in bounds])
            numbers = numbers[within % self._every != self._every - 1]
        return numbers[argsort(self._run, deal.key, len(numbers))]

    def _bounds(self, shard: np.int64) -> tuple[int, int]:
        return int(self._first[shard]), int(self._first[shard + 1])

    @property
    @override
    def held_out_count(self) -> int:
        pool = self._held_out_shards
        return int((self._first[pool + 1] - self._first[pool]).sum()) - self._train_count(pool)

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
        return np.concatenate(found) if found else self._first[:0]

    @override
    def rows(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        return np.stack([self._row(number) for number in numbers])

    def _row(self, number: int) -> NDArray[np.int64]:
        index = int(np.searchsorted(self._first, number, side="right")) - 1
        begin = (number - int(self._first[index])) * self.sequence_length
        shard = self._shards[index]
        if self._cache is None:
            raise BadInput(f"{self.url}: no version is read")
        row = self._cache.ids(shard)[begin : begin + self.sequence_length]
        if len(row) < self.sequence_length:
            raise BadInput(f"{shard.path} of {self.url} is shorter than its shards: geocomm data check says more")
        return row.astype(np.int64)


def argsort(run: int, key: int, count: int) -> NDArray[np.int64]:
    """An order of 0 to count - 1, by a run and a key: sorted raw output of Philox, whose stream numpy guarantees."""
    return np.argsort(np.random.Philox(key=np.array([run, key], np.uint64)).random_raw(count), kind="stable")


class DealtSequences(DealSequences):
    """Those of a run's data set that were dealt to a site. Held out for all sites alike are sequences of shards that
    every site may read."""

    def __init__(self, deals: SiteDeals, site: str) -> None:
        """site: the own one. Raises BadInput for a version that is not the run's, or not there."""
        data = deals.data
        super().__init__(data.set, data.sequence_length, data.held_out_every, int(deals.run[:16], 16))
        self.deals = deals
        self._site = site
        self._last: ReadVersion | None = None
        self._newest: ReadVersion | None = None
        read = self._read(data.number, data.sha256)
        rules = read.version.rules
        own = self._numbered(shard for shard in read.shards if rules.may_read(site, shard.labels))
        common = (one for one in read.shards if all(rules.may_read(name, one.labels) for name in rules.sites))
        self._held_out_shards = self._numbered(common)
        self.train_count = self._train_count(own)
        self.token_count = sum(self._shards[int(number)].tokens for number in own)
        text = f"deals {data.set} {data.sequence_length} {data.held_out_every}"
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()

    @override
    def micro_batch(self, consumed: int, micro_step: int, rank: int, world_size: int, size: int) -> NDArray[np.int64]:
        """Waits until the batch of all ranks is dealt. Raises SiteLeft."""
        self.deals.reach(consumed + (micro_step + 1) * world_size * size)
        if new := self.deals.line[len(self._line) :]:
            self._line += [self._dealt(deal) for deal in new]
            self._want(self._line[self._index_at(consumed) :])
        return super().micro_batch(consumed, micro_step, rank, world_size, size)

    def _dealt(self, deal: SiteDeal) -> DealtTo:
        shards = self._read(deal.number, deal.sha256).dealt(deal.shards)
        numbers = self._numbered(shards)
        if (count := self._train_count(numbers)) != deal.of:
            raise BadInput(
                f"{deal.shards} of version {deal.number} of {self.url} have "
                f"{count_text(count, 'sequence')} here, and the leader "
                f"counts {deal.of}"
            )
        return DealtTo(deal.at, deal.deal, numbers, deal.start)

    @override
    def _newest_stores(self) -> ShardStores:
        if self._newest is None or self._catalog.numbers()[-1] > self._newest.version.number:
            self._newest = ReadVersion.read(self._catalog, None)
        return ShardStores(self._newest.version, self._newest.shards, self._site)

    @override
    def _hear(self) -> None:
        self.deals.check()

    def _read(self, number: int, sha256: str) -> ReadVersion:
        """A version. Raises BadInput where it is not the one that the run has."""
        if self._last is None or self._last.version.number != number:
            self._last = read = ReadVersion.read(self._catalog, number, sha256)
            if self._cache is None or number > self.version.number:
                self._read_from(read.version, read.shards, self._site)
        return self._last
