"""The model in fragments of about equal size: what one round averages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash

from geocomm.core.errors import InvalidArgumentError
from geocomm.group.planning.local_estimate import AUTO_FRAGMENTS, LEAST_FRAGMENT_BYTES


def digest(tensors: Sequence[torch.Tensor], text: str = "") -> str:
    """XXH3 of the bytes of tensors on any device, and of a text, as 32 hexadecimal digits.

    It finds accidents, as fast as memory is read; it is no protection from a site that cheats.
    """
    found = xxhash.xxh3_128(text.encode())
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


BYTES_PER_ELEMENT = 4
"""The size of an element of a delta and of an anchor: both are float32."""


@dataclass(frozen=True)
class Tensor:
    """What the fragments have to know of a parameter, or of the part of one that this rank holds."""

    name: str
    numel: int
    row_numel: int = 1
    """Elements of a row (of the last dimension): where a table may be cut."""
    table: bool = False
    """A table of embeddings: it may be cut, and averages of many sites take it as a plain mean."""
    exact: bool = False
    """Its deltas are not compressed."""
    shape: tuple[int, ...] = ()
    """The shape of the whole parameter."""


@dataclass(frozen=True)
class Range:
    """The elements [start, stop) of a parameter, in memory order."""

    name: str
    start: int
    stop: int
    table: bool = False
    exact: bool = False

    whole: bool = True
    """Whether these are all elements of the parameter."""

    @property
    def numel(self) -> int:
        """How many elements."""
        return self.stop - self.start

    def __str__(self) -> str:
        """The fragment as messages name it."""
        return self.name if self.whole else f"{self.name}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class Fragment:
    """What one round averages: ranges one after the other in a flat float32 buffer, the exact ones at its end."""

    index: int
    ranges: tuple[Range, ...]

    @property
    def numel(self) -> int:
        """Elements of the buffer."""
        return sum(part.numel for part in self.ranges)

    @property
    def coded_elems(self) -> int:
        """Elements at the buffer's beginning that a codec may compress; those behind them travel exactly."""
        return sum(part.numel for part in self.ranges if not part.exact)

    @property
    def exact_elems(self) -> int:
        """The elements behind those that are coded."""
        return self.numel - self.coded_elems

    def spans(self) -> list[tuple[Range, slice]]:
        """Each range, with its place in the buffer."""
        found: list[tuple[Range, slice]] = []
        offset = 0
        for part in self.ranges:
            found.append((part, slice(offset, offset + part.numel)))
            offset += part.numel
        return found


def automatic_count(tensors: Sequence[Tensor]) -> int:
    """The number of fragments of `LEAST_FRAGMENT_BYTES` each, from 1 to `AUTO_FRAGMENTS`."""
    total = BYTES_PER_ELEMENT * sum(tensor.numel for tensor in tensors)
    return max(
        1, min(AUTO_FRAGMENTS, total // LEAST_FRAGMENT_BYTES, len([tensor for tensor in tensors if tensor.numel]))
    )


def make_fragments(tensors: Sequence[Tensor], count: int) -> tuple[Fragment, ...]:
    """Deal the tensors to `count` fragments, so that the largest is as small as whole parameters allow.

    Greedy packing, the largest first, each into the fragment that has least (LPT, Graham 1969): no fragment has more
    than the mean plus the largest piece. Tables larger than the mean are cut between rows. The result depends on the
    arguments alone, so it is the same at every site.

    Raises InvalidArgumentError for a count below 1 or above the number of pieces, and for names that come twice.
    """
    if count < 1:
        raise InvalidArgumentError(f"fragments is {count}; it must be 1 or more")
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidArgumentError(f"parameters come twice: {', '.join(twice)}")
    order = {name: position for position, name in enumerate(names)}
    mean = sum(tensor.numel for tensor in tensors) / count
    pieces = [piece for tensor in tensors for piece in _pieces(tensor, mean)]
    if len(pieces) < count:
        raise InvalidArgumentError(
            f"fragments is {count}, but the model has only {len(pieces)} pieces (whole parameters, and parts of "
            "embeddings); give fewer fragments"
        )
    dealt: list[list[Range]] = [[] for _ in range(count)]
    loads = [0] * count
    for piece in sorted(pieces, key=lambda part: (-part.numel, order[part.name], part.start)):
        least = loads.index(min(loads))
        loads[least] += piece.numel
        dealt[least].append(piece)
    return tuple(
        Fragment(index, tuple(sorted(ranges, key=lambda part: (part.exact, order[part.name], part.start))))
        for index, ranges in enumerate(dealt)
    )


def _pieces(tensor: Tensor, mean: float) -> list[Range]:
    """The tensor whole, or a table in parts of at most about `mean` elements, which end with rows."""
    if not tensor.numel:
        return []
    rows = tensor.numel // tensor.row_numel
    parts = min(math.ceil(tensor.numel / mean), rows) if tensor.table else 1
    bounds = [rows * part // parts * tensor.row_numel for part in range(parts)] + [tensor.numel]
    return [
        Range(tensor.name, start, stop, tensor.table, tensor.exact, whole=parts == 1)
        for start, stop in itertools.pairwise(bounds)
    ]
