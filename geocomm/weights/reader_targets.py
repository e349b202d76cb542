"""What a reader brings to a version: tensors in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import torch
from typing_extensions import override

from geocomm.core.errors import DataError, InvalidArgumentError
from geocomm.core.zero_cuts import is_cut
from geocomm.weights.rank_shares import is_dtensor
from geocomm.weights.stream_version import WeightVersion
from geocomm.weights.trained_tensors import Tensors, named_tensors, sent_shape
from geocomm.weights.weight_layout import DTYPES, TensorShape, WeightLayout, WeightPart


class ReaderTarget(ABC):
    """Tensors that have a version, or none, and get another one whole or not at all. Methods raise OSError, and its
    kind DataError."""

    version: WeightVersion | None = None
    """What they are, as far as this reader knows."""
    _new: Mapping[str, torch.Tensor] = MappingProxyType({})
    """The tensors of the version that is put."""

    @abstractmethod
    def _current(self) -> Mapping[str, torch.Tensor]:
        """The tensors as they are now."""

    @abstractmethod
    def require_fit(self, layout: WeightLayout) -> None:
        """DataError: it is of another model."""

    @abstractmethod
    def begin(self, layout: WeightLayout) -> None:
        """Make room for another version, beside what is there."""

    def gather(self, layout: WeightLayout, part: WeightPart) -> torch.Tensor:
        """The part's elements as they are now, 1-D, in memory of its own."""
        flat, current = part.empty(), self._current()
        for box, target in part.cut(flat):
            target.copy_(box.of(current[layout.tensors[box.tensor].name]))
        return flat

    def put(self, layout: WeightLayout, part: WeightPart, flat: torch.Tensor) -> None:
        """A part of that version."""
        for box, source in part.cut(flat):
            box.of(self._new[layout.tensors[box.tensor].name]).copy_(source)

    @abstractmethod
    def commit(self, version: WeightVersion) -> None:
        """All parts are there: from now on the tensors are that version."""

    def drop(self) -> None:
        """Forget what was put since `begin`."""
        self._new = {}

    def close(self) -> None:
        """Let others have it."""
        self._new = {}


class TensorsInPlace(ReaderTarget):
    """A module's tensors, or those of a dict."""

    def __init__(self, source: Tensors, swap: Callable[[int, Callable[[], None]], None] | None) -> None:
        """swap: as in `WeightReader`."""
        self._swap = swap
        self._tensors = named_tensors(source)
        for name, tensor in self._tensors.items():
            if is_dtensor(tensor) or is_cut(tensor):
                raise InvalidArgumentError(f"weights: {name} is cut over ranks, and a reader fills whole tensors")
        self._shapes = [sent_shape(name, tensor, None) for name, tensor in self._tensors.items()]

    @override
    def _current(self) -> Mapping[str, torch.Tensor]:
        return self._tensors

    @override
    def require_fit(self, layout: WeightLayout) -> None:
        require_same(layout.tensors, self._shapes)

    @override
    def begin(self, layout: WeightLayout) -> None:
        self._new = {one.name: torch.empty(one.shape, dtype=DTYPES[one.dtype]) for one in layout.tensors}

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
            for name, new in self._new.items():
                self._tensors[name].copy_(new)


def require_same(theirs: Sequence[TensorShape], own: Iterable[TensorShape]) -> None:
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
