"""Learning rates by the step of the run, as people have them."""

from __future__ import annotations

import random
from collections.abc import Callable


def constant(step: int) -> float:
    """A learning rate."""
    return 0.001


def any_schedule(chance: random.Random) -> Callable[[int], float]:
    """One of several kinds."""
    kind, when = chance.choice(["constant", "step", "warm-up", "decay"]), chance.randint(5, 120)
    return {
        "constant": constant,
        "step": lambda step: 0.001 if step < when else 0.0001,
        "warm-up": lambda step: 0.001 * min(1.0, (step + 1) / when),
        "decay": lambda step: 0.001 * 0.98**step,
    }[kind]
