"""Powers of two near the usual magnitude of each element's gradient, learned from the reduced gradients.

Optimizers like Adam divide every element by its root mean square, so that small gradients count as much as large ones;
a quantizer whose error is alike for all elements of a block drowns the small ones. What the codec gets is therefore
divided by these scales, and multiplied again.

All ranks that hold an element must have the same scale for it, bit for bit, whatever their processors and their parts
of the buffer are. So scales come from the reduced gradients, which are equal on all ranks, by operations that are
rounded once each or exact, and from the whole buffer only by a sum of integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from geocomm.core.native import native
from geocomm.sync.gradients.device_order import keep_for_stream
from geocomm.sync.gradients.named_values import Layout

_FIRST = 16
"""Steps of a bucket in which every gradient is looked at; afterwards one in EVERY."""
_EVERY = 4
_LEAST_WEIGHT = 0.05
"""The weight of a gradient in the mean square."""
_FLOOR_BITS = 1
"""Smallest scale, above the geometric mean of the whole buffer's magnitudes: where every element has its own, the large
gradients, in which there are more bits, get too few."""
_EXPONENT_BITS = 23
_EXPONENT_MASK = 0x7F800000
_EXPONENT_BIAS = 127
_CPU = torch.device("cpu")


@dataclass
class _ScaleSlot:
    layout: Layout
    span: tuple[int, int]
    seen: int
    mean_square: torch.Tensor
    scale: torch.Tensor


class ElementScales:
    """The scales of a rank's part of each bucket. Not thread-safe. Memory: two float32 for each element held."""

    def __init__(self) -> None:
        self._slots: dict[int, _ScaleSlot] = {}

    def scale_of(
        self, bucket: int, layout: Layout, span: tuple[int, int], device: torch.device = _CPU
    ) -> torch.Tensor | None:
        """float32 on `device`, one for each element of `span`; None until a gradient of this layout was seen."""
        slot = self._slots.get(bucket)
        if slot is None or slot.layout != layout or slot.span != span or slot.scale.device != device:
            empty = torch.zeros(span[1] - span[0], device=device)
            slot = self._slots[bucket] = _ScaleSlot(layout, span, 0, empty, torch.ones_like(empty))
        return slot.scale if slot.seen else None

    def observe(self, bucket: int, reduced: torch.Tensor, finite: torch.Tensor | None = None) -> None:
        """The bucket's gradient after an all-reduce: flat, finite, equal on all ranks, on the device of its scales.

        Does not wait for the device. finite: a bool there, of no dimensions, in place of the caller's word that the
        gradient is finite; where it is not, nothing is learned, and `forget_last` has to follow.
        """
        slot = self._slots[bucket]
        slot.seen += 1
        keep_for_stream([slot.mean_square, slot.scale])
        if slot.seen > _FIRST and slot.seen % _EVERY:
            return
        weight = max(_LEAST_WEIGHT, 1 / slot.seen)
        if finite is None and reduced.device == _CPU:
            native().learn_scales(reduced.float(), slot.span[0], weight, _FLOOR_BITS, slot.mean_square, slot.scale)
        else:
            learn_scales(reduced, slot.span[0], weight, _FLOOR_BITS, slot.mean_square, slot.scale, finite)

    def forget_last(self, bucket: int) -> None:
        """The last gradient that `observe` got was not finite."""
        if bucket in self._slots:
            self._slots[bucket].seen -= 1

    def scale(self, factor: float) -> None:
        """Gradients are `factor` times what they were from now on."""
        for slot in self._slots.values():
            slot.mean_square.mul_(factor * factor)

    def forget(self) -> None:
        """Start anew."""
        self._slots.clear()


def learn_scales(
    values: torch.Tensor,
    first: int,
    weight: float,
    floor_bits: int,
    mean_square: torch.Tensor,
    scale: torch.Tensor,
    finite: torch.Tensor | None = None,
) -> None:
    """What the native function of this name does (element_passes.h), of tensors on any device.

    Bit for bit the same. finite: where it is false, nothing.
    """
    own = values[first : first + mean_square.numel()].float()
    # No fused operations: they would be rounded otherwise where a processor has them.
    learned = mean_square.mul(1 - weight).add_(own.mul(own).mul_(weight))
    mean_square.copy_(_where(finite, learned, mean_square))
    # Half the exponent is the root's.
    bits = mean_square.view(torch.int32).bitwise_right_shift(1)
    bits.add_((_EXPONENT_BIAS << _EXPONENT_BITS) >> 1).bitwise_and_(_EXPONENT_MASK)
    floor = _mean_exponent(values) + floor_bits
    chosen = torch.maximum(bits, floor << _EXPONENT_BITS, out=bits).view(torch.float32)
    scale.copy_(_where(finite, chosen, scale))


def _where(choice: torch.Tensor | None, values: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return values if choice is None else torch.where(choice, values, others)


def _mean_exponent(values: torch.Tensor) -> torch.Tensor:
    """The mean exponent of what is not zero, biased as in float32; the bias where all are. int32, of no dimensions."""
    exponents = values.float().view(torch.int32).bitwise_right_shift(_EXPONENT_BITS).bitwise_and_(0xFF)
    count = exponents.count_nonzero()
    mean = exponents.sum().div(count.clamp_min(1), rounding_mode="floor")
    return torch.where(count > 0, mean, _EXPONENT_BIAS).to(torch.int32)
