"""Virtual time: what happens when, and what is left to chance. Equal seeds give equal chance."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable


class SimulatedTime:
    """The clock of a simulated run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        """Seconds since the run began."""
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._queued = 0

    def pass_until(self, end: float) -> None:
        """Let everything happen that is due up to `end`."""
        while self._queue and self._queue[0][0] <= end:
            self.now, _, do = heapq.heappop(self._queue)
            do()
        self.now = end

    def after(self, delay: float, do: Callable[[], None]) -> None:
        """Have something happen in `delay` seconds."""
        self.at(self.now + delay, do)

    def at(self, time: float, do: Callable[[], None]) -> None:
        """Have something happen at `time`; what is due at the same time happens in the order of the calls."""
        self._queued += 1
        heapq.heappush(self._queue, (time, self._queued, do))

    def hex(self) -> str:
        """32 random hexadecimal digits."""
        return f"{self.random.getrandbits(128):032x}"

    def way(self) -> float:
        """Seconds that a message is under way."""
        return self.random.uniform(0.02, 0.4)
