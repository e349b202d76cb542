"""When a round begins and when its result is merged, which follow from the number of optimizer steps; and how often
the sites should average, from what rounds and steps take while a run goes."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from geocomm.core.errors import InvalidArgumentError
from geocomm.group.planning.local_estimate import LEAST_EVERY, MOST_EVERY, least_every

_SMALLER, _LARGER = 0.7, 1.1
"""Another `every` is wanted only outside of these multiples of the one there is, so that noise does not move it."""


@dataclass(frozen=True)
class Schedule:
    """Round r averages fragment r % P. Every fragment is due once in `every` steps, and merged `overlap` steps later.

    `overlap` is the least, where results may be late. Fragments are due one after the other (Streaming DiLoCo, arXiv
    2501.18512), at steps as far apart as whole numbers allow; `every` need not be a multiple of their number. Rounds
    begin and end in the order of their numbers. Steps are counted from 1: step s is the s-th optimizer step.
    """

    every: int
    """Optimizer steps between two rounds of a fragment (H)."""
    fragments: int
    """Their number (P)."""
    overlap: int
    """Optimizer steps from the beginning of a round to the merge of its result (tau), at least; 0: the site waits."""
    first_round: int = 0
    """The first of this schedule, of fragment 0; those before followed another one."""
    first_step: int = 0
    """The schedule counts steps from here."""

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for numbers that cannot be."""
        if not 0 <= self.overlap <= self.every:
            raise InvalidArgumentError(
                f"overlap is {self.overlap}; it must be from 0 to every ({self.every}): the result of a round is "
                "merged before its fragment is due again"
            )

    def fragment_of(self, number: int) -> int:
        """The fragment that round `number` averages."""
        return number % self.fragments

    @property
    def most_in_a_step(self) -> int:
        """Rounds that begin after one step, at most."""
        return -(-self.fragments // self.every)

    def begun_by(self, step: int) -> int:
        """How many rounds have begun after `step` steps: rounds 0 … n - 1."""
        cycle, rest = divmod(step - self.first_step, self.every)
        return self.first_round + cycle * self.fragments + rest * self.fragments // self.every

    def renewed(self, number: int, every: int) -> Schedule:
        """The schedule from round `number` on, which is one of fragment 0, with another `every`."""
        cycles = (number - self.first_round) // self.fragments
        return replace(self, every=every, first_round=number, first_step=self.first_step + cycles * self.every)


class LineClock:
    """Measures for how long at least one thread was inside of `running`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """now: seconds."""
        self._now = now
        self._lock = threading.Lock()
        self._inside = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """So far."""
        with self._lock:
            return self._seconds + (self._now() - self._since if self._inside else 0.0)

    @contextmanager
    def running(self) -> Generator[None]:
        """The clock runs in this block."""
        with self._lock:
            if self._inside == 0:
                self._since = self._now()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._seconds += self._now() - self._since


class Pace:
    """What `every` a site wants. One cycle is the time between two rounds of fragment 0."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """now: seconds."""
        self._now = now
        self._last_step: float | None = None
        self._steps_s: list[float] = []
        self._line_s: float | None = None
        self._least_before: int | None = None

    def count_step(self) -> None:
        """An optimizer step has ended."""
        now = self._now()
        if self._last_step is not None:
            self._steps_s.append(now - self._last_step)
        self._last_step = now

    def wanted(self, every: int, line_seconds: float) -> int:
        """The interval of the next cycles, if it is `every` now; 0: too little is known. Called once in a cycle.

        line_seconds: `Rounds.line_seconds`. The shorter of the last two cycles counts, so that a line that was down
        once changes nothing; and of the steps the median, which leaves out evaluation and checkpoints.
        """
        before, self._line_s = self._line_s, line_seconds
        step_s = statistics.median(self._steps_s) if self._steps_s else 0.0
        self._steps_s.clear()
        if before is None or step_s == 0.0:
            return 0
        now = least_every(line_seconds - before, step_s)
        previous, self._least_before = self._least_before, now
        if previous is None:
            return 0
        least = min(MOST_EVERY, max(LEAST_EVERY, min(now, previous)))
        return every if _SMALLER * every <= least <= _LARGER * every else least
