"""The weights of a fragment: read where they lie, if that can be, else copied; and how far they are from the anchor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from geocomm.core.native import native
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.host_memory import host_empty
from geocomm.sync.local_steps.model.parameter_view import ParameterView
from geocomm.sync.local_steps.model.site_group import SiteGroup

MOST_CYCLES = 5
"""The most cycles of steps that one delta counts for: the outer momentum takes a longer one so far that the loss
rises. A site that counts in one round of five does not fall behind. Measured:
benchmarks/results/single-measurements.md."""
MOST_WEIGHT = 2
"""In cycles: a longer delta is larger already."""


@dataclass(frozen=True)
class SiteWeights:
    """The site's weights at the rank that owns the fragment: float32, on the CPU, contiguous."""

    pieces: Sequence[torch.Tensor]
    """One after the other."""
    of_model: bool
    """Whether they are the model's own memory, so that what is written to them needs no copy back."""


def weights_of(ranks: SiteGroup, view: ParameterView, fragment: Fragment) -> SiteWeights | None:
    """The site's weights now; None at ranks that do not own the fragment. Collective over the ranks of the site."""
    if ranks.size == 1:
        pieces = [view.memory(part) for part in fragment.ranges]
        there = [piece for piece in pieces if piece is not None]
        if len(there) == len(pieces):
            return SiteWeights(there, of_model=True)
    values = ranks.gather(view, fragment)
    return None if values is None else SiteWeights([values], of_model=False)


@dataclass(frozen=True)
class SiteDelta:
    """What a site has learned since the last anchor of a fragment."""

    values: torch.Tensor
    """anchor - local: float32, 1-D, in memory of its own."""
    squared_norm: float | None
    """Its squared L2 norm; None where not all of it is finite."""
    local: torch.Tensor | None
    """The weights that it was taken of, if they were to be kept."""


def take_delta(anchor: torch.Tensor, local: SiteWeights, *, keep: bool) -> SiteDelta:
    """The difference of a fragment's anchor and the site's weights, in one pass. keep: return these weights, too.

    Where `local` is a copy, its memory is taken for the one or for the other.
    """
    copied = None if local.of_model else local.pieces[0]
    values = copied if copied is not None and not keep else host_empty(anchor.numel(), pinned=False)
    kept = host_empty(anchor.numel(), pinned=False) if keep and copied is None else None
    squares = native().outer_delta(anchor, list(local.pieces), values, kept)
    norm = squares if math.isfinite(squares) else None
    return SiteDelta(values, norm, (copied if kept is None else kept) if keep else None)


def shorten(delta: SiteDelta, anchor: torch.Tensor, share: float) -> None:
    """Have a delta end at a share, 0 to 1, of its way, in place; its norm stays as it was. The weights that it was kept
    with are then those at that point, so that "carry" leaves the rest in the site's weights.
    """
    if share < 1:
        delta.values.mul_(share)
        if delta.local is not None:
            torch.sub(anchor, delta.values, out=delta.local)
