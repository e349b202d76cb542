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
from geocomm.data.corpus.packing import held_out_every, named_seed
from geocomm.data.deal_sequences import DealSequences, DealtTo, argsort

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


class ShardSequences(DealSequences):
    """The sequences of a data set that a site may read, in a line of its own; the rest of each shard below one sequence
    is dropped."""

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
        super().__init__(name.url, sequence_length, held_out_every(held_out_fraction), named_seed(seed, order))
        self.name, self._site = name, site
        self._given = held_out_fraction, seed, order
        text = f"catalog {sequence_length} {held_out_fraction} {seed}"
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()
        number = self._catalog.read(name.number).number
        own = Reading(number, self._catalog.digest(number), 0)
        self.readings = tuple(readings) or (own,)
        self._pools = [self._pool(reading) for reading in self.readings]
        self._held_out_shards = newest = self._pools[-1]
        self.train_count = self._train_count(newest)
        self.token_count = sum(self._shards[int(number)].tokens for number in newest)
        places = [self._shards[int(number)].place for number in newest]
        self.pool_sha256 = hashlib.sha256(repr(places).encode()).hexdigest()
        """Of the shards that the site may read now."""
        self._deals: list[DealtTo] = []
        self._left: NDArray[np.int64] = newest[:0]
        self._reading, self._pass = -1, 0

    def _pool(self, reading: Reading) -> NDArray[np.int64]:
        """Numbers of the shards that the site may read in a version."""
        version = self._catalog.read(reading.number)
        if self._catalog.digest(reading.number) != reading.sha256:
            raise BadInput(f"version {reading.number} of {self.name.url} is not the one that the run has read")
        shards = self._catalog.shards(version)
        if any(shard.labels for shard in shards) and self._site not in version.rules.sites:
            raise BadInput(
                f"{self.name.url} has labels, and its [sites] lack this site, {self._site}: GEOCOMM_SITE names it"
            )
        self._read_from(version, shards, self._site)
        return self._numbered(shard for shard in shards if version.rules.may_read(self._site, shard.labels))

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
    def _deal_at(self, position: int) -> DealtTo:
        while not self._deals or self._deals[-1].at <= position:  # one more, which is fetched meanwhile
            self._deals.append(self._next_deal())
            self._want(self._deals[-2:])
        return self._deals[bisect_right(self._deals, position, key=lambda deal: deal.at) - 1]

    def _end(self, deal: DealtTo) -> int:
        return deal.at + self._train_count(deal.shards)

    def _next_deal(self) -> DealtTo:
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
        deal = DealtTo(start, len(self._deals), self._left[:SHARDS_OF_DEAL])
        self._left = self._left[SHARDS_OF_DEAL:]
        return deal

    def _shuffled(self, shards: NDArray[np.int64]) -> NDArray[np.int64]:
        return shards[argsort(self._run, _PASSES + self._pass, len(shards))]
