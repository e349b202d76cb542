"""The outer state of a site: anchor, outer momentum and error-feedback residual of every fragment, in host memory.

The steps of the outer optimizer and merges into the site's weights are defined for each element by single float32
operations: equal bits at every site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.native import native
from geocomm.core.typed_torch import split
from geocomm.sync.local_steps.model.fragments import BYTES_PER_ELEMENT, Fragment, digest
from geocomm.sync.local_steps.model.host_memory import host_zeros, rounded_up
from geocomm.sync.local_steps.settings.local_settings import Nesterov

STATE_VERSION = 5


class AnchoredFragment:
    """The outer state of one fragment. Anchor and momentum have equal bits at every site; the residual is the site's.

    float32: 4 bytes an element for the anchor, 4 for the momentum if there is one, and 4 for the residual of each
    element that a codec compresses: 12 in all.
    """

    def __init__(self, fragment: Fragment, *, momentum: bool, residual: bool, pinned: bool) -> None:
        """Zeros, until the anchor is set. pinned: see `host_zeros`; only the anchor is ever copied to a GPU."""
        self.fragment = fragment
        self.anchor = host_zeros(fragment.numel, pinned=pinned)
        self.momentum = host_zeros(fragment.numel, pinned=False) if momentum else None
        coded = fragment.coded_elems
        self.residual = host_zeros(coded, pinned=False) if residual and coded else None
        self.version = 0
        """Outer steps that were taken."""
        self._steps = 0

    def step(self, outer: Nesterov, delta: torch.Tensor, steps: int) -> tuple[float, float]:
        """Take an outer step with the averaged delta. Returns how far the anchor moved, and the delta's length (L2).

        steps: optimizer steps of all sites together when the round began.
        """
        self.version += 1
        self._steps = steps
        return outer_step(outer, self.anchor, self.momentum, delta)

    def end(self, outer: Nesterov, mean: torch.Tensor | None, steps: int, cycle: int) -> None:
        """Take over the mean of the sites' weights for good; None: no site has trained since the last outer step.

        That step went further than the sites' mean, in the direction of the momentum. The steps after it correct that,
        and a whole cycle of them does so in full. What they have not corrected is taken back.

        steps: as in `step`. cycle: steps of all sites together between two rounds of the fragment.
        """
        self.version += 1
        if mean is not None:
            self.anchor.copy_(mean)
        if self.momentum is not None:
            corrected = min(1.0, max(0, steps - self._steps) / cycle)
            take_back_momentum(outer, self.anchor, self.momentum, 1.0 - corrected)

    @property
    def parts(self) -> list[torch.Tensor]:
        """What is equal at every site: the anchor, and the momentum if there is one; of equal sizes."""
        return [self.anchor] if self.momentum is None else [self.anchor, self.momentum]

    @property
    def state_numel(self) -> int:
        """Elements of the `parts`."""
        return len(self.parts) * self.fragment.numel

    def take(self, values: torch.Tensor, version: int) -> None:
        """Take over the `parts` of a version, one after the other: float32, of the size that they have here."""
        for part, given in zip(self.parts, split(values, self.fragment.numel), strict=True):
            part.copy_(given)
        self.version = version

    def digest(self) -> str:
        """The digest of what is equal at every site: version, anchor and momentum."""
        return digest(self.parts, str(self.version))

    def state_dict(self) -> dict[str, Any]:
        """Copies."""
        return {
            "version": self.version,
            "steps": self._steps,
            "anchor": self.anchor.clone(),
            "momentum": copy_of(self.momentum),
            "residual": copy_of(self.residual),
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise InvalidArgumentError for the state of another fragment, or for one that is damaged."""
        if int(state["version"]) < 0:
            raise InvalidArgumentError(
                f"the state of fragment {self.fragment.index} is damaged: its version is {state['version']}"
            )
        for name, own in (("anchor", self.anchor), ("momentum", self.momentum), ("residual", self.residual)):
            given = state[name]
            if (None if own is None else own.shape) != (None if given is None else given.shape):
                raise InvalidArgumentError(
                    f"the state's {name} of fragment {self.fragment.index} has {_elements(given)}, and here it has "
                    f"{_elements(own)}: codec, outer optimizer and fragments must be those of the run that was saved"
                )
            if given is not None and not given.isfinite().all():
                raise InvalidArgumentError(
                    f"the state's {name} of fragment {self.fragment.index} has NaN or Inf; take an older state"
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state that was checked."""
        self.version = int(state["version"])
        self._steps = int(state["steps"])
        for own, given in (
            (self.anchor, state["anchor"]),
            (self.momentum, state["momentum"]),
            (self.residual, state["residual"]),
        ):
            if own is not None:
                own.copy_(given)


def least_memory(owned: Sequence[Fragment], *, momentum: bool, residual: bool, keeps_local: bool) -> int:
    """Bytes of host memory that these fragments' outer state takes, with a round between two sites."""
    kept = (1 + momentum + residual) * sum(fragment.numel for fragment in owned)
    # The delta, those of both sites decoded, the new residual and, for "carry", the weights when the round began.
    # Memory is taken again by rounds of fragments of about the same size.
    one_round = (4 + keeps_local) * sum({rounded_up(fragment.numel) for fragment in owned})
    return BYTES_PER_ELEMENT * (kept + one_round)


def copy_of(values: torch.Tensor | None) -> torch.Tensor | None:
    """A copy of its own, of what there is."""
    return None if values is None else values.clone()


def _elements(values: torch.Tensor | None) -> str:
    return "none" if values is None else f"{values.numel()} elements"


CARRY = "carry"
Merge = float | Literal["carry"]


def merge_local(
    merge: Merge,
    local: torch.Tensor | Sequence[torch.Tensor],
    anchor: torch.Tensor,
    local_at_begin: torch.Tensor | None,
) -> None:
    """Turn the site's weights into those after a merge, in place; all are float32 on the CPU, of the same length.

    local: its weights now, after the steps of the overlap: one tensor or several, one after the other. anchor: the new
    one. merge: the weight of `local` in the mean of the two (Streaming DiLoCo, arXiv 2501.18512, takes 0.5); 0 takes
    over the anchor and drops the overlap's steps; "carry" adds what the overlap's steps changed to the anchor, and
    needs the weights as they were when the round began. So each step counts in one delta, however late the result is.
    """
    pieces = [local] if isinstance(local, torch.Tensor) else local
    if merge != CARRY:
        native().outer_blend(pieces, anchor, merge)
    elif local_at_begin is not None:
        native().outer_carry(pieces, anchor, local_at_begin)
    else:
        raise InvalidArgumentError("merge='carry' needs the weights as they were when the round began")


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
        anchor.add_(momentum.mul(factor))
