"""What the leader believes of a site's offer: the numbers that others take over from an entry are cut down to what can
be. So one site, by a lie or broken memory, neither moves the run's step by far, nor counts for all.
"""

from __future__ import annotations

from collections.abc import Mapping

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
_AS_OFFERED = CodedFrame.model_fields.keys() - {"weight", "step"}


class Claims:
    """A part of the rounds of a leader."""

    def __init__(self, run: LedRun) -> None:
        self._run = run
        self._listed_at: float | None = None
        self._weights = {name: site.weight // site.rounds for name, site in run.state.sites.items() if site.rounds}
        """By site: the most that it has counted for since this leader began, and before then the mean."""

    def listed(self, offers: Mapping[str, Offer]) -> tuple[Listed, ...]:
        """The members of a round, of which these are the offers."""
        members = tuple(
            Listed(
                **offer.model_dump(include=_AS_OFFERED),
                site=name,
                weight=min(offer.weight, self._most_weight(name)),
                step=min(offer.step, self._most_step(name), MOST_STEPS),
            )
            for name, offer in sorted(offers.items())
        )
        for one in members:
            self._weights[one.site] = max(one.weight, self._weights.get(one.site, 0))
        self._listed_at = self._run.now
        return members

    def every(self, offers: Mapping[str, Offer]) -> int:
        """Optimizer steps between two rounds from now on: the most that a member wants, where sites choose that."""
        genesis = self._run.state.genesis
        if genesis is None or not genesis.settings.get("every", "").startswith("auto"):
            return self._run.state.every
        wanted = max((offer.every for offer in offers.values()), default=0)
        if not wanted:
            return self._run.state.every
        return max(min(LEAST_EVERY, genesis.every), min(wanted, max(MOST_EVERY, genesis.every)))

    def _most_step(self, name: str) -> int:
        state, sites, now = self._run.state, self._run.sites, self._run.now
        along = {
            site: (beat.step, max(beat.step_s, _LEAST_STEP_S), now - sites[site].heard)
            for site in {*state.live, name}
            if (beat := sites[site].beat) is not None and beat.step_s > 0
        }
        own = along.pop(name, None)
        if along:
            since = 0.0 if self._listed_at is None else now - self._listed_at
            fastest_s = min(step_s for _, step_s, _ in along.values())
            return max(state.step, *map(_steps_now, along.values())) + int(MOST_TIMES * since / fastest_s)
        if own is not None:
            return max(state.step, _steps_now(own)) + state.every
        return state.step + MOST_CYCLES * state.every

    def _most_weight(self, name: str) -> int:
        others = [weight for site, weight in self._weights.items() if site != name]
        return MOST_TIMES * max(others) if others else 2**53


def _steps_now(of_beat: tuple[int, float, float]) -> int:
    """The steps of a site now. of_beat: its steps, how long each takes, and how long ago it said so."""
    step, step_s, since = of_beat
    return step + int(since / step_s)
