"""What the times of steps alone say: which ones stall, which ones are warm-up, and since when the run is as it is."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from geocomm.core.units import count_text
from geocomm.observe.diagnosis.verdict import seconds_text

_LEAST_S, _ABOVE = 0.02, 0.5
"""A step stalls where it takes longer than the usual one by so many seconds and by so much of that."""
_USUAL = 4
"""The step that is longer than one in this many is the usual one: pauses may be in more than half of them."""
_FIRST = 3
"""A program compiles, connects and fills its caches in the first of its steps, and in those right after that are slow
as well."""
_LONGEST = 10
"""A longer row of slow steps at the begin is no warm-up: the run has become faster."""
_FEWEST = 6
"""Steps on each side of a change."""
_TIMES = 1.5
"""The run has become another one where its steps take so many times as long, or as short, in the median."""
_CLEAR, _UNEVEN = 0.85, 0.6
"""So many of the steps of each side have to be on its side of the middle. Steps before slower ones may be uneven."""


@dataclass(frozen=True)
class WarmUp:
    """The first steps of a program, which say nothing of those to come."""

    steps: int
    seconds: float
    """All together."""

    def told(self) -> str:
        """A sentence."""
        return (
            f"Warm-up (compiling, connecting): the program's first {count_text(self.steps, 'step')} took "
            f"{seconds_text(self.seconds)}, and {'is' if self.steps == 1 else 'are'} left out."
        )


@dataclass(frozen=True)
class Change:
    """The run has become another one: its steps take far longer, or far less, than before."""

    step: int
    """The number of the first step that is as now."""
    before_s: float
    """Seconds of a step, the median."""
    after_s: float

    def told(self) -> str:
        """A sentence."""
        return (
            f"Since step {self.step} a step takes {seconds_text(self.after_s)}, before {seconds_text(self.before_s)}. "
            "All that is said here is of the steps since."
        )


def usual_seconds(seconds: Iterable[float]) -> float:
    """The usual time of steps of which some may have paused."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // _USUAL] if ordered else 0.0


def is_stall(seconds: float, usual: float) -> bool:
    """Whether a step took far longer than the usual one."""
    return seconds - usual > max(_LEAST_S, _ABOVE * usual)


def warm_up(took: Sequence[float], place: int) -> int:
    """How many of these steps of a program are warm-up; they are the first of them.

    place: how many steps it had made before the first one."""
    usual, last = usual_seconds(took), 0
    for i, seconds in enumerate(took):
        slow = is_stall(seconds, usual)
        if place + i >= _FIRST and not (slow and last == i):
            break
        if slow:
            last = i + 1
    return last if last <= _LONGEST else 0


def find_change(took: Sequence[float]) -> int | None:
    """The index of the first step after the last change: where the two sides are furthest apart. None: the steps are of
    one kind."""
    best, found = 0.0, None
    for place in range(_FEWEST, len(took) - _FEWEST + 1):
        before, after = took[:place], took[place:]
        medians = statistics.median(before), statistics.median(after)
        low, high = sorted(medians)
        if low <= 0 or high < _TIMES * low:
            continue
        middle = (low * high) ** 0.5
        grew = medians[1] > medians[0]
        right = (
            sum((one < middle) == grew for one in before) / len(before),
            sum((one > middle) == grew for one in after) / len(after),
        )
        if right[0] >= (_UNEVEN if grew else _CLEAR) and right[1] >= _CLEAR and sum(right) > best:
            best, found = sum(right), place
    return found


def steps_since(took: Sequence[float], place: int) -> int:
    """How many of the steps are as now, after a change at `place`, whose own step is of both kinds."""
    return len(took) - (place + 1 if place + 1 + _FEWEST <= len(took) else place)
