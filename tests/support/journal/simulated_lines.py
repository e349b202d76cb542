"""Lines between the machines of a simulated run, which may be cut, and the connections of agents to the leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from geocomm.elastic.journal.messages import Down
from support.journal.simulated_time import SimulatedTime

LEADER = "leader"
"""The name of its machine, beside those of sites."""


class Link:
    """A connection of an agent to the leader: in order, both ways, until it breaks."""

    def __init__(self, take: Callable[[Down], None], lost: Callable[[], None]) -> None:
        """What the agent does with a message, and when it notices that the connection has ended."""
        self.take = take
        self.lost = lost
        self.up = True
        self.sent_up = 0.0
        self.sent_down = 0.0


class Lines:
    """Which machines reach each other."""

    def __init__(self, time: SimulatedTime) -> None:
        self._time = time
        self._cuts: Counter[frozenset[str]] = Counter()

    def reach(self, one: str, other: str) -> bool:
        """Whether they do."""
        return not self._cuts[frozenset((one, other))]

    def cut(self, pair: frozenset[str], duration: float) -> None:
        """For so long they do not."""
        self._cuts[pair] += 1

        def heal() -> None:
            self._cuts[pair] = max(self._cuts[pair] - 1, 0)

        self._time.after(duration, heal)

    def heal_all(self) -> None:
        """All cuts end."""
        self._cuts.clear()
