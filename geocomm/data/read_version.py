"""A version of a data set with its shards, and which of them a deal names. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from geocomm.core.bad_input import BadInput
from geocomm.data.catalog import Catalog, Shard, Version
from geocomm.data.dealt_shards import shards_of, text_of


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
