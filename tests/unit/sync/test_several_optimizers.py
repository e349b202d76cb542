"""Several optimizers that make a step together, such as Muon for matrices and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.model.inner_optimizers import after_each_step
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.local_models import SITES, loss_of, make_model, values

EITHER_ORDER = pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["as given", "the other way"])


def split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices of hidden layers, and the rest."""
    hidden = {"2.weight", "4.weight"}
    named = dict(model.named_parameters())
    return [named[name] for name in sorted(hidden)], [one for name, one in named.items() if name not in hidden]


def pair(model: nn.Module, muon_lr: float = 0.02) -> list[torch.optim.Optimizer]:
    matrices, rest = split(model)
    return [torch.optim.Muon(matrices, lr=muon_lr), torch.optim.AdamW(rest, lr=1e-2)]


def two_sgds(**settings: Any) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    model = make_model()
    return model, [torch.optim.SGD(some, lr=0.1, **settings) for some in split(model)]


def train(model: nn.Module, optimizers: Sequence[Any], site: str, steps: range, order: Sequence[int]) -> None:
    for step in steps:
        for one in optimizers:
            one.zero_grad()
        loss_of(model, site, step).backward()
        for index in order:
            optimizers[index].step()


@EITHER_ORDER
@pytest.mark.parametrize("overlap", [0, 2])
def test_result_is_that_of_whole_steps_and_has_equal_bits_at_all_sites(order: Sequence[int], overlap: int) -> None:
    """What a round takes and where a result goes are not between two steps: the order of these does not show."""

    def run(rounds: Rounds, order: Sequence[int]) -> tuple[torch.Tensor, dict[str, Any]]:
        model = make_model()
        optimizers = pair(model)
        handle = local_steps(
            model, optimizers, LocalSettings(every=3, overlap=overlap, deterministic=True), rounds=rounds
        )
        train(model, optimizers, rounds.site, range(9), order)
        handle.finish()
        return values(model), handle.stats()

    (here, stats), (there, _) = SimulatedSites(SITES).run(lambda rounds: run(rounds, order))
    (given, _), _ = SimulatedSites(SITES).run(lambda rounds: run(rounds, (0, 1)))
    assert torch.equal(here, there)
    assert torch.equal(here, given)
    assert stats["steps"] == 9


@EITHER_ORDER
def test_callback_comes_once_in_each_step_after_the_last_optimizer(order: Sequence[int]) -> None:
    model, optimizers = two_sgds()
    seen: list[list[int]] = []
    steps: list[int] = []
    for index, one in enumerate(optimizers):
        one.register_step_post_hook(lambda *_, index=index: steps.append(index))
    remove = after_each_step(optimizers, ["one", "other"], lambda: seen.append([*steps]))
    train(model, optimizers, "a", range(3), order)
    assert seen == [[*order] * count for count in (1, 2, 3)]
    remove()
    train(model, optimizers, "a", range(1), [0])
    assert len(seen) == 3


@pytest.mark.parametrize("begun", [0, 2])
@pytest.mark.parametrize("forgotten", [0, 1])
def test_optimizer_that_makes_no_step_is_an_error_that_names_it(begun: int, forgotten: int) -> None:
    model, optimizers = two_sgds()
    after_each_step(optimizers, ["SGD 1", "SGD 2"], lambda: None)
    train(model, optimizers, "a", range(begun), (0, 1))
    with pytest.raises(InvalidArgumentError, match=f"SGD {2 - forgotten} made a step without SGD {1 + forgotten}"):
        train(model, optimizers, "a", range(2), [1 - forgotten])


@EITHER_ORDER
@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("unscale", [False, True], ids=["scaled", "unscaled"])
def test_step_that_a_scaler_skips_for_one_of_them_does_not_count(
    order: Sequence[int], skipped: int, at: int, fused: bool, unscale: bool
) -> None:
    model, optimizers = two_sgds(fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    counted: list[int] = []
    step = -1
    after_each_step(optimizers, ["SGD 1", "SGD 2"], lambda: counted.append(step))
    for step in range(6):
        for one in optimizers:
            one.zero_grad()
        scaler.scale(loss_of(model, "a", step)).backward()
        if step in (at, at + 1):
            split(model)[skipped][0].grad[0] = torch.inf
        if unscale:
            for one in optimizers:
                scaler.unscale_(one)
        for index in order:
            scaler.step(optimizers[index])
        scaler.update()
    assert counted == [step for step in range(6) if step not in (at, at + 1)]


def test_optimizer_that_a_scaler_skips_for_ever_is_an_error() -> None:
    model, optimizers = two_sgds()
    scaler = torch.amp.GradScaler("cpu")
    after_each_step(optimizers, ["SGD 1", "SGD 2"], lambda: None)

    def train_one() -> None:
        for step in range(50):
            model.zero_grad()
            scaler.scale(loss_of(model, "a", step)).backward()
            scaler.step(optimizers[0])
            scaler.update()

    with pytest.raises(InvalidArgumentError, match="SGD 1 made a step without SGD 2"):
        train_one()


def test_parameter_in_two_optimizers_is_refused_by_name() -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        one, other = split(model)
        optimizers = [torch.optim.SGD(one, lr=0.1), torch.optim.AdamW([*other, one[0]])]
        local_steps(model, optimizers, rounds=rounds)

    with pytest.raises(InvalidArgumentError, match=r"2\.weight is in the optimizers SGD and AdamW"):
        SimulatedSites(["a"]).run(run)


def test_settings_of_every_optimizer_are_compared_between_sites() -> None:
    def run(rounds: Rounds, setting: str) -> None:
        model = make_model()
        one, other = split(model)
        lrs = {"AdamW": 1e-3, "SGD": 0.1, setting: 0.5 if rounds.site == "b" else 0.25}
        optimizers = [torch.optim.SGD(one, lr=lrs["SGD"]), torch.optim.AdamW(other, lr=lrs["AdamW"])]
        local_steps(model, optimizers, rounds=rounds)

    for setting in ("SGD", "AdamW"):
        with pytest.raises(InvalidArgumentError, match=rf"{setting} lr \(group 0\) is 0.5 at site 'b'"):
            SimulatedSites(SITES).run(lambda rounds, setting=setting: run(rounds, setting))


def test_one_optimizer_at_a_site_and_two_at_another_are_refused() -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        one, other = split(model)
        both = [torch.optim.SGD(one, lr=0.1), torch.optim.AdamW(other)]
        local_steps(model, both if rounds.site == "a" else torch.optim.AdamW(model.parameters()), rounds=rounds)

    with pytest.raises(InvalidArgumentError, match="optimizer is AdamW at site 'b' and SGD, AdamW at site 'a'"):
        SimulatedSites(SITES).run(run)
