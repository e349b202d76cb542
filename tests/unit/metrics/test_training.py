"""Steps for reports: told by the program, or counted by its first optimizer."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import geocomm
from geocomm.metrics import training as training_module
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


@pytest.mark.parametrize(
    ("arguments", "named", "said"),
    [
        (("a",), {}, "step must be a number, and it is 'a'"),
        ((None,), {}, "step must be a number, and it is None"),
        ((1,), {"loss": "2.5"}, "loss must be a number, and it is '2.5'"),
        ((1,), {"tokens": [8]}, "tokens must be a number"),
        ((1,), {"loss": torch.ones(3)}, "loss must be a number"),
        ((1,), {"held_out_loss": object()}, "held_out_loss must be a number"),
    ],
)
def test_what_is_no_number_is_refused_and_nothing_is_told(
    arguments: tuple[Any, ...], named: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Training()
    monkeypatch.setattr(training_module, "training", own)
    with pytest.raises(geocomm.InvalidArgumentError, match=said):
        geocomm.report_step(*arguments, **named)
    assert own.take() == ({}, [])


def test_numbers_of_torch_and_numpy_are_told_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Training()
    monkeypatch.setattr(training_module, "training", own)
    geocomm.report_step(
        np.int64(3),
        loss=torch.tensor(2.5),
        grad_norm=np.float32(0.5),
        tokens=np.int32(8),  # pyright: ignore
    )
    (step,) = own.take()[1]
    told = {name: step[name] for name in ("step", "loss", "grad_norm", "tokens")}
    assert json.loads(json.dumps(told)) == {"step": 3, "loss": 2.5, "grad_norm": 0.5, "tokens": 8}


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
