"""The step of the outer optimizer, defined for each element by single float32 operations: equal bits at every site."""

from __future__ import annotations

import math

import torch

from geocomm.core.native import native
from geocomm.sync.local_steps.settings.nesterov import Nesterov

_CACHED_ELEMS = 1 << 16
"""Elements of a part of the tensors: it stays in a core's cache, so that memory is read once."""


def outer_step(
    outer: Nesterov, anchor: torch.Tensor, momentum: torch.Tensor | None, delta: torch.Tensor
) -> tuple[float, float]:
    """Move `anchor` by the averaged `delta`, in place; all are float32 on the CPU, 1-D, of the same length.

    Returns the L2 norms of the move and of `delta`. They are for people, and no part of what sites compare.

    momentum: b, zeros at first; None where the optimizer has none. For each element, every operation rounded by itself
    to float32, in this order:

        b = mu * b + delta;  anchor = anchor - lr * (mu * b + delta)        without momentum: anchor - lr * delta

    Products and sums are separate operations and never fused, and subnormal numbers are kept. So vector widths and
    machines make no difference.
    """
    moved, given = native().outer_step(outer.lr, outer.momentum, delta, anchor, momentum)
    return math.sqrt(moved), math.sqrt(given)


def take_back_momentum(outer: Nesterov, anchor: torch.Tensor, momentum: torch.Tensor, part: float) -> None:
    """Undo a part, 0 to 1, of what the momentum added to the last step: anchor = anchor + part * lr * mu * b, in place.

    With lr 1 all of it leads to the mean of the sites' weights in the last round, to rounding. The product of the three
    numbers is taken first; then operations are rounded one by one, as in `outer_step`.
    """
    factor = part * outer.lr * outer.momentum
    if factor:
        for start in range(0, anchor.numel(), _CACHED_ELEMS):
            span = slice(start, start + _CACHED_ELEMS)
            anchor[span].add_(momentum[span].mul(factor))
