"""Whether sites train with one schedule of the learning rate: who has another one is told of, and counts all the same.

Each member of a round is compared with the next one by name: so whoever differs is found, in a time that grows with
the members and not with their pairs.

A rate is a function of the run's step, and sites are at different steps. So a site's rate is compared with those that
another one had before and after that step, which says nothing before that one has come as far. A schedule may fall at
a step, and a frame is made of the rate before it: a difference is worth a word once it has lasted for some cycles.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from geocomm.elastic.journal.messages import Offer

TOLERANCE = 0.1
"""Chosen: a frame's rate may be that of some steps before."""
CYCLES = 3
"""So long a difference lasts before it is told."""
_KEPT = 256


@dataclass
class _Compared:
    """How the rates of a site fit those of another one."""

    until: int = -1
    """The step up to which they were compared."""
    differs_since: int | None = None
    told: bool = False


@dataclass
class _Schedule:
    """What the listed frames of a site said."""

    steps: list[int] = field(default_factory=list[int])
    rates: list[float] = field(default_factory=list[float])

    def learn(self, step: int, rate: float) -> None:
        """Frames of several fragments are of one step."""
        place = bisect.bisect_left(self.steps, step)
        if step not in self.steps[place : place + 1]:
            self.steps.insert(place, step)
            self.rates.insert(place, rate)
            del self.steps[:-_KEPT], self.rates[:-_KEPT]

    def around(self, step: int) -> tuple[float, float] | None:
        """The rates before and after a step; None: it has not been there."""
        if not self.steps or not self.steps[0] <= step <= self.steps[-1]:
            return None
        after = bisect.bisect_left(self.steps, step)
        before = after if self.steps[after] == step else after - 1
        return self.rates[before], self.rates[after]


class LearningRates:
    """What listed frames said of the learning rate at each step of the run."""

    def __init__(self) -> None:
        self._schedules: dict[str, _Schedule] = {}
        self._compared: dict[tuple[str, str], _Compared] = {}

    def take(self, members: Mapping[str, Offer], every: int) -> list[str]:
        """Learn from the frames of a round, by site. What a person should know, in words.

        every: optimizer steps from one round of a fragment to the next.
        """
        told: list[str] = []
        for site, one in members.items():
            if one.lr > 0:  # else it is not known
                self._schedules.setdefault(site, _Schedule()).learn(one.step, one.lr)
        known = sorted(site for site in members if site in self._schedules)
        for site, other in itertools.pairwise(known):
            told += self._compare(site, other, every)
            told += self._compare(other, site, every)
        return told

    def _compare(self, site: str, other: str, every: int) -> Iterable[str]:
        own, theirs = self._schedules[site], self._schedules[other]
        compared = self._compared.setdefault((site, other), _Compared())
        first = bisect.bisect_right(own.steps, compared.until)
        for step, rate in zip(own.steps[first:], own.rates[first:], strict=True):
            if step > theirs.steps[-1]:
                return
            compared.until = step
            around = theirs.around(step)
            if around is None:
                continue
            if min(around) * (1 - TOLERANCE) <= rate <= max(around) * (1 + TOLERANCE):
                compared.differs_since, compared.told = None, False
                continue
            if compared.differs_since is None:
                compared.differs_since = step
            if not compared.told and step - compared.differs_since >= CYCLES * every:
                compared.told = self._compared.setdefault((other, site), _Compared()).told = True
                yield (
                    f"learning rate: {site} has {rate:g} at step {step}, {other} {around[1]:g}, and they have differed "
                    f"since step {compared.differs_since}. Both count. Take the rate from the run's step (run_step)"
                )
