"""What a reader brings to a version: tensors in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from typing_extensions import override

from geocomm.core.errors import DataError, InvalidArgumentError
from geocomm.weights.stream_version import WeightVersion
from geocomm.weights.trained_tensors import Tensors, local_part, named_tensors, sent_shape
from geocomm.weights.weight_layout import DTYPES, TensorShape, WeightLayout, WeightPart


class ReaderTarget(ABC):
    """Tensors that have a version, or none, and get another one whole or not at all. Methods raise OSError, and its
    kind DataError."""

    version: WeightVersion | None = None
    """What they are, as far as this reader knows."""
    _new: dict[int, torch.Tensor]
    """The tensors of the version that is put, by their place in its layout."""

    @abstractmethod
    def _current(self) -> dict[str, torch.Tensor]:
        """The tensors as they are now, by name."""

    def gather(self, layout: WeightLayout, part: WeightPart) -> torch.Tensor:
        """The part's elements as they are now, 1-D, in memory of its own."""
        flat, current = part.empty(), self._current()
        for box, target in part.cut(flat):
            target.copy_(box.of(current[layout.tensors[box.tensor].name]))
        return flat

    @abstractmethod
    def begin(self, layout: WeightLayout) -> None:
        """Make room for another version, beside what is there. DataError: it is of another model."""

    def put(self, part: WeightPart, flat: torch.Tensor) -> None:
        """A part of that version."""
        for box, source in part.cut(flat):
            box.of(self._new[box.tensor]).copy_(source)

    @abstractmethod
    def commit(self, version: WeightVersion) -> None:
        """All parts are there: from now on the tensors are that version."""

    @abstractmethod
    def drop(self) -> None:
        """Forget what was put since `begin`."""

    @abstractmethod
    def close(self) -> None:
        """Let others have it."""


class TensorsInPlace(ReaderTarget):
    """A module's tensors, or those of a dict."""

    def __init__(self, source: Tensors, swap: Callable[[int, Callable[[], None]], None] | None) -> None:
        """swap: as in `WeightReader`."""
        self._swap = swap
        self._tensors = named_tensors(source)
        for name, tensor in self._tensors.items():
            if local_part(tensor) is not tensor and hasattr(tensor, "placements"):
                raise InvalidArgumentError(f"weights: {name} is a DTensor, and a reader fills whole tensors")
        self._shapes = {name: sent_shape(name, tensor, None) for name, tensor in self._tensors.items()}
        self._new = {}

    @override
    def _current(self) -> dict[str, torch.Tensor]:
        return self._tensors

    @override
    def begin(self, layout: WeightLayout) -> None:
        require_same(layout.tensors, self._shapes.values())
        self._order = [one.name for one in layout.tensors]
        self._new = {at: torch.empty(one.shape, dtype=DTYPES[one.dtype]) for at, one in enumerate(layout.tensors)}

    @override
    def commit(self, version: WeightVersion) -> None:
        if self._swap is None:
            self._copy()
        else:
            self._swap(version.number, self._copy)
        self.version = version
        self.drop()

    def _copy(self) -> None:
        with torch.no_grad():
            for name, new in zip(self._order, self._new.values(), strict=True):
                self._tensors[name].copy_(new)

    @override
    def drop(self) -> None:
        self._new = {}

    @override
    def close(self) -> None:
        self.drop()


def require_same(theirs: Sequence[TensorShape], own: Any) -> None:
    """DataError unless the tensors of a version are these, in any order. What is float32 here may be a float of 16 bits
    there, of which it takes each value."""
    known = {one.name: one for one in own}
    names = {one.name for one in theirs}
    if missing := sorted(names - known.keys()):
        raise DataError(f"the stream is of another model: it has {missing[0][:200]}, and here is none")
    if extra := sorted(known.keys() - names):
        raise DataError(f"the stream is of another model: it has no {extra[0][:200]}")
    for one in theirs:
        here = known[one.name]
        is_wider = here.dtype == "float32" and one.dtype in ("bfloat16", "float16")
        if here != (one._replace(dtype="float32") if is_wider else one):
            raise DataError(
                f"the stream is of another model: {one.name[:200]} is {one.dtype} {[*one.shape]} there, and "
                f"{here.dtype} {[*here.shape]} here"
            )
