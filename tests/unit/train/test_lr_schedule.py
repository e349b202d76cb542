"""Learning rate: warm-up, decay, tail."""

from __future__ import annotations

import math

import pytest

from geocomm.train.loop.lr_schedule import learning_rate


def test_learning_rate_warms_up_then_falls_to_the_tail() -> None:
    rates = [learning_rate(step, 1.0, 10, 100, 0.1) for step in range(130)]
    assert rates[0] == pytest.approx(1 / 11)
    assert rates[:11] == sorted(rates[:11])
    assert rates[10] == 1.0
    assert rates[10:101] == sorted(rates[10:101], reverse=True)
    assert rates[55] == pytest.approx(0.1 + 0.9 * 0.5)
    assert all(math.isclose(rate, 0.1) for rate in rates[100:])


def test_learning_rate_without_warm_up_starts_at_the_peak() -> None:
    assert learning_rate(0, 3e-4, 0, 10, 0.0) == 3e-4
    assert learning_rate(10, 3e-4, 0, 10, 0.0) == pytest.approx(0.0, abs=1e-12)
