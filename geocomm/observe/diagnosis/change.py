"""A run that has become another one within the window: its steps take far longer, or far less, than before."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from geocomm.observe.diagnosis.run_window import RunWindow

_FEWEST = 6
"""Steps on each side."""
_TIMES = 1.5
"""The run has become another one where its steps take so many times as long, or as short, in the median."""
_CLEAR, _UNEVEN = 0.85, 0.6
"""So many of the steps of each side have to be on its side of the middle. Steps before slower ones may be uneven."""


@dataclass(frozen=True)
class Change:
    """Since when the run is as it is now."""

    step: int
    """The first of the steps that are as now."""
    before_s: float
    """Seconds of a step, the median."""
    after_s: float
    after: RunWindow
    """The window from then on."""


def find_change(window: RunWindow) -> Change | None:
    """The last change; None: the window is of one kind."""
    seconds = window.seconds_by_step()
    numbers = sorted(seconds)
    took = [seconds[number] for number in numbers]
    place = _place(took)
    if place is None:
        return None
    begin = place + 1 if place + 1 + _FEWEST <= len(took) else place  # the first one is of both kinds
    first = numbers[begin]
    ranks = [
        replace(
            rank,
            steps=[step for step in rank.steps if step.number >= first],
            operations=[
                one
                for one in rank.operations
                if one.issued >= min((step.began for step in rank.steps if step.number >= first), default=0.0)
            ],
        )
        for rank in window.ranks
    ]
    medians = statistics.median(took[:place]), statistics.median(took[place:])
    return Change(numbers[place], *medians, replace(window, ranks=ranks))


def _place(took: Sequence[float]) -> int | None:
    """The index of the first step after the change: where the two sides are furthest apart."""
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
