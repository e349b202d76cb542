"""Which shards a deal has, as the text of its entry: `3:0-2,5;4:1` are the shards 0, 1, 2 and 5 of part 3, and shard 1
of part 4, of a version of the run's data set. Ascending, so that equal shards have equal texts.

What a site reads, one after the other, is its line, of whole deals and of parts of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

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
    """As in `dealt_shards`."""
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
