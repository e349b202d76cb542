"""The outer optimizer of local steps, as numbers. `outer_step` takes its steps."""

from __future__ import annotations

from dataclasses import dataclass

from geocomm.core.environment import refusal


@dataclass(frozen=True)
class Nesterov:
    """The outer optimizer: SGD with Nesterov momentum on averaged deltas (DiLoCo, arXiv 2311.08105, 2503.09799).

    Raises:
        InvalidArgumentError: `lr` or `momentum` is out of its range.

    Example:
        Less momentum than the preset has, as Muon inside wants it:

            settings = geocomm.LocalSettings(outer=geocomm.Nesterov(lr=1.0, momentum=0.4))
    """

    lr: float
    """Outer learning rate, above 0 and at most 10."""
    momentum: float
    """From 0 on and below 1. 0: plain averaging steps, and no momentum is kept."""

    def __post_init__(self) -> None:
        if not 0 < self.lr <= 10:
            raise refusal(f"the outer lr is {self.lr}; it must be above 0 and at most 10")
        if not 0 <= self.momentum < 1:
            raise refusal(f"the outer momentum is {self.momentum}; it must be from 0 on and below 1")
