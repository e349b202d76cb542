"""The last losses of a process, from which an alert sees that the loss jumps."""

from __future__ import annotations

import math
import statistics
from collections import deque

NEWEST = 3
BEFORE = 64
_DEVIATIONS = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""


class LossWindow:
    """The newest three losses and the 64 before them."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=BEFORE + NEWEST)

    def add(self, loss: float) -> None:
        """The loss of one more step. One that is not finite is another alert's."""
        if math.isfinite(loss):
            self._losses.append(float(loss))

    def numbers(self) -> dict[str, float] | None:
        """`least` of the newest three; `median` and `spread`, robust for a standard deviation, of those before. None
        until there are as many: the first losses after a restart are no measure."""
        if len(self._losses) < BEFORE + NEWEST:
            return None
        losses = list(self._losses)
        before, newest = losses[:BEFORE], losses[BEFORE:]
        median = statistics.median(before)
        spread = _DEVIATIONS * statistics.median(abs(loss - median) for loss in before)
        return {"least": min(newest), "median": median, "spread": spread}
