"""Which bytes of a version stand for which tensors: a layout, which all versions of one publisher share.

Ranks pack what they hold. A *box* is a rectangle of a tensor; a *part* is boxes of one dtype, end to end. A part is
what is packed, sent and compared as one. A layout is hostile until it is validated.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator

from geocomm.codecs.safetensors_header import DTYPE_NAMES
from geocomm.core.records import MANY, MAX_TEXT, Record

PART_BYTES = 128 << 20
"""Of raw elements in a part, at most, as this version writes them."""
_MOST_PART_BYTES = 1 << 30
_MOST_DIMENSIONS = 16
_MOST_COMPARED = 4_000_000
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPE_NAMES}
"""By the names that layouts have for them."""
_AS_THEY_ARE = (torch.bfloat16, torch.float16, torch.float32)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_Extent = Annotated[int, Field(ge=0, lt=2**48)]
_Extents = Annotated[tuple[_Extent, ...], Field(max_length=_MOST_DIMENSIONS)]


class TensorShape(NamedTuple):
    """A tensor of the model."""

    name: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=MAX_TEXT)]
    dtype: str
    shape: _Extents


class Box(NamedTuple):
    """A rectangle of a tensor."""

    tensor: Annotated[int, Field(ge=0)]
    """Its place among the tensors of the layout."""
    offsets: _Extents
    sizes: _Extents

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A view of what it stands for."""
        return tensor[tuple(slice(at, at + size) for at, size in zip(self.offsets, self.sizes, strict=True))]


class WeightPart(NamedTuple):
    """Boxes of one dtype, end to end, each with its last dimension the fastest."""

    dtype: str
    boxes: Annotated[tuple[Box, ...], MANY]

    @property
    def elements(self) -> int:
        return sum(box.elements for box in self.boxes)

    @property
    def raw_bytes(self) -> int:
        return self.elements * DTYPES[self.dtype].itemsize

    def empty(self) -> torch.Tensor:
        """Memory for its elements, 1-D."""
        return torch.empty(self.elements, dtype=DTYPES[self.dtype])

    def cut(self, flat: torch.Tensor) -> Iterator[tuple[Box, torch.Tensor]]:
        """Each box, and its elements in the part's memory, in the box's shape."""
        begin = 0
        for box in self.boxes:
            yield box, flat[begin : begin + box.elements].view(box.sizes)
            begin += box.elements


class WeightLayout(Record):
    """The tensors of a model, and the parts that they are packed in."""

    geocomm_layout: Literal[1] = 1
    tensors: Annotated[tuple[TensorShape, ...], MANY]
    parts: Annotated[tuple[WeightPart, ...], MANY]

    @model_validator(mode="after")
    def _covers_each_tensor_once(self) -> Self:
        names = {tensor.name for tensor in self.tensors}
        if len(names) != len(self.tensors) or "__metadata__" in names:
            raise ValueError("two tensors have one name, or one is called __metadata__")
        for tensor in self.tensors:
            if tensor.dtype not in DTYPES or math.prod(tensor.shape) >= 2**50:
                raise ValueError(f"{tensor.name[:80]}: dtype {tensor.dtype[:20]}, shape {[*tensor.shape]}")
        by_tensor: defaultdict[int, list[Box]] = defaultdict(list)
        for part in self.parts:
            for box in part.boxes:
                if box.tensor >= len(self.tensors):
                    raise ValueError("a box is of no tensor")
                _require_inside(box, part.dtype, self.tensors[box.tensor])
                by_tensor[box.tensor].append(box)
            if part.dtype not in DTYPES or not 0 < part.raw_bytes <= _MOST_PART_BYTES:
                raise ValueError("a part has no elements, or too many")
        compared = 0
        for index, tensor in enumerate(self.tensors):
            compared += _require_cover(by_tensor[index], tensor, _MOST_COMPARED - compared)
        return self

    @property
    def raw_bytes(self) -> int:
        """Of all tensors."""
        return sum(part.raw_bytes for part in self.parts)


def _require_inside(box: Box, dtype: str, tensor: TensorShape) -> None:
    inside = len(box.offsets) == len(box.sizes) == len(tensor.shape) and all(
        at + size <= extent for at, size, extent in zip(box.offsets, box.sizes, tensor.shape, strict=True)
    )
    if not inside or not box.elements or dtype != tensor.dtype:
        raise ValueError(f"a box is no part of {tensor.name[:80]}")


def _require_cover(boxes: list[Box], tensor: TensorShape, most: int) -> int:
    """ValueError unless the boxes have each element once. Returns how many pairs had to be compared."""
    if sum(box.elements for box in boxes) != math.prod(tensor.shape):
        raise ValueError(f"the parts have not all of {tensor.name[:80]}")
    compared, near = 0, list[Box]()
    for box in sorted(boxes, key=lambda one: one.offsets):
        near = [one for one in near if one.offsets[0] + one.sizes[0] > box.offsets[0]] if box.offsets else near
        compared += len(near)
        if compared > most:
            raise ValueError(f"{tensor.name[:80]} is cut too finely")
        if any(_overlap(one, box) for one in near):
            raise ValueError(f"the parts have a piece of {tensor.name[:80]} twice")
        near.append(box)
    return compared


def _overlap(one: Box, other: Box) -> bool:
    sides = zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    return all(a < b + b_size and b < a + a_size for a, a_size, b, b_size in sides)


def coded(flat: torch.Tensor) -> torch.Tensor:
    """A part's memory as the codecs take it: bytes of other dtypes as integers of the same width."""
    return flat if flat.dtype in _AS_THEY_ARE else flat.view(_WORDS[flat.dtype.itemsize])


def pack_boxes(tensors: Sequence[TensorShape], boxes: Iterable[Box], part_bytes: int) -> list[WeightPart]:
    """Parts of at most so many bytes for these boxes, those of one dtype after each other."""
    by_dtype: defaultdict[str, list[Box]] = defaultdict(list)
    for box in boxes:
        if box.elements:
            dtype = tensors[box.tensor].dtype
            by_dtype[dtype] += _split(box, max(1, part_bytes // DTYPES[dtype].itemsize))
    parts: list[WeightPart] = []
    for dtype, found in by_dtype.items():
        most, inside, elements = max(1, part_bytes // DTYPES[dtype].itemsize), list[Box](), 0
        for box in found:
            if inside and elements + box.elements > most:
                parts.append(WeightPart(dtype, tuple(inside)))
                inside, elements = [], 0
            inside.append(box)
            elements += box.elements
        parts.append(WeightPart(dtype, tuple(inside)))
    return parts


def _split(box: Box, most: int) -> Iterator[Box]:
    """Boxes of at most so many elements, which lie in the same order."""
    if box.elements <= most:
        yield box
        return
    axis = next(at for at, size in enumerate(box.sizes) if size > 1)
    rows = max(1, most // math.prod(box.sizes[axis + 1 :]))
    begin, size = box.offsets[axis], box.sizes[axis]
    for at in range(0, size, rows):
        offsets, sizes = list(box.offsets), list(box.sizes)
        offsets[axis], sizes[axis] = begin + at, min(rows, size - at)
        yield from _split(Box(box.tensor, tuple(offsets), tuple(sizes)), most)
