"""Steps for reports: told by the program, or counted by its first optimizer."""

from __future__ import annotations

import math

import pytest
import torch

from geocomm.metrics.training import BEFORE, LossWindow, Training


def test_steps_that_the_program_tells_replace_those_of_its_optimizer() -> None:
    training = Training()
    first, second = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]) for _ in range(2))
    for _ in range(2):
        training.optimizer_stepped(first)
        training.optimizer_stepped(second)
    last, steps = training.take()
    assert last["step"] == 2
    assert [step["step"] for step in steps] == [1, 2]
    assert steps[1]["seconds"] == (steps[1]["ended_ns"] - steps[0]["ended_ns"]) / 1e9
    training.step(70, {"loss": 2.5, "grad_norm": None}, {"seconds": 3.0, "tokens": 8})
    training.step(71, {"loss": None}, {"seconds": 1.0, "tokens": 8})
    training.evaluated(2.25)
    training.optimizer_stepped(first)
    last, steps = training.take()
    assert last["held_out_loss"] == 2.25
    assert {"seconds": 4.0, "tokens": 16.0, "steps": 2}.items() <= last["totals"].items()
    assert (last["step"], last["loss"]) == (71, 2.5)
    assert [step["step"] for step in steps] == [70, 71]
    assert training.take()[1] == []


def test_an_optimizer_that_is_gone_leaves_its_place_to_the_next() -> None:
    training = Training()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    training.optimizer_stepped(optimizer)
    del optimizer
    training.optimizer_stepped(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]))
    assert training.take()[0]["step"] == 2


def test_newest_losses_are_compared_with_those_before_once_there_are_enough() -> None:
    window = LossWindow()
    for number in range(BEFORE):
        window.add(2.0 + 0.1 * (number % 3))
        window.add(math.nan)
    assert window.numbers() is None
    for loss in (9.0, 4.0, 7.0):
        window.add(loss)
    assert window.numbers() == {"least": 4.0, "median": 2.1, "spread": pytest.approx(0.14826)}
    training = Training()
    for step in range(BEFORE + 3):
        training.step(step, {"loss": 1.0}, {})
    assert training.take()[0]["losses"] == {"least": 1.0, "median": 1.0, "spread": 0.0}
