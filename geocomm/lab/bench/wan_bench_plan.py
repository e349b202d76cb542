"""What the workers of the all-reduce benchmark are to measure. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from pydantic import NonNegativeInt, PositiveInt, TypeAdapter
from pydantic.dataclasses import dataclass


@dataclass(frozen=True)
class WanBenchPlan:
    """What to measure. Every rank gets the same."""

    cases: tuple[str, ...]
    """"gloo", "gloo8", or a geocomm codec."""
    sizes_bytes: tuple[PositiveInt, ...]
    repeats: PositiveInt
    """Valid operations wanted of each case and size."""
    warmup: NonNegativeInt
    pause_s: float
    """Between the barrier and the operation."""
    interleave: bool
    """Alternate the cases, in turning order, rather than finish one before the next."""
    seed: int
    ranks_per_site: PositiveInt = 1

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`; pydantic's ValidationError for anything else."""
        return TypeAdapter(cls).validate_json(text)

    def to_json(self) -> str:
        """The plan as JSON, for the workers."""
        return TypeAdapter(type(self)).dump_json(self).decode()

    def rounds(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """The sizes, each with the cases that are measured together."""
        for size in self.sizes_bytes:
            for group in (self.cases,) if self.interleave else ((case,) for case in self.cases):
                yield size, group
