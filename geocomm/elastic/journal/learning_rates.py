"""Whether the learning rates of sites fit each other: a site that joins with a schedule of its own is found by it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from geocomm.elastic.journal.messages import Offer

TOLERANCE = 0.05
"""Chosen: schedules bend between two steps, and rates are straight lines here."""
_KEPT = 64


class LearningRates:
    """What listed frames said of the learning rate at each step of the run."""

    def __init__(self) -> None:
        self._listed: list[tuple[int, float, str]] = []
        """(step, rate, site)."""

    def take(self, members: Mapping[str, Offer]) -> None:
        """Learn from the frames of a round, by site."""
        rates = ((one.step, one.lr, site) for site, one in sorted(members.items()) if one.lr > 0)
        self._listed = [*self._listed, *rates][-_KEPT:]

    def fits(self, name: str, eligible: Mapping[str, Offer], every: int) -> bool:
        """Whether the rate of a site's offer is that of another offer in the round, or of listed frames.

        It does not where two others agree with each other. every: optimizer steps from one round to the next.
        """
        offer = eligible[name]
        others = [(one.step, one.lr) for site, one in sorted(eligible.items()) if site != name and one.lr > 0]
        verdicts = {_fits(offer.step, offer.lr, [one], every) for one in others}
        if offer.lr == 0 or True in verdicts:
            return True
        if False in verdicts and any(_fits(*one, [two], every) for one, two in itertools.combinations(others, 2)):
            return False
        return _fits(offer.step, offer.lr, [(step, rate) for step, rate, _ in self._listed], every) is not False

    def told(self, name: str, eligible: Mapping[str, Offer]) -> str:
        """The rate of an offer that does not fit, and the one that is nearest, for a person."""
        offer = eligible[name]
        known = [*self._listed, *((one.step, one.lr, site) for site, one in eligible.items() if site != name)]
        step, rate, other = min(known, key=lambda one: abs(one[0] - offer.step))
        return (
            f"learning rate: {name} has {offer.lr:g} at step {offer.step}, {other} {rate:g} at step {step}; take the "
            "rate from the run's step"
        )


def _fits(at: int, rate: float, known: list[tuple[int, float]], every: int) -> bool | None:
    """Whether a rate may be that of a run, at a step, that had these, (step, rate). None: they do not say.

    Between two steps it lies between their rates. Within two cycles of the nearest step it may have risen as fast as in
    a warm-up from 0, or changed as fast as the known rates did. Of steps further off nobody knows.
    """
    before = max((one for one in known if one[0] <= at), default=None)
    after = min((one for one in known if one[0] >= at), default=None)
    if before is not None and after is not None:
        possible = [before[1], after[1]]
    elif (near := before or after) is None or abs(near[0] - at) > 2 * every:
        return None
    else:
        possible = [near[1], near[1] * (at + 1) / (near[0] + 1)]
        further = [one for one in known if one[0] != near[0]]
        if further:
            step, had = min(further, key=lambda one: abs(one[0] - near[0]))
            possible.append(near[1] + (near[1] - had) / (near[0] - step) * (at - near[0]))
    return min(possible) * (1 - TOLERANCE) <= rate <= max(possible) * (1 + TOLERANCE)
