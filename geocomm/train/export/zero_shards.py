"""Where the float32 masters of DeepSpeed's optimizers lie in their files. Imports torch.

A master is what the optimizer updates; what the model computes with is its rounding. The layouts:

- ZeRO 1 and 2: the parameters of a group are one vector, one after another, with gaps that align them. It is cut into
  equal partitions. What fills up the last ones is not saved.
- ZeRO 3: each parameter is cut by itself, and its last partitions are filled up. In a partition the parameters of a
  group follow each other.
- ZeRO 0 in 16 bits: a copy of each parameter, without its name.

Nothing here copies: all tensors are views of mapped files.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence

import torch

from geocomm.core.bad_input import BadInput
from geocomm.train.export.weights import Parts

Shapes = Mapping[str, Sequence[int]]
"""The shapes of one group's parameters by name, in the order of the group."""
Shard = Sequence[torch.Tensor]
"""What one partition has of each group, as 1-D tensors."""


def masters_cut_by_group(
    groups: Sequence[Shapes], gaps: Sequence[Sequence[int]], shards: Sequence[Shard]
) -> dict[str, Parts]:
    """Masters under ZeRO 1 and 2. gaps: elements after each parameter of a group; shards: of all partitions, in order.

    Raises BadInput if they do not fit each other.
    """
    _require_groups(groups, shards)
    found: dict[str, Parts] = {}
    for index, (shapes, behind) in enumerate(zip(groups, gaps, strict=True)):
        pieces = [shard[index] for shard in shards]
        offset = 0
        ends = list(itertools.accumulate(piece.numel() for piece in pieces))
        for (name, shape), gap in zip(shapes.items(), behind, strict=True):
            stop = offset + math.prod(shape)
            touched = range(bisect.bisect_right(ends, offset), min(bisect.bisect_left(ends, stop) + 1, len(ends)))
            starts = [(pieces[one], ends[one] - pieces[one].numel()) for one in touched]
            found[name] = Parts([piece[max(offset - start, 0) : stop - start] for piece, start in starts], shape)
            offset = stop + gap
        _require_fit(index, got=ends[-1], expected=offset)
    return found


def masters_cut_by_parameter(groups: Sequence[Shapes], shards: Sequence[Shard]) -> dict[str, Parts]:
    """Masters under ZeRO 3, otherwise as `masters_cut_by_group`."""
    _require_groups(groups, shards)
    found: dict[str, Parts] = {}
    for index, shapes in enumerate(groups):
        offset = 0
        for name, shape in shapes.items():
            stop = offset + partition_elems(shape, len(shards))
            found[name] = cut_parameter([shard[index][offset:stop] for shard in shards], shape)
            offset = stop
        for shard in shards:
            _require_fit(index, got=shard[index].numel(), expected=offset)
    return found


def partition_elems(shape: Sequence[int], partitions: int) -> int:
    """How many elements each partition has of a parameter at ZeRO 3, filled up if need be."""
    return -(-math.prod(shape) // partitions)


def cut_parameter(pieces: Sequence[torch.Tensor], shape: Sequence[int]) -> Parts:
    """A parameter from what each partition has of it at ZeRO 3, without what the last ones are filled up with."""
    views: list[torch.Tensor] = []
    missing = math.prod(shape)
    for piece in pieces:
        views.append(piece[:missing])
        missing -= views[-1].numel()
    return Parts(views, shape)


def masters_not_cut(shapes: Shapes, groups: Sequence[Sequence[torch.Tensor]]) -> dict[str, Parts]:
    """Masters under ZeRO 0 in 16 bits. shapes: of all parameters, in the model's order; groups: their masters.

    The driver's optimizer has the matrices in its first group, and what has fewer dimensions in the second. Raises
    BadInput for other groups.
    """
    names = [
        *(name for name, shape in shapes.items() if len(shape) >= 2),
        *(name for name, shape in shapes.items() if len(shape) < 2),
    ]
    masters = [master for group in groups for master in group]
    if [tuple(shapes[name]) for name in names] != [tuple(master.shape) for master in masters]:
        raise BadInput(
            f"the checkpoint has {len(masters)} float32 masters for {len(names)} parameters, or of other shapes: its "
            "optimizer was not that of geocomm train; give no dtype, to export the weights as they were trained"
        )
    return {name: Parts([master], master.shape) for name, master in zip(names, masters, strict=True)}


def _require_groups(groups: Sequence[Shapes], shards: Sequence[Shard]) -> None:
    for shard in shards:
        if len(shard) != len(groups):
            raise _misfit(f"{len(shard)} parameter groups", str(len(groups)))


def _require_fit(group: int, *, got: int, expected: int) -> None:
    if got != expected:
        raise _misfit(f"{got} elements of parameter group {group}", str(expected))


def _misfit(got: str, expected: str) -> BadInput:
    return BadInput(
        f"the optimizer's files of the checkpoint hold {got}, and the model's file tells of {expected}: they are not "
        "of one checkpoint; copy it again, or use another one"
    )
