"""float32 values of parts of DDP's buckets, kept by parameter name, so that they outlive a layout of the buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from geocomm.sync.gradients.device_order import is_read_later

Pieces = dict[str, list[tuple[int, torch.Tensor]]]
"""Pieces by parameter: (first element in the parameter, in memory order; values)."""


class Slice(NamedTuple):
    """Where a parameter's gradient lies in a bucket; `exact`: it is not compressed."""

    name: str
    offset: int
    numel: int
    exact: bool


Layout = tuple[Slice, ...]
_CPU = torch.device("cpu")


@dataclass
class _ValueSlot:
    """Values of one bucket: of the elements [start, stop) of its buffer."""

    layout: Layout
    start: int
    stop: int
    values: torch.Tensor
    kept: torch.Tensor  # values as they were before the step
    consumed: Pieces = field(default_factory=Pieces)  # in the step


class NamedValues:
    """What a rank holds for each bucket from step to step.

    A step: `begin_step()`, `take()` for each bucket, and perhaps `undo_step()`. Values of another layout (DDP rebuilds
    its buckets after the first step), and what was loaded, wait as *pieces*: `take` moves them to where they belong,
    `leftovers` hands out those that this rank has no place for. Nothing is lost or counted twice, also when a step is
    undone.
    Not thread-safe. Memory: two float32 for each element held.
    """

    def __init__(self) -> None:
        self._slots: dict[int, _ValueSlot] = {}
        self._waiting: Pieces = {}
        self._used: set[int] = set()

    def begin_step(self) -> None:
        """What the last step did not use belongs to no bucket any more, and what it did is final."""
        if self._used:
            self._dissolve_unused()
        for slot in self._slots.values():
            slot.consumed = {}
        self._used.clear()

    def take(
        self, bucket: int, layout: Layout, span: tuple[int, int], device: torch.device = _CPU
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The values of `span` of this bucket, zeros at first, and the memory that takes all of the step's new ones.

        Both on `device`, which the host does not wait for.
        """
        slot = self._slots.get(bucket)
        if slot is None or slot.layout != layout or (slot.start, slot.stop) != span or slot.values.device != device:
            self._dissolve_unused()
            values = torch.zeros(span[1] - span[0], device=device)
            slot = self._slots[bucket] = _ValueSlot(layout, *span, values, torch.empty_like(values))
        self._used.add(bucket)
        if self._waiting:
            self._place(slot)
        for part in layout:
            if part.exact:  # what is lost there, such as the sign of a zero, is not owed
                slot.values[_within(slot, part)] = 0
        slot.kept, slot.values = slot.values, slot.kept
        return slot.kept, slot.values

    def leftovers(self, bucket: int) -> Iterator[tuple[int, torch.Tensor]]:
        """(element of the bucket's buffer, values) of pieces that `take` could not place; the caller has them then."""
        slot = self._slots[bucket]
        for part in slot.layout:
            for start, held in self._waiting.pop(part.name, ()):
                values = held.to(slot.values.device, non_blocking=True)
                slot.consumed.setdefault(part.name, []).append((start, values))
                yield part.offset + start, values

    def undo_step(self) -> None:
        """Put everything back as it was before the step; once, after the step's last `take`."""
        for bucket in self._used:
            slot = self._slots[bucket]
            slot.kept, slot.values = slot.values, slot.kept
            _add(self._waiting, slot.consumed)
            slot.consumed = {}

    def scale(self, factor: float) -> None:
        """Multiply all; between steps."""
        held = [self._waiting]
        for slot in self._slots.values():
            slot.values.mul_(factor)
            slot.kept.mul_(factor)
            held.append(slot.consumed)
        for pieces in held:
            for parts in pieces.values():
                for _, values in parts:
                    values.mul_(factor)

    def pieces(self) -> Pieces:
        """Copies, on the CPU, of everything that is not zero; between steps."""
        found = _on_host(self._waiting, copy=True)
        for slot in self._slots.values():
            _add(found, _on_host(_pieces_of(slot)))
        return found

    def load(self, pieces: Mapping[str, Sequence[tuple[int, torch.Tensor]]]) -> None:
        """Take over these pieces in place of all that was there."""
        self._slots.clear()
        self._used.clear()
        self._waiting = {
            name: [(int(start), values.float().clone()) for start, values in held] for name, held in pieces.items()
        }

    def _dissolve_unused(self) -> None:
        for bucket in [bucket for bucket in self._slots if bucket not in self._used]:
            _add(self._waiting, _pieces_of(self._slots.pop(bucket)))

    def _place(self, slot: _ValueSlot) -> None:
        for part in slot.layout:
            if part.exact:
                continue  # the codec does not see these elements
            rest: list[tuple[int, torch.Tensor]] = []
            for start, values in self._waiting.pop(part.name, ()):
                at = part.offset + start  # in the bucket
                begin = min(max(slot.start, at), at + values.numel())
                end = max(min(slot.stop, at + values.numel()), begin)
                here = values[begin - at : end - at].to(slot.values.device, non_blocking=True)
                slot.values[begin - slot.start : end - slot.start] += here
                if begin > at:
                    rest.append((start, values[: begin - at]))
                if end < at + values.numel():
                    rest.append((start + end - at, values[end - at :]))
            if rest:
                self._waiting[part.name] = rest


def _pieces_of(slot: _ValueSlot) -> Pieces:
    """Copies of what is not zero, as far as the host may look."""
    found: Pieces = {}
    for part in slot.layout:
        values = slot.values[_within(slot, part)]
        if not part.exact and values.numel() and (is_read_later(values) or values.any()):
            found[part.name] = [(max(slot.start - part.offset, 0), values.clone())]
    return found


def _on_host(pieces: Pieces, *, copy: bool = False) -> Pieces:
    """Return the pieces that are not zero."""
    found: Pieces = {}
    for name, held in pieces.items():
        here = [(start, values.to(_CPU, copy=copy)) for start, values in held if values.any()]
        if here:
            found[name] = here
    return found


def _within(slot: _ValueSlot, part: Slice) -> slice:
    """The parameter's elements in the slot's values."""
    begin = min(max(slot.start, part.offset), slot.stop)
    end = max(min(slot.stop, part.offset + part.numel), begin)
    return slice(begin - slot.start, end - slot.start)


def _add(pieces: Pieces, more: Pieces) -> None:
    for name, held in more.items():
        pieces.setdefault(name, []).extend(held)
