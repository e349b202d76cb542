"""What the leader believes of a site's offer: the numbers that others take over from an entry are cut down to what can
be. So one site, by a lie or broken memory, neither moves the run's step by far, nor counts for all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from geocomm.elastic.journal.entries import MOST_STEPS, CodedFrame, Listed
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import Offer

MOST_TIMES = 16
"""A site makes steps so many times as fast as the fastest other one at most, and weighs so many times as much as any
other one has. Chosen: machines of one run hardly differ by more."""
MOST_CYCLES = 8
"""Ahead of the run, where nothing is known of how fast sites are."""
_LEAST_STEP_S = 1e-4
LEAST_EVERY, MOST_EVERY = 30, 300
"""That `every="auto"` chooses: as in `planning.local_estimate`."""
N = TypeVar("N", int, float)
_AS_OFFERED = CodedFrame.model_fields.keys() - {"weight", "step"}


class MostOfOthers(Generic[N]):
    """Of the values of all sites, the largest that another site than a given one has."""

    def __init__(self, values: Mapping[str, N]) -> None:
        self._largest = heapq.nlargest(2, values.items(), key=lambda one: one[1])

    def but(self, name: str) -> N | None:
        """Without the site of this name; None: no other one has a value."""
        return next((value for site, value in self._largest if site != name), None)


class Claims:
    """A part of the rounds of a leader."""

    def __init__(self, run: LedRun) -> None:
        self._run = run
        self._counted_at: float | None = None
        self._weights = {name: site.weight // site.rounds for name, site in run.state.sites.items() if site.rounds}
        """By site: the most that it has counted for since this leader began, and before then the mean."""

    def listed(self, offers: Mapping[str, Offer]) -> tuple[Listed, ...]:
        """The members of a round, of which these are the offers."""
        most_weight, most_step = self._most_weight(), self._most_step()
        return tuple(
            Listed(
                **offer.model_dump(include=_AS_OFFERED),
                site=name,
                weight=min(offer.weight, most_weight(name)),
                step=min(offer.step, most_step(name), MOST_STEPS),
            )
            for name, offer in sorted(offers.items())
        )

    def counted(self, members: Iterable[Listed]) -> None:
        """A round is decided, in which these count."""
        for one in members:
            self._weights[one.site] = max(one.weight, self._weights.get(one.site, 0))
        self._counted_at = self._run.now

    def every(self, offers: Mapping[str, Offer]) -> int:
        """Optimizer steps between two rounds from now on: the most that a member wants, where sites choose that."""
        genesis = self._run.state.genesis
        if genesis is None or not genesis.settings.get("every", "").startswith("auto"):
            return self._run.state.every
        wanted = max((offer.every for offer in offers.values()), default=0)
        if not wanted:
            return self._run.state.every
        return max(min(LEAST_EVERY, genesis.every), min(wanted, max(MOST_EVERY, genesis.every)))

    def _most_step(self) -> Callable[[str], int]:
        """The most that is believed of a site, by its name."""
        state = self._run.state
        along = {name: one for name in state.live if (one := self._along(name)) is not None}
        steps = MostOfOthers({name: _steps_now(one) for name, one in along.items()})
        slowness = MostOfOthers({name: -one[1] for name, one in along.items()})
        since = 0.0 if self._counted_at is None else self._run.now - self._counted_at

        def most(name: str) -> int:
            others, fastest_s = steps.but(name), slowness.but(name)
            if others is not None and fastest_s is not None:
                return max(state.step, others) + int(MOST_TIMES * since / -fastest_s)
            own = self._along(name)
            if own is not None:
                return max(state.step, _steps_now(own)) + state.every
            return state.step + MOST_CYCLES * state.every

        return most

    def _along(self, name: str) -> tuple[int, float, float] | None:
        """How far a site is, see `_steps_now`; None: it has not said yet how long a step takes."""
        site = self._run.sites.get(name)
        if site is None or site.beat is None or site.beat.step_s <= 0:
            return None
        return site.beat.step, max(site.beat.step_s, _LEAST_STEP_S), self._run.now - site.heard

    def _most_weight(self) -> Callable[[str], int]:
        """The most that a site may count for, by its name."""
        weights = MostOfOthers(dict(self._weights))

        def most(name: str) -> int:
            others = weights.but(name)
            return 2**53 if others is None else MOST_TIMES * others

        return most


def _steps_now(of_beat: tuple[int, float, float]) -> int:
    """The steps of a site now. of_beat: its steps, how long each takes, and how long ago it said so."""
    step, step_s, since = of_beat
    return step + int(since / step_s)
