"""The average of the sites' deltas, defined element by element, so that every site gets equal bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from geocomm.core.native import native
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.settings.local_settings import Averaging


def average_deltas(
    how: Averaging,
    fragment: Fragment,
    deltas: Sequence[torch.Tensor],
    weights: Sequence[float],
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The average of the sites' deltas of a fragment: float32, 1-D, in the order of the sites.

    weights: one for each delta, 0 or more, not all 0. how: "mean" and "auto"; "radial", see `radial_directional`.
    out: where it is written to, none of `deltas`; new memory without it.
    """
    counted = [(delta, weight) for delta, weight in zip(deltas, weights, strict=True) if weight]
    total = math.fsum(weight for _, weight in counted)
    shares = [(delta, weight / total) for delta, weight in counted]
    average = torch.empty_like(deltas[0]) if out is None else out
    if is_mean(how):
        return _mean(shares, average)
    for part, span in fragment.spans():
        here = [(delta[span], share) for delta, share in shares]
        if part.table:
            _mean(here, average[span])
        else:
            average[span] = radial_directional(here)
    return average


def is_mean(how: Averaging) -> bool:
    """Whether the average of deltas is their mean."""
    return how != "radial"


def radial_directional(shares: Sequence[tuple[torch.Tensor, float]]) -> torch.Tensor:
    """The mean length times the mean direction of deltas of one tensor, each with its share (Decoupled DiLoCo,
    arXiv 2604.21428).

    A plain mean of M nearly orthogonal deltas is shorter by the square root of M than each of them; this average is
    not. With eight sites it cost 1.5 to 4 points of the loss more than the mean (benchmarks/results/local-gap.md).
    """
    lengths = [_norm(delta) for delta, _ in shares]
    length = math.fsum(share * one for (_, share), one in zip(shares, lengths, strict=True))
    turned = [(delta, share / one) for (delta, share), one in zip(shares, lengths, strict=True) if one]
    if not turned:
        return torch.zeros_like(shares[0][0])
    direction = _mean(turned, torch.empty_like(turned[0][0]))
    norm = _norm(direction)
    return direction.mul_(length / norm) if norm else direction


def _mean(shares: Sequence[tuple[torch.Tensor, float]], total: torch.Tensor) -> torch.Tensor:
    """The sum of each delta times its share, in `total`: products and sums apart, in the order of the sites."""
    native().outer_mean([delta for delta, _ in shares], [share for _, share in shares], total)
    return total


def _norm(values: torch.Tensor) -> float:
    """The length, by a sum whose order is defined: halves are added until one number is left.

    `torch.sum` and `torch.linalg.norm` add in an order that depends on the vector width of the machine.
    """
    squares = values.double()
    squares = squares.mul_(squares)
    while squares.numel() > 1:
        half = squares.numel() // 2
        rest = squares[2 * half :]
        squares = torch.cat([squares[:half] + squares[half : 2 * half], rest])
    return math.sqrt(float(squares)) if squares.numel() else 0.0
