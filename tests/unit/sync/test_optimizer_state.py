"""After NaN or Inf an optimizer goes on as a new one does, for the parameters that it was for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from geocomm.core.errors import UnsupportedError
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
MAKERS: dict[str, Make] = {
    "AdamW": lambda some: torch.optim.AdamW(some, lr=0.1, foreach=False),
    "foreach": lambda some: torch.optim.AdamW(some, lr=0.1, foreach=True),
    "fused": lambda some: torch.optim.AdamW(some, lr=0.1, fused=True),
    "amsgrad": lambda some: torch.optim.Adam(some, lr=0.1, amsgrad=True),
    "tensor lr": lambda some: torch.optim.Adam(some, lr=torch.tensor(0.1)),
    "momentum": lambda some: torch.optim.SGD(some, lr=0.1, momentum=0.9, nesterov=True),
    "fused momentum": lambda some: torch.optim.SGD(some, lr=0.1, momentum=0.9, fused=True),
    "Adafactor": lambda some: torch.optim.Adafactor(some, lr=0.1),
    "NAdam": lambda some: torch.optim.NAdam(some, lr=0.1),
    "RAdam": lambda some: torch.optim.RAdam(some, lr=0.1),
    "Adamax": lambda some: torch.optim.Adamax(some, lr=0.1),
    "Adadelta": lambda some: torch.optim.Adadelta(some, lr=0.1),
    "Adagrad": lambda some: torch.optim.Adagrad(some, lr=0.1, initial_accumulator_value=0.5),
    "RMSprop": lambda some: torch.optim.RMSprop(some, lr=0.1, momentum=0.5, centered=True),
    "Rprop": lambda some: torch.optim.Rprop(some, lr=0.1),
    "ASGD": lambda some: torch.optim.ASGD(some, lr=0.1),
    "Muon": lambda some: torch.optim.Muon(some, lr=0.1),
}


def make_parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(4, 3, generator=generator)) for _ in range(3)]


def step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], seed: int, nan: int | None = None) -> None:
    generator = torch.Generator().manual_seed(seed)
    for index, one in enumerate(parameters):
        one.grad = torch.randn(one.shape, generator=generator)
        if index == nan:
            one.grad[0, 0] = torch.nan
    optimizer.step()


def addresses(optimizer: torch.optim.Optimizer) -> list[int]:
    states = [optimizer.state[one] for group in optimizer.param_groups for one in group["params"]]
    return [one.data_ptr() for state in states for one in state.values() if isinstance(one, torch.Tensor)]


@pytest.mark.parametrize("kind", MAKERS)
def test_healed_optimizer_steps_as_a_new_one_for_the_parameter_and_as_before_for_the_others(kind: str) -> None:
    parameters = make_parameters()
    optimizer = MAKERS[kind](parameters)
    for seed in range(3):
        step(optimizer, parameters, seed)
    step(optimizer, parameters, 3, nan=1)
    with torch.no_grad():
        parameters[1].copy_(torch.ones(4, 3))  # as the site takes over the anchor
    before = addresses(optimizer)
    kept = copy.deepcopy([parameters, optimizer.state_dict()])

    (told,) = InnerOptimizers(optimizer).heal()
    assert told.endswith(": the state of 1 of 3 parameters")
    assert InnerOptimizers(optimizer).heal() == []
    assert addresses(optimizer) == before

    others, old_state = kept
    old = MAKERS[kind](others)
    old.load_state_dict(old_state)
    alone = [nn.Parameter(torch.ones(4, 3))]
    new = MAKERS[kind](alone)
    for seed in range(4, 8):
        step(optimizer, parameters, seed)
        step(old, others, seed)
        alone[0].grad = parameters[1].grad
        new.step()
    torch.testing.assert_close(parameters[1], alone[0], rtol=1e-6, atol=1e-7)
    for index in (0, 2):
        torch.testing.assert_close(parameters[index], others[index], rtol=0, atol=0)


def test_every_optimizer_of_a_step_is_healed() -> None:
    parameters = make_parameters()
    optimizers = [torch.optim.SGD(parameters[:1], lr=0.1, momentum=0.9), torch.optim.AdamW(parameters[1:], lr=0.1)]
    for one in optimizers:
        step(one, parameters, 0, nan=0)
    assert InnerOptimizers(optimizers).heal() == ["SGD: the state of 1 of 1 parameters"]


def test_optimizer_without_a_state_has_nothing_to_heal() -> None:
    parameters = make_parameters()
    for optimizer in (torch.optim.AdamW(parameters), torch.optim.SGD(parameters, lr=0.1)):
        assert InnerOptimizers(optimizer).heal() == []
    step(optimizer, parameters, 0, nan=0)
    assert InnerOptimizers(optimizer).heal() == []


class Unknown(torch.optim.SGD):
    """Keeps what local steps have never heard of."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                state["exp_avg"] = one.grad.clone()
                state["curvature"] = [float(one.grad.sum())]


def test_state_whose_first_values_are_unknown_is_refused_and_left_as_it_is() -> None:
    parameters = make_parameters()
    optimizer = Unknown(parameters, lr=0.1)
    step(optimizer, parameters, 0)
    inner = InnerOptimizers(optimizer)
    assert inner.heal() == []
    step(optimizer, parameters, 1, nan=2)
    with pytest.raises(UnsupportedError, match=r"Unknown.*curvature.*checkpoint"):
        inner.heal()
    assert optimizer.state[parameters[2]]["exp_avg"].isnan().any()


def test_counter_of_a_whole_group_begins_anew_with_all_of_the_group() -> None:
    """As apex's FusedAdam has it, and older ones of DeepSpeed."""
    parameters = make_parameters()
    optimizer = torch.optim.SGD([{"params": parameters[:2], "step": 7}, {"params": parameters[2:], "step": 7}], lr=0.1)
    for one in parameters:
        optimizer.state[one] = {"exp_avg": torch.ones(4, 3), "exp_avg_sq": torch.ones(4, 3)}
    optimizer.state[parameters[0]]["exp_avg_sq"][1, 1] = torch.inf
    assert InnerOptimizers(optimizer).heal() == ["SGD: the state of 2 of 3 parameters"]
    assert [group["step"] for group in optimizer.param_groups] == [0, 7]
    assert not optimizer.state[parameters[1]]["exp_avg"].any()
    assert optimizer.state[parameters[2]]["exp_avg"].all()


def test_state_in_eight_bits_begins_anew_without_its_map() -> None:
    parameters = make_parameters()[:1]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    levels = torch.linspace(-1, 1, 256)
    optimizer.state[parameters[0]] = {
        "step": 5,
        "state1": torch.ones(4, 3, dtype=torch.uint8),
        "qmap1": levels,
        "absmax1": torch.tensor([torch.nan]),
    }
    assert len(InnerOptimizers(optimizer).heal()) == 1
    state = optimizer.state[parameters[0]]
    assert state["step"] == 0
    assert isinstance(state["step"], int)
    assert not state["state1"].any()
    assert not state["absmax1"].any()
    assert state["qmap1"] is levels
    assert levels[0] == -1
