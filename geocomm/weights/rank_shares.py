"""What each rank has of a tensor that is trained, and publishes: all of a plain one, a rectangle of a DTensor, a run of
elements under ZeRO 3. Nothing is gathered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.zero_cuts import is_cut, own_run, whole_shape
from geocomm.weights.weight_layout import Box


@dataclass(frozen=True)
class RankShare:
    """Boxes of one tensor, and where this rank has them."""

    boxes: tuple[Box, ...]
    begin: int | None = None
    """Of a run of elements: the first of them in the whole tensor; None: the one box is all that this rank has."""
    shape: tuple[int, ...] = ()
    """Of the whole tensor that a run is of."""

    def view(self, box: Box, local: torch.Tensor) -> torch.Tensor:
        """The elements of a piece of one of these boxes; `local` is what this rank has of the tensor now."""
        if self.begin is not None:
            at = _place(box.offsets, self.shape) - self.begin
            return local[at : at + box.elements].view(box.sizes)
        (own,) = self.boxes
        return Box(0, tuple(a - b for a, b in zip(box.offsets, own.offsets, strict=True)), box.sizes).of(local)


_NOTHING = RankShare(())


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether ranks have shards of it."""
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of it, as a plain tensor; of a run of elements a 1-D one, which may be longer."""
    untyped: Any = tensor
    if is_cut(tensor):
        return untyped.ds_tensor.detach().view(-1)
    return untyped.to_local().detach() if is_dtensor(tensor) else tensor.detach()


def own_share(index: int, name: str, tensor: torch.Tensor, *, leads: bool) -> RankShare:
    """What this rank publishes of the `index`-th tensor: its shard, where no rank before it has the same; of a plain
    tensor all, where it leads. Raises InvalidArgumentError for shards that cannot be published."""
    if is_cut(tensor):
        return _own_run(index, name, tensor)
    if not is_dtensor(tensor):
        box: Box | None = Box(index, (0,) * tensor.dim(), tuple(tensor.shape)) if leads else None
    else:
        box = _own_rectangle(index, name, tensor)
    return RankShare((box,)) if box is not None and box.elements else _NOTHING


def publishing_ranks(tensors: Mapping[str, torch.Tensor]) -> list[int]:
    """The ranks that have shards of these, in order; empty: all are plain."""
    found: set[int] = set()
    for tensor in tensors.values():
        untyped: Any = tensor
        if is_cut(tensor):
            found.update(dist.get_process_group_ranks(untyped.ds_process_group))
        elif is_dtensor(tensor):
            found.update(untyped.device_mesh.mesh.flatten().tolist())
    return sorted(found)


def _own_run(index: int, name: str, tensor: torch.Tensor) -> RankShare:
    shape, (begin, end) = whole_shape(tensor), own_run(tensor)
    if local_part(tensor).numel() < end - begin:
        raise InvalidArgumentError(f"weights: {name} is not in memory; publish without offload_param to NVMe")
    return RankShare(tuple(Box(index, *one) for one in _boxes_of_run(shape, begin, end)), begin, shape)


def _boxes_of_run(shape: tuple[int, ...], begin: int, end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and sizes of the fewest rectangles that have elements [begin, end) of a tensor, in their order: the end
    of a row, whole rows, the beginning of one; and of rows that are tensors themselves, the same again."""
    if begin >= end:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    first, last = -(-begin // row), end // row
    if first > last:  # inside of one row
        yield from _in_row(shape, last, begin - last * row, end - last * row)
        return
    yield from _in_row(shape, first - 1, begin - (first - 1) * row, row)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    yield from _in_row(shape, last, 0, end - last * row)


def _in_row(shape: tuple[int, ...], at: int, begin: int, end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for offsets, sizes in _boxes_of_run(shape[1:], begin, end):
        yield (at, *offsets), (1, *sizes)


def _place(offsets: Sequence[int], shape: Sequence[int]) -> int:
    """Which element of a tensor in one row these are."""
    place = 0
    for at, size in zip(offsets, shape, strict=True):
        place = place * size + at
    return place


def _own_rectangle(index: int, name: str, tensor: torch.Tensor) -> Box | None:
    untyped: Any = tensor
    coordinate = untyped.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    offsets, sizes = [0] * tensor.dim(), list(tensor.shape)
    for at, parts, placement in _in_order_of_cuts(name, coordinate, untyped.device_mesh.shape, untyped.placements):
        if placement.is_replicate():
            if at:
                return None
            continue
        # As torch.chunk cuts: the last ranks may have less, or nothing.
        dimension: int = placement.dim
        whole, most = sizes[dimension], -(-sizes[dimension] // parts)
        begin = min(whole, most * at)
        offsets[dimension] += begin
        sizes[dimension] = min(whole, begin + most) - begin
    local = local_part(tensor)
    if tuple(local.shape) != tuple(sizes):
        raise InvalidArgumentError(f"weights: this rank has {[*local.shape]} of {name}, and its shard is {sizes}")
    return Box(index, tuple(offsets), tuple(sizes))


def _in_order_of_cuts(
    name: str, coordinate: Sequence[int], extents: Sequence[int], placements: Sequence[Any]
) -> list[tuple[int, int, Any]]:
    """This rank's coordinate, the number of parts and the placement for each dimension of a mesh, in the order in which
    a tensor is cut: a strided shard, as FSDP2 over tensor parallelism has it, comes after those to its right."""
    cuts = list(zip(coordinate, extents, placements, strict=True))
    first, strided = list[tuple[int, int, Any]](), list[tuple[int, int, Any]]()
    for number, cut in enumerate(cuts):
        placement, kind = cut[2], type(cut[2]).__name__
        if kind in ("Replicate", "Shard"):
            first.append(cut)
        elif kind == "_StridedShard" and placement.split_factor == _cuts_of(placement.dim, cuts[number + 1 :]):
            strided.append(cut)
        else:
            raise InvalidArgumentError(
                f"weights: {name} is placed as {placement}; what can be published is replicated, sharded, or cut by "
                "FSDP2 over tensor parallelism"
            )
    return first + strided


def _cuts_of(dimension: int, cuts: Sequence[tuple[int, int, Any]]) -> int:
    """The number of parts that shards cut this dimension of a tensor into; 0: one of them is no plain shard."""
    kinds = {type(one[2]).__name__ for one in cuts}
    if not kinds <= {"Replicate", "Shard"}:
        return 0
    shards = [one for one in cuts if not one[2].is_replicate()]
    return math.prod(parts for _, parts, placement in shards if placement.dim == dimension)
