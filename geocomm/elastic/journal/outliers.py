"""Which frames a round does without: a site whose weights run away, though finite, would take the others along.

Once only, since what it learned may be right: a person hears of it meanwhile.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence

from geocomm.elastic.journal.messages import Offer

TIMES = 50.0
"""So many times as long as the site's own frames, and as those of the others. Chosen: a delta of the most cycles that
count at once is five times as long at most."""
_KNOWN = 15
_LEAST_KNOWN = 3
"""Frames of a site that have counted, of a fragment."""


class Outliers:
    """A part of the rounds of a leader, which forgets it all when it starts again."""

    def __init__(self) -> None:
        self._lengths: dict[tuple[str, int], deque[float]] = {}
        """By site and fragment."""
        self._left_out: set[tuple[str, int]] = set()
        """Of these, the next one counts."""

    def take(self, fragment: int, offers: Mapping[str, Offer], least: int) -> dict[str, tuple[float, float]]:
        """The sites whose frame of these is left out, with its length and what is usual; the others' count. least:
        frames that a round has."""
        length = {name: math.sqrt(offer.squared_norm) for name, offer in offers.items()}
        ranked = sorted(length.values())
        found: dict[str, tuple[float, float]] = {}
        for name, own in length.items():
            usual = self._usual(fragment, name, length[name], ranked)
            is_out = 0 < TIMES * usual < own and len(offers) - len(found) > least
            if is_out and (name, fragment) not in self._left_out:
                found[name] = own, usual
                self._left_out.add((name, fragment))
            else:
                self._lengths.setdefault((name, fragment), deque(maxlen=_KNOWN)).append(own)
                if not is_out:
                    self._left_out.discard((name, fragment))
        return found

    def _usual(self, fragment: int, name: str, own: float, ranked: Sequence[float]) -> float:
        """The longer of what is usual at the site, and at the others; 0: too little is known. ranked: the lengths of
        all, the own one too, the shortest first."""
        known = self._lengths.get((name, fragment), ())
        if len(known) < _LEAST_KNOWN or len(ranked) < 2:
            return 0.0
        return max(statistics.median(known), _median_without(ranked, own))


def _median_without(ranked: Sequence[float], one: float) -> float:
    """The median of sorted numbers, one of which is left out."""
    place, count = bisect.bisect_left(ranked, one), len(ranked) - 1
    low, high = (ranked[at + (at >= place)] for at in ((count - 1) // 2, count // 2))
    return (low + high) / 2
