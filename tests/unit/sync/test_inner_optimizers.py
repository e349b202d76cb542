"""Which optimizers local steps take, and what counts as a step of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from geocomm.core.errors import GeocommError, InvalidArgumentError, UnsupportedError
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers, after_each_step
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.local_models import SITES, adamw, make_model, train_step


class Wrapped:
    """As Lightning's optimizer: an instance of the class of what is inside, without its attributes."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.__class__ = type("LightningAdamW", (LightningOptimizer, type(optimizer)), {})

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


LightningOptimizer = type("LightningOptimizer", (Wrapped,), {})


class TwoModes(torch.optim.SGD):
    """Has the two methods of schedulefree's optimizers."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


class AdamWScheduleFreeClosure(torch.optim.SGD):
    """Of schedulefree too, without them."""


def begin(model: nn.Module, optimizers: Any) -> None:
    """At one site, in which all that is refused is refused before the first step."""
    SimulatedSites(["a"]).run(lambda rounds: local_steps(model, optimizers, rounds=rounds))


def test_callback_comes_after_each_step_until_it_is_removed() -> None:
    model = make_model()
    optimizer, seen = adamw(model), []
    remove = after_each_step([optimizer], ["AdamW"], lambda: seen.append(model[4].bias.detach().clone()))
    for step in range(2):
        train_step(model, optimizer, "a", step)
        assert torch.equal(seen[-1], model[4].bias)
    remove()
    train_step(model, optimizer, "a", 2)
    assert len(seen) == 2


def test_step_of_an_optimizer_that_is_not_torchs_counts_unless_it_overflowed() -> None:
    """As the optimizers of DeepSpeed's engines do; theirs are in tests/multiprocess/sync."""

    class Scaled:
        overflow = False

        def step(self, closure: object = None) -> object:
            return closure

    optimizer, seen = Scaled(), []
    remove = after_each_step([optimizer], ["Scaled"], lambda: seen.append(1))
    assert optimizer.step("result") == "result"
    optimizer.overflow = True
    optimizer.step()
    assert len(seen) == 1
    remove()
    optimizer.overflow = False
    optimizer.step()
    assert len(seen) == 1


def test_step_of_an_optimizer_in_a_wrapper_counts_where_the_wrapper_steps() -> None:
    def run(rounds: Rounds) -> int:
        model = make_model()
        optimizer = LightningOptimizer(adamw(model))
        handle = local_steps(model, optimizer, LocalSettings(every=2), rounds=rounds)
        for step in range(3):
            train_step(model, optimizer, rounds.site, step)
        return handle.stats()["steps"]

    assert SimulatedSites(SITES).run(run) == [3, 3]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda one: make_model(), r"Sequential.*engine\.optimizer"),
        (lambda one: torch.optim.lr_scheduler.ConstantLR(one), r"ConstantLR.*\.optimizer"),
        (lambda one: {"all": one}, "mapping"),
        (lambda one: (each for each in [one]), "generator.*list"),
        (lambda one: {one}, "set.*list"),
        (lambda one: [], "empty"),
        (lambda one: [one, one], "twice"),
    ],
)
def test_what_is_no_optimizer_and_no_list_of_them_is_refused(make: Callable[[Any], Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        InnerOptimizers(make(adamw(make_model())))


def test_optimizer_without_torchs_hooks_is_refused() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    with pytest.raises(InvalidArgumentError, match=r"Wrapper.*the optimizer inside"):
        InnerOptimizers(Wrapper(adamw(make_model())))


@pytest.mark.parametrize("kind", [TwoModes, AdamWScheduleFreeClosure])
def test_schedule_free_optimizer_is_refused(kind: type[torch.optim.SGD]) -> None:
    with pytest.raises(UnsupportedError, match=rf"{kind.__name__} is schedule-free.*AdamW"):
        InnerOptimizers(kind(make_model().parameters(), lr=0.1))


def test_zero_redundancy_optimizer_is_refused() -> None:
    kind = type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})  # torch's imports much, and needs a process group
    with pytest.raises(UnsupportedError, match=r"ZeroRedundancyOptimizer.*FSDP2"):
        InnerOptimizers(kind(make_model().parameters(), lr=0.1))


def test_trained_parameter_that_no_optimizer_has_is_refused_by_name() -> None:
    model = make_model()
    optimizer = torch.optim.AdamW([*model[0].parameters(), *model[4].parameters(), model[2].weight])
    with pytest.raises(InvalidArgumentError, match=r"2\.bias is trained, but no optimizer has it"):
        begin(model, optimizer)
    model[2].bias.requires_grad_(False)
    begin(model, optimizer)


def test_second_handle_of_a_model_is_refused_until_the_first_has_finished() -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        handle = local_steps(model, adamw(model), rounds=rounds)
        with pytest.raises(InvalidArgumentError, match="for this model before"):
            local_steps(model, adamw(model), rounds=rounds)
        handle.finish()
        local_steps(model, adamw(model), rounds=rounds)

    SimulatedSites(["a"]).run(run)


@pytest.mark.parametrize("change", ["added", "replaced", "removed"])
def test_group_that_changes_while_the_run_goes_is_refused_by_name(change: str) -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        rest = [one for name, one in model.named_parameters() if not name.startswith("4")]
        optimizer = torch.optim.SGD([{"params": rest}, {"params": [*model[4].parameters()]}], lr=0.1)
        local_steps(model, optimizer, LocalSettings(every=2), rounds=rounds)
        train_step(model, optimizer, "a", 0)
        if change == "added":
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        elif change == "replaced":
            optimizer.param_groups[1]["params"][1] = nn.Parameter(torch.zeros(20))
        else:
            optimizer.param_groups[1]["params"].pop()
        train_step(model, optimizer, "a", 1)

    number = 2 if change == "added" else 1
    with pytest.raises(InvalidArgumentError, match=f"group {number} of SGD"):
        SimulatedSites(["a"]).run(run)


def run_two(make: Callable[[str, nn.Module], Any]) -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        local_steps(model, make(rounds.site, model), rounds=rounds)

    SimulatedSites(SITES).run(run)


def test_parameters_in_other_groups_at_one_site_are_refused() -> None:
    def make(site: str, model: nn.Module) -> torch.optim.Optimizer:
        one, two, *rest = model.parameters()
        groups = [[one, *rest], [two]] if site == "a" else [[two, *rest], [one]]
        return torch.optim.AdamW([{"params": group} for group in groups])

    with pytest.raises(GeocommError, match=r"optimizer parameters \(group 0\) is 4 \("):
        run_two(make)
