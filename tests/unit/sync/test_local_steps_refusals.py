"""What local steps refuse, by name, before anything is trained or as soon as it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from geocomm.core.errors import InvalidArgumentError, PeerLostError, ReplicaMismatchError, UnsupportedError
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov
from support.local_models import SITES, adamw, make_model, train, train_step


def test_tokens_that_nobody_counted_are_an_error() -> None:
    def run(rounds: Rounds) -> None:
        train(rounds, 2, every=2, overlap=0, weights="tokens")

    with pytest.raises(InvalidArgumentError, match="count_tokens"):
        SimulatedSites(SITES).run(run)


def test_step_while_the_model_holds_the_anchor_is_refused() -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, rounds=rounds)
        with handle.anchor():
            train_step(model, optimizer, "a", 0)

    with pytest.raises(InvalidArgumentError, match=r"anchor\(\)"):
        SimulatedSites(["a"]).run(run)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"every": 0}, "every: must be 'auto' or a whole number"),
        ({"every": 4, "overlap": 5}, "overlap is 5"),
        ({"fragments": 0}, "fragments: must be 'auto' or a whole number"),
        ({"fragments": 100}, "fragments is 100"),
        ({"merge": 1.5}, "merge: must be .* below 1"),
        ({"preset": "pretrian"}, "pretrain"),
        ({"codec": "int5"}, "int5"),
        ({"decay": 2}, "decay: must be .* from 0 to 1"),
        ({"averaging": "median"}, "averaging: .*'median'"),
        ({"weights": "bytes"}, "weights: .*'bytes'"),
        ({"buffers": "keep"}, "buffers: .*'keep'"),
        ({"exact": ["("]}, "regular expression"),
    ],
)
def test_bad_argument_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        SimulatedSites(["a"]).run(lambda rounds: train(rounds, 0, **settings))


def run_two_setups(make: Callable[[str], tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]]) -> None:
    def run(rounds: Rounds) -> None:
        model, optimizer, settings = make(rounds.site)
        local_steps(model, optimizer, LocalSettings(**settings), rounds=rounds)

    SimulatedSites(SITES).run(run)


@pytest.mark.parametrize(
    ("setting", "values_", "named"),
    [
        ("every", (10, 20), "every is 20 at site 'b' and 10 at site 'a'"),
        ("codec", ("int4", "int8"), "codec"),
        ("outer", (Nesterov(0.6, 0.8), Nesterov(0.7, 0.8)), "outer is Nesterov"),
        ("merge", (0.5, "carry"), "merge"),
        ("exact_below", (4, 400), "exact_below is 400 at site 'b' and 4 at site 'a'"),
    ],
)
def test_settings_that_differ_between_sites_are_refused_by_name(
    setting: str, values_: tuple[Any, Any], named: str
) -> None:
    def make(site: str) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = make_model()
        return model, adamw(model), {setting: values_[SITES.index(site)]}

    with pytest.raises(InvalidArgumentError, match=named):
        run_two_setups(make)


def test_another_optimizer_at_one_site_is_refused() -> None:
    def make(site: str) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = make_model()
        return model, adamw(model) if site == "a" else torch.optim.SGD(model.parameters(), lr=1e-2), {}

    with pytest.raises(InvalidArgumentError, match="optimizer is SGD at site 'b' and AdamW at site 'a'"):
        run_two_setups(make)


def test_weights_that_differ_between_sites_are_refused_by_name() -> None:
    def make(site: str) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = make_model()
        if site == "b":
            with torch.no_grad():
                model[4].weight[3, 2] += 1e-7
        return model, adamw(model), {}

    with pytest.raises(ReplicaMismatchError, match=r"4\.weight") as caught:
        run_two_setups(make)
    assert caught.value.tensor == "4.weight"


def test_frozen_parameter_of_another_dtype_at_one_site_is_refused() -> None:
    def make(site: str) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = make_model()
        model[0].weight.requires_grad_(False)
        if site == "b":
            model[0].weight.data = model[0].weight.data.double()
        return model, adamw(model), {}

    with pytest.raises(ReplicaMismatchError, match=r"0\.weight is float64.* and float32"):
        run_two_setups(make)


def test_site_that_ends_early_is_named_to_the_others() -> None:
    def run(rounds: Rounds) -> None:
        train(rounds, 6 if rounds.site == "a" else 2, every=3, overlap=1)

    with pytest.raises(PeerLostError, match="b"):
        SimulatedSites(SITES).run(run)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_trained_parameter_that_is_not_float32_is_refused_by_name(dtype: torch.dtype) -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        model[2].to(dtype)
        local_steps(model, adamw(model), rounds=rounds)

    with pytest.raises(UnsupportedError, match=r"2\.weight"):
        SimulatedSites(["a"]).run(run)


@pytest.mark.parametrize("buffers", ["refuse", "local"])
def test_buffer_that_changes_in_training_is_refused_unless_the_user_says_otherwise(buffers: str) -> None:
    def run(rounds: Rounds) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, LocalSettings(every=2, overlap=1, buffers=buffers), rounds=rounds)
        for step in range(4):
            model(torch.randn(8, 4, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            optimizer.step()
        handle.finish()

    if buffers == "local":
        SimulatedSites(SITES).run(run)
    else:
        with pytest.raises(UnsupportedError, match=r"1\.running_mean"):
            SimulatedSites(SITES).run(run)


@pytest.mark.parametrize("change", ["added", "replaced", "frozen"])
def test_model_that_changes_its_parameters_is_refused_by_name(change: str) -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        optimizer = adamw(model)
        local_steps(model, optimizer, LocalSettings(every=2), rounds=rounds)
        train_step(model, optimizer, "a", 0)
        if change == "added":
            model[4].register_parameter("extra", nn.Parameter(torch.zeros(3)))
        elif change == "replaced":
            model[4].bias = nn.Parameter(torch.zeros(20))
        else:
            model[4].bias.requires_grad_(False)
        train_step(model, optimizer, "a", 1)

    with pytest.raises(InvalidArgumentError, match=r"4\.(extra|bias)"):
        SimulatedSites(["a"]).run(run)


def test_second_handle_of_an_optimizer_is_refused_until_the_first_has_finished() -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, rounds=rounds)
        with pytest.raises(InvalidArgumentError, match="finish"):
            local_steps(model, optimizer, rounds=rounds)
        handle.finish()
        local_steps(model, optimizer, rounds=rounds)

    SimulatedSites(["a"]).run(run)


def test_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="group 0"):
        SimulatedSites(["a"]).run(lambda rounds: local_steps(make_model(), adamw(make_model()), rounds=rounds))


def test_model_without_trained_parameters_is_refused() -> None:
    model = make_model().requires_grad_(False)
    with pytest.raises(InvalidArgumentError, match="no parameter"):
        SimulatedSites(["a"]).run(lambda rounds: local_steps(model, adamw(model), rounds=rounds))


@pytest.mark.parametrize("kind", ["site", "settings", "version", "momentum"])
def test_state_of_another_run_is_refused(kind: str) -> None:
    def run(rounds: Rounds) -> None:
        _, handle = train(rounds, 3, every=2)
        state = handle.state_dict()
        if kind == "site":
            state["site"] = "elsewhere"
        elif kind == "settings":
            state["settings"]["every"] = "3"
        elif kind == "version":
            state["version"] = 99
        else:
            state["fragments"][0]["momentum"] = None
        with pytest.raises(InvalidArgumentError):
            handle.load_state_dict(state)

    SimulatedSites(["a"]).run(run)


def test_states_that_do_not_belong_together_are_refused() -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, LocalSettings(every=2, overlap=0), rounds=rounds)
        states = []
        for step in range(4):
            train_step(model, optimizer, rounds.site, step)
            states.append(handle.state_dict())
        handle.load_state_dict(states[3] if rounds.site == "a" else states[1])

    with pytest.raises(InvalidArgumentError, match="next round is 1 at site 'b' and 2 at site 'a'"):
        SimulatedSites(SITES).run(run)
