"""Learning rate: warm-up, decay, tail."""

from __future__ import annotations

import math

import pytest

from geocomm.train.loop.train_config import OptimizerConfig, RunConfig, ScheduleConfig, TrainingConfig


def config(steps: int, peak: float, warmup_steps: int, final_fraction: float) -> RunConfig:
    return RunConfig(
        training=TrainingConfig(steps=steps),
        optimizer=OptimizerConfig(learning_rate=peak),
        schedule=ScheduleConfig(warmup_steps=warmup_steps, final_fraction=final_fraction),
    )


def test_learning_rate_warms_up_then_falls_to_the_tail() -> None:
    rates = [config(100, 1.0, 10, 0.1).learning_rate(step) for step in range(130)]
    assert rates[0] == pytest.approx(1 / 11)
    assert rates[:11] == sorted(rates[:11])
    assert rates[10] == 1.0
    assert rates[10:101] == sorted(rates[10:101], reverse=True)
    assert rates[55] == pytest.approx(0.1 + 0.9 * 0.5)
    assert all(math.isclose(rate, 0.1) for rate in rates[100:])


def test_learning_rate_without_warm_up_starts_at_the_peak() -> None:
    assert config(10, 3e-4, 0, 0.0).learning_rate(0) == 3e-4
    assert config(10, 3e-4, 0, 0.0).learning_rate(10) == pytest.approx(0.0, abs=1e-12)


def test_decay_may_end_before_the_run() -> None:
    given = config(100, 1.0, 0, 0.5)
    early = given.model_copy(update={"schedule": given.schedule.model_copy(update={"decay_steps": 50})})
    assert [early.learning_rate(step) for step in (25, 50, 90)] == pytest.approx([0.75, 0.5, 0.5])


def test_local_steps_take_a_fraction_of_the_rate() -> None:
    schedule = {"warmup_steps": 0, "final_fraction": 0.5, "local_fraction": 0.6}
    given = {"training": {"steps": 10}, "optimizer": {"learning_rate": 2.0}, "schedule": schedule}
    local = RunConfig.model_validate(given | {"sync": {"mode": "local"}})
    assert [local.learning_rate(step) for step in (0, 10)] == pytest.approx([1.2, 0.6])
    assert RunConfig.model_validate(given).learning_rate(0) == 2.0
