"""The changes of a link by satellite keep to what was measured of them."""

from __future__ import annotations

import itertools

import pytest

from geocomm.core.units import parse_duration
from geocomm.lab.emulator.leo_profile import BLACKOUT_S, MEAN_LOSS, ROUND_TRIP_S, SLOT_S, leo_changes


@pytest.mark.parametrize("seed", range(20))
def test_slots_have_a_blackout_a_round_trip_and_bursts_of_loss(seed: int) -> None:
    changes = list(itertools.takewhile(lambda one: one[0] < 40 * SLOT_S, leo_changes(seed)))
    times = [at for at, _ in changes]
    assert times == sorted(times)
    downs = [at for at, change in changes if change.get("up") is False]
    ups = [(at, parse_duration(change["rtt"], "rtt")) for at, change in changes if change.get("up")]
    assert downs == [number * SLOT_S for number in range(40)]
    for down, (up, rtt) in zip(downs, ups, strict=True):
        assert BLACKOUT_S[0] <= up - down <= BLACKOUT_S[1]
        assert ROUND_TRIP_S[0] <= rtt <= ROUND_TRIP_S[1]
    assert len({rtt for _, rtt in ups}) == len(ups)
    levels = [(at, float(change["loss"].rstrip("%")) / 100) for at, change in changes if "loss" in change]
    lost = sum(loss * (then - at) for (at, loss), (then, _) in itertools.pairwise(levels))
    assert MEAN_LOSS[0] <= lost / (40 * SLOT_S) <= MEAN_LOSS[1]


def test_seed_decides() -> None:
    first, again, other = (list(itertools.islice(leo_changes(seed), 30)) for seed in (1, 1, 2))
    assert first == again != other
