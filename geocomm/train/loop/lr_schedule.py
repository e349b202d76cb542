"""Learning rate over time: linear warm-up, cosine decay, constant tail."""

from __future__ import annotations

import math


def learning_rate(step: int, peak: float, warmup_steps: int, decay_steps: int, final_fraction: float) -> float:
    """Rate of optimizer step `step`, counted from 0.

    Step `warmup_steps` is the first at `peak`; from step `decay_steps` on it is `peak * final_fraction`.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / (decay_steps - warmup_steps))
    return peak * (final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + math.cos(math.pi * progress)))
