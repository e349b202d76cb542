"""The deals of a job whose sites stay the same: each rank makes them for all sites, and all ranks make the same.

A job's step takes a batch of each site, so the next deal is for the site that has the fewest steps left. What is dealt
follows from what was read before and from one plan for a whole pass, which one rank makes: sites need not talk while
they train. A job of other sites begins with what those before have left. Pure; imports no torch.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from geocomm.core.bad_input import BadInput
from geocomm.core.units import count_text
from geocomm.data.catalog import Shard
from geocomm.data.deal_records import Piece, cut, length
from geocomm.data.deals import DEALS_OF_A_PASS, SHARDS_OF_DEAL, ShardClass
from geocomm.data.dealt_version import DealtVersion, ReadVersion, sequences_of


@dataclass(frozen=True)
class ReadSoFar:
    """What of a data set was dealt, and is not read yet."""

    versions: Mapping[int, str]
    """SHA-256 of a version's file, by its number: the newest, and those that deals are of."""
    dealt: bytes = b""
    """How often each shard of the newest was dealt: int32, compressed; empty: never."""
    next_deal: int = 0
    deals: Mapping[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    """Version and shards of those that are not read to their end, by number."""
    lines: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict[str, tuple[Piece, ...]])
    """What each site has left."""
    rests: tuple[Piece, ...] = ()
    """What is left of sites that have gone."""

    def plain(self) -> dict[str, Any]:
        """The position as values that JSON and torch's checkpoints take."""
        return {
            "versions": {str(number): sha256 for number, sha256 in self.versions.items()},
            "dealt": base64.b64encode(self.dealt).decode(),
            "next_deal": self.next_deal,
            "deals": {str(number): list(deal) for number, deal in self.deals.items()},
            "lines": {site: _plain(line) for site, line in self.lines.items()},
            "rests": _plain(self.rests),
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> ReadSoFar:
        """From what `plain` gave."""
        return cls(
            {int(number): sha256 for number, sha256 in plain["versions"].items()},
            base64.b64decode(plain["dealt"]),
            plain["next_deal"],
            {int(number): (version, shards) for number, (version, shards) in plain["deals"].items()},
            {site: tuple(Piece(*piece) for piece in line) for site, line in plain["lines"].items()},
            tuple(Piece(*piece) for piece in plain["rests"]),
        )


def _plain(pieces: Iterable[Piece]) -> list[list[int]]:
    return [[piece.deal, piece.start, piece.sequences] for piece in pieces]


class FixedDeals:
    """The lines of a job's sites, as far as they are dealt."""

    def __init__(
        self,
        versions: Mapping[int, ReadVersion],
        sequence_length: int,
        held_out_every: int,
        run: int,
        batches: Mapping[str, int],
        so_far: ReadSoFar,
    ) -> None:
        """versions: the newest, and those of `so_far`. batches: sequences that each site reads in a step. Raises
        BadInput for a site that may not read enough for a batch."""
        self._versions, self._run = versions, run
        self._cut = sequence_length, held_out_every
        self._newest = DealtVersion(versions[max(versions)], *self._cut)
        self._batches = dict(sorted(batches.items()))
        self._speeds = {site: float(batch) for site, batch in self._batches.items()}
        self._require_readers()
        self._newest.dealt[:] = self._counts(so_far)
        self._next_deal, self._deals = so_far.next_deal, dict(so_far.deals)
        self._may: dict[tuple[str, int], bool] = {}
        same = so_far.lines.keys() == batches.keys() and max(so_far.versions) == max(versions)
        untouched = set[int]() if same else self._take_back(so_far)
        self._rests = [piece for piece in so_far.rests if piece.deal not in untouched]
        self.lines: dict[str, list[Piece]] = {site: [] for site in self._batches}
        """What each site reads from its position at the job's start on."""
        for site, line in sorted(so_far.lines.items()):
            for piece in line:
                keeps = site in self.lines and self._may_read(site, piece)
                if piece.deal not in untouched:
                    (self.lines[site] if keeps else self._rests).append(piece)
        self._ends = {site: length(line) for site, line in self.lines.items()}

    def _require_readers(self) -> None:
        for site, batch in self._batches.items():
            if (count := self._newest.readable(site)) < batch:
                raise BadInput(
                    f"{self._newest.read.url} has {count_text(count, 'sequence')} of {self._cut[0]} "
                    f"tokens that site {site} may "
                    f"read, and a step takes {batch} there"
                )

    def _counts(self, so_far: ReadSoFar) -> list[int]:
        """How often each shard was dealt, whatever the version: by what is in it."""
        number = max(so_far.versions)
        same = number == self._newest.read.version.number
        before = self._newest if same else DealtVersion(self._versions[number], *self._cut)
        shards = before.shards
        counts = np.frombuffer(zlib.decompress(so_far.dealt), "<i4") if so_far.dealt else [0] * len(shards)
        if len(counts) != len(shards):
            raise BadInput(
                f"what was read of {before.read.url} is counted for {count_text(len(counts), 'shard')}, "
                f"and {len(shards)} are there"
            )
        of_hash = {shard.sha256: int(count) for shard, count in zip(shards, counts, strict=True)}
        return [of_hash.get(shard.sha256, 0) for shard in self._newest.shards]

    def _take_back(self, so_far: ReadSoFar) -> set[int]:
        """The deals that nobody has begun; they count no more, so that what was dealt less often comes first."""
        left = Counter[int]()
        for piece in (*so_far.rests, *(piece for line in so_far.lines.values() for piece in line)):
            left[piece.deal] += piece.sequences
        found = set[int]()
        for deal, count in left.items():
            shards = self._shards(deal)
            if count == int(sequences_of(shards, *self._cut).sum()):
                found.add(deal)
                self._newest.count(shards, -1)
        return found

    def make_plan(self) -> dict[tuple[ShardClass, str], float]:
        """The plan, which is to be that of one rank at all: the libraries in it may differ."""
        return self._newest.dealer.pass_plan(self._speeds)

    def take_plan(self, plan: Mapping[tuple[ShardClass, str], float]) -> None:
        """Deal by this plan; before anything is dealt."""
        self._newest.dealer.fix_plan(plan)

    def piece(self, site: str, index: int) -> tuple[Piece, list[Shard]]:
        """That of a site's line, and its deal's shards; dealt now if need be."""
        while len(self.lines[site]) <= index:
            self._deal()
        piece = self.lines[site][index]
        return piece, self._shards(piece.deal)

    def so_far(self, steps: int) -> ReadSoFar:
        """What is left once each site has read so many batches since the job's start."""
        while any(self._ends[site] < steps * batch for site, batch in self._batches.items()):
            self._deal()
        lines = {site: cut(tuple(self.lines[site]), steps * batch)[1] for site, batch in self._batches.items()}
        left = {piece.deal for line in (*lines.values(), self._rests) for piece in line}
        deals = {number: self._deals[number] for number in sorted(left)}
        numbers = {version for version, _ in deals.values()} | {self._newest.read.version.number}
        return ReadSoFar(
            {number: self._versions[number].sha256 for number in sorted(numbers)},
            zlib.compress(self._newest.dealt.astype("<i4").tobytes(), 9),
            self._next_deal,
            deals,
            lines,
            tuple(self._rests),
        )

    def _deal(self) -> None:
        """To the site that is the first to have read all of its line."""
        site = min(self._batches, key=lambda name: (Fraction(self._ends[name], self._batches[name]), name))
        piece = next((one for one in self._rests if self._may_read(site, one)), None)
        if piece is None:
            first = len(self._rests)
            self._rests += self._new_deal(site)
            piece = self._rests[first]
        self._rests.remove(piece)
        self.lines[site].append(piece)
        self._ends[site] += piece.sequences

    def _new_deal(self, site: str) -> list[Piece]:
        text, shards, count = self._newest.next_deal(site, (self._run, self._next_deal), self._speeds)
        self._newest.count(shards)
        number, self._next_deal = self._next_deal, self._next_deal + 1
        self._deals[number] = self._newest.read.version.number, text
        # Of few shards, several sites get parts of one deal.
        parts = DEALS_OF_A_PASS * len(self._batches) * SHARDS_OF_DEAL // len(self._newest.shards)
        size = math.ceil(count / max(1, parts if len(self._batches) > 1 else 1))
        return [Piece(number, start, min(size, count - start)) for start in range(0, count, size)]

    def _may_read(self, site: str, piece: Piece) -> bool:
        """Whether a site may read all of a deal, and the newest version still has it."""
        key = site, piece.deal
        if key not in self._may:
            self._may[key] = self._newest.may_read(site, self._shards(piece.deal))
        return self._may[key]

    def _shards(self, deal: int) -> list[Shard]:
        version, text = self._deals[deal]
        return self._versions[version].dealt(text)
