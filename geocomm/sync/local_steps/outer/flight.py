"""A round whose result is not merged yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from geocomm.sync.local_steps.outer.anchor import copy_of
from geocomm.sync.local_steps.outer.rounds import Average, Entry, Reduction


@dataclass(frozen=True)
class OwnersPart:
    """What the owner of the fragment has of the round."""

    local_at_begin: torch.Tensor | None
    reduction: Reduction


@dataclass(frozen=True)
class Flight:
    """A round that is under way, at one rank."""

    number: int
    fragment: int
    begun: int
    """The optimizer step after which it began."""
    finite: bool
    """Whether the site's weights were."""
    own: OwnersPart | None
    """None at ranks that do not own the fragment."""
    last: bool = False
    """Whether it is the fragment's last one, of `finish`."""

    def state_dict(self) -> dict[str, Any]:
        """Copies. Waits for the result."""
        state: dict[str, Any] = {
            "number": self.number,
            "fragment": self.fragment,
            "begun": self.begun,
            "finite": self.finite,
            "own": None,
        }
        if self.own is not None:
            average = self.own.reduction.wait()
            state["own"] = {
                "local_at_begin": copy_of(self.own.local_at_begin),
                "entry": dict(vars(average.entry)),
                "values": copy_of(average.values),
                "residual": copy_of(average.residual),
                "wire_bytes": average.wire_bytes,
            }
        return state

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Flight:
        """What was saved; its result is there."""
        own, part = state["own"], None
        if own is not None:
            average = Average(
                Entry(**own["entry"]), copy_of(own["values"]), copy_of(own["residual"]), own["wire_bytes"]
            )
            part = OwnersPart(copy_of(own["local_at_begin"]), _Arrived(average))
        return cls(state["number"], state["fragment"], state["begun"], state["finite"], part)


@dataclass(frozen=True)
class _Arrived:
    """The reduction of a round whose result came before a state was saved."""

    average: Average

    def is_done(self) -> bool:
        return True

    def wait(self) -> Average:
        return self.average
