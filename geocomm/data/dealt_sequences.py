"""The sequences that the leader of an elastic run deals to a site, one deal after the other."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.core.units import count_text
from geocomm.data.deal_records import SiteDeal
from geocomm.data.deal_sequences import DealSequences, DealtTo
from geocomm.data.read_version import ReadVersion
from geocomm.data.shard_stores import ShardStores

if TYPE_CHECKING:
    from geocomm.data.site_deals import SiteDeals


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
