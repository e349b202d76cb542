"""What is dealt: a site's line of deals, their shards as text, how often each was dealt, and a leader's deals as its
site's ranks hear of them. Imports no torch.

The text of the shards of a deal stands in its entry: `3:0-2,5;4:1` are the shards 0, 1, 2 and 5 of part 3, and shard 1
of part 4, of a version of the run's data set. Ascending, so that equal shards have equal texts.

What a site reads, one after the other, is its line, of whole deals and of parts of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Annotated, Literal

from pydantic import Field

from geocomm.core.records import MAX_TEXT, Hash, Record, Text, Whole

MOST_SHARDS = 64
"""The most shards of one deal."""
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_RUNS = rf"{_NUMBER}(?:-{_NUMBER})?"
_TEXT = re.compile(rf"{_NUMBER}:{_RUNS}(?:,{_RUNS})*(?:;{_NUMBER}:{_RUNS}(?:,{_RUNS})*)*")


def text_of(shards: Iterable[tuple[int, int]]) -> str:
    """The text of (part, number in the part) of each shard, in any order."""
    parts = groupby(sorted(set(shards)), key=lambda shard: shard[0])
    return ";".join(f"{part}:{','.join(_runs([number for _, number in group]))}" for part, group in parts)


def shards_of(text: str) -> list[tuple[int, int]]:
    """(part, number in the part) of each shard. Raises ValueError for what `text_of` does not write."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"no shards of a deal: {text[:80]!r}")
    shards: list[tuple[int, int]] = []
    for group in text.split(";"):
        part, _, runs = group.partition(":")
        for run in runs.split(","):
            first, _, last = run.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            if len(shards) + len(numbers) > MOST_SHARDS:
                raise ValueError(f"more than {MOST_SHARDS} shards in a deal: {text[:80]}")
            shards += [(int(part), number) for number in numbers]
    if text_of(shards) != text:
        raise ValueError(f"the shards of a deal are not in their order, once each: {text[:80]}")
    return shards


def _runs(numbers: list[int]) -> list[str]:
    """Ascending numbers, those in a row as one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]


@dataclass(frozen=True)
class DealtShards:
    """Shards that were dealt."""

    data: int
    """The index of the entry of the version that they are of."""
    shards: str
    """As in `text_of`."""
    sequences: int


@dataclass(frozen=True)
class Piece:
    """A part of a deal, or all of it."""

    deal: int
    """The index of the entry that dealt the shards."""
    start: int
    """The first one, in the order of the deal."""
    sequences: int


Line = tuple[Piece, ...]


def length(line: Iterable[Piece]) -> int:
    """The sequences of a whole line."""
    return sum(piece.sequences for piece in line)


def cut(line: Line, at: int) -> tuple[Line, Line]:
    """The line up to a position, and the rest of it."""
    before: list[Piece] = []
    for place, piece in enumerate(line):
        if at < piece.sequences:
            if at:
                before.append(Piece(piece.deal, piece.start, at))
            rest = Piece(piece.deal, piece.start + at, piece.sequences - at)
            return tuple(before), (rest, *line[place + 1 :])
        before.append(piece)
        at -= piece.sequences
    return line, ()


StoreId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""A random name: of a run, or of a site's run folder."""


class DealtSet(Record):
    """The data set that a run deals."""

    set: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    """Where its catalog lies: a URL, or a folder."""
    sequence_length: Annotated[int, Field(ge=1, lt=2**31)]
    """In tokens."""
    held_out_every: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """One sequence of this many in a shard is never trained on; 0: all are."""


class DealtData(DealtSet):
    """A version of it."""

    number: Annotated[int, Field(ge=1, le=999_999)]
    """The number of the version."""
    sha256: Hash
    """The hash of the version's file, and so of all that it names."""


class LineBegun(Record):
    """Where a site's line of deals begins for ranks that have just started."""

    run: StoreId
    taken: Whole = 0
    """Tokens that the site has read and that count in every fragment; of dealt data in whole sequences."""
    data: DealtData | None = None
    """The version of the data set that deals are of; None: the run deals no data."""


class SiteDeal(Record):
    """From the agent to its ranks, after RankWelcome: what the site reads next, in the order of its line."""

    kind: Literal["site_deal"] = "site_deal"
    at: Whole
    """The place in the site's line of the first sequence; this and what follows in sequences."""
    sequences: Annotated[int, Field(ge=1, lt=2**63)]
    start: Whole
    """The first one, in the order of the deal."""
    deal: Whole
    """The index of the entry that dealt the shards."""
    shards: Text
    """All of that deal, as in `text_of`."""
    of: Annotated[int, Field(ge=1, lt=2**63)]
    """How many that deal had."""
    number: Annotated[int, Field(ge=1, le=999_999)]
    """The number of the version that the shards are of."""
    sha256: Hash
    """The hash of that version."""


DealtCounts = dict[int, list[tuple[int, int]]]
"""By part: (number of a shard, times) where a run begins, ascending; it ends where the next one begins. The last one
has 0 times, as what stands before the first one."""


def count(counts: DealtCounts, shards: str) -> None:
    """The shards of a deal, as in `text_of`, were dealt once more."""
    for part, number in shards_of(shards):
        _count(counts.setdefault(part, []), number)


def counted(counts: DealtCounts) -> Iterator[tuple[int, int, int]]:
    """(part, number in the part, times) of each shard that was dealt."""
    for part, runs in sorted(counts.items()):
        for (first, times), (after, _) in pairwise(runs):
            if times:
                yield from ((part, number, times) for number in range(first, after))


def _count(runs: list[tuple[int, int]], number: int) -> None:
    """The run that has the number becomes up to three."""
    after = bisect_right(runs, number, key=lambda run: run[0])
    first, times = runs[after - 1] if after else (-1, 0)
    begin = after
    before = times  # of the shard in front of it
    if first == number:
        begin = after - 1
        before = runs[begin - 1][1] if begin else 0
    new = [] if before == times + 1 else [(number, times + 1)]
    if after == len(runs) or runs[after][0] != number + 1:
        new.append((number + 1, times))
    elif runs[after][1] == times + 1:
        after += 1
    runs[begin:after] = new
