"""What a site reads, one after the other: its line, of whole deals and of parts of them. All counts are sequences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
    """Of the whole line."""
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
