"""The sequences that the leader of an elastic run deals to a site, one deal after the other."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.data.catalog import Shard, Version
from geocomm.data.deal_sequences import DealSequences, DealtTo
from geocomm.journal.dealt_shards import shards_of
from geocomm.journal.messages import SiteDeal

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
        self._listed: tuple[int, Version, list[Shard]] | None = None
        self._known: list[DealtTo] = []
        version, shards = self._list(data.number, data.sha256)
        rules = version.rules
        own = self._numbered(shard for shard in shards if rules.may_read(site, shard.labels))
        common = (one for one in shards if all(rules.may_read(name, one.labels) for name in rules.sites))
        self._held_out_shards = self._numbered(common)
        self.train_count = self._train_count(own)
        self.token_count = sum(self._shards[int(number)].tokens for number in own)
        text = f"deals {data.set} {data.sequence_length} {data.held_out_every}"
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()

    @override
    def micro_batch(self, consumed: int, micro_step: int, rank: int, world_size: int, size: int) -> NDArray[np.int64]:
        """Waits until the batch of all ranks is dealt. Raises SiteLeft."""
        self.deals.reach(consumed + (micro_step + 1) * world_size * size)
        if new := self.deals.line[len(self._known) :]:
            self._known += [self._dealt(deal) for deal in new]
            self._want(self._known[self._index_at(consumed) :])
        return super().micro_batch(consumed, micro_step, rank, world_size, size)

    @override
    def _deal_at(self, position: int) -> DealtTo:
        return self._known[self._index_at(position)]

    def _index_at(self, position: int) -> int:
        return bisect_right(self._known, position, key=lambda deal: deal.at) - 1

    def _dealt(self, deal: SiteDeal) -> DealtTo:
        version, listed = self._list(deal.number, deal.sha256)
        starts = [0, *accumulate(part.shards for part in version.parts)]
        try:
            shards = [listed[starts[part] + number] for part, number in shards_of(deal.shards)]
        except IndexError:
            raise BadInput(
                f"version {deal.number} of {self.url} has no shards {deal.shards}, which were dealt"
            ) from None
        numbers = self._numbered(shards)
        if (count := self._train_count(numbers)) != deal.of:
            raise BadInput(
                f"{deal.shards} of version {deal.number} of {self.url} have {count} sequences here, and the leader "
                f"counts {deal.of}"
            )
        return DealtTo(deal.at, deal.deal, numbers, deal.start)

    def _list(self, number: int, sha256: str) -> tuple[Version, list[Shard]]:
        """A version and its shards. Raises BadInput where it is not the one that the run has."""
        if self._listed is None or self._listed[0] != number:
            version = self._catalog.read(number)
            if self._catalog.digest(number) != sha256:
                raise BadInput(f"version {number} of {self.url} is not the one that the run reads")
            self._listed = number, version, self._catalog.shards(version)
            if self._cache is None or number > self.version.number:
                self._read_from(*self._listed[1:], self._site)
        return self._listed[1:]
