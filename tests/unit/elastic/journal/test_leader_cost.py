"""The leader's work for what a site says does not grow with the square of the sites."""

from __future__ import annotations

import random
import statistics

import pytest

from geocomm.elastic.journal.claims import MostOfOthers
from geocomm.elastic.journal.outliers import _median_without  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_computed_once_for_all_sites_is_what_each_would_compute_of_the_others(seed: int) -> None:
    chance = random.Random(seed)
    values = {str(name): chance.randint(0, 6) for name in range(chance.randint(1, 9))}
    most = MostOfOthers(values)
    for name, value in {**values, "no site": 0}.items():
        others = [one for other, one in values.items() if other != name]
        assert most.but(name) == max(others, default=None)
        if others and name in values:
            assert _median_without(sorted(values.values()), value) == statistics.median(others)
