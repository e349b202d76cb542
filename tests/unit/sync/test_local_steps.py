"""The handle of local steps, driven by simulated sites with the real codecs."""

from __future__ import annotations

import copy
import io
import logging
from typing import Any

import pytest
import torch
from torch import nn

import geocomm
from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedReduction, SimulatedSites
from geocomm.sync.local_steps.local_steps import LocalSteps, local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov
from support.local_models import SITES, adamw, batch, make_model, train, train_step, values


def anchor_of(handle: LocalSteps, model: nn.Module) -> torch.Tensor:
    with handle.anchor():
        return values(model)


def equal_bits(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(
            one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal_bits(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal_bits, one, other))
    return one == other


SETTINGS: list[dict[str, Any]] = [
    {"every": 4, "overlap": 0, "codec": "none"},
    {"every": 5, "overlap": 2, "codec": "int4", "fragments": 3},
    {"every": 5, "overlap": 5, "codec": "int8", "fragments": 2, "merge": 0},
    {"every": 6, "overlap": 3, "codec": "int4", "fragments": 4, "merge": "carry"},
    {"every": 3, "overlap": 1, "preset": "loco", "fragments": 5},
    {"every": 4, "overlap": 2, "codec": "int8:round=stochastic", "averaging": "radial"},
    {"every": 4, "overlap": 1, "preset": "finetune"},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("sites", [("a", "b"), ("a", "b", "a2", "b2", "a3")])
def test_anchors_of_all_sites_have_equal_bits(settings: dict[str, Any], sites: tuple[str, ...]) -> None:
    def run(rounds: Rounds) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        model, handle = train(rounds, 23, **settings)
        before = anchor_of(handle, model)
        local = values(model)
        handle.finish()
        return before, local, values(model)

    simulation = SimulatedSites(sites)
    results = simulation.run(run)
    for before, _, after in results[1:]:
        assert equal_bits(before, results[0][0])
        assert equal_bits(after, results[0][2])
    assert not torch.equal(results[0][1], results[1][1])  # their own weights differ between rounds
    assert not torch.equal(results[0][0], values(make_model()))
    assert [entry.round for entry in simulation.committed] == list(range(len(simulation.committed)))


@pytest.mark.parametrize("sites", [1, 2, 4])
def test_every_step_with_outer_sgd_is_data_parallel_training(sites: int) -> None:
    names = [f"a{index}" for index in range(sites)]

    def data(site: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(100 * names.index(site) + step)
        return torch.randint(20, (4, 3), generator=generator), torch.randint(20, (4,), generator=generator)

    def run(rounds: Rounds) -> torch.Tensor:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = local_steps(
            model,
            optimizer,
            LocalSettings(every=1, overlap=0, merge=0, codec="none", outer=Nesterov(1.0, 0.0)),
            rounds=rounds,
        )
        for step in range(12):
            inputs, targets = data(rounds.site, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        handle.finish()
        return values(model)

    found = SimulatedSites(names).run(run)[0]
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        optimizer.zero_grad()
        for name in names:
            inputs, targets = data(name, step)
            (nn.functional.cross_entropy(model(inputs), targets) / sites).backward()
        optimizer.step()
    torch.testing.assert_close(found, values(model), rtol=1e-5, atol=1e-6)
    assert (found - values(make_model())).abs().max() > 0.01


def test_rounds_without_overlap_are_diloco_by_torchs_optimizers() -> None:
    def run(rounds: Rounds) -> torch.Tensor:
        model, handle = train(rounds, 24, every=4, overlap=0, codec="none", fragments=2, outer=Nesterov(0.7, 0.8))
        return anchor_of(handle, model)

    found = SimulatedSites(SITES).run(run)[0]
    anchor = make_model()
    outer = torch.optim.SGD(anchor.parameters(), lr=0.7, momentum=0.8, nesterov=True)
    models = [make_model() for _ in SITES]
    optimizers = [adamw(model) for model in models]
    # Two fragments are due at different steps of each cycle; which parameter is in which, the packing says.
    handle_fragments = SimulatedSites(["a"]).run(
        lambda rounds: train(rounds, 0, every=4, overlap=0, fragments=2)[1].fragments
    )[0]
    due = {2: handle_fragments[0], 0: handle_fragments[1]}
    for step in range(1, 25):
        for site, model, optimizer in zip(SITES, models, optimizers, strict=True):
            train_step(model, optimizer, site, step - 1)
        if step % 4 not in due:
            continue
        names = {part.name for part in due[step % 4].ranges}
        outer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, parameter in anchor.named_parameters():
                if name in names:
                    local = [dict(model.named_parameters())[name] for model in models]
                    parameter.grad = parameter - sum(local) / len(local)
            outer.step()
            for name in names:
                for model in models:
                    dict(model.named_parameters())[name].copy_(dict(anchor.named_parameters())[name])
    torch.testing.assert_close(found, values(anchor), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("stop", [7, 10])
def test_resumed_run_has_the_bits_of_one_that_was_not_interrupted(settings: dict[str, Any], stop: int) -> None:
    def whole(rounds: Rounds) -> list[Any]:
        model, handle = train(rounds, 21, **settings)
        state = handle.state_dict()
        handle.finish()
        return [state, values(model)]

    def first(rounds: Rounds) -> bytes:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, LocalSettings(exact_below=100, **settings), rounds=rounds)
        for step in range(stop):
            train_step(model, optimizer, rounds.site, step)
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), handle.state_dict()], file)
        return file.getvalue()

    saved = dict(zip(SITES, SimulatedSites(SITES).run(first), strict=True))

    def rest(rounds: Rounds) -> list[Any]:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, LocalSettings(exact_below=100, **settings), rounds=rounds)
        states = torch.load(io.BytesIO(saved[rounds.site]), weights_only=True)
        for target, state in zip((model, optimizer, handle), states, strict=True):
            target.load_state_dict(state)
        for step in range(stop, 21):
            train_step(model, optimizer, rounds.site, step)
        state = handle.state_dict()
        handle.finish()
        return [state, values(model)]

    assert equal_bits(SimulatedSites(SITES).run(rest), SimulatedSites(SITES).run(whole))


def test_state_is_a_copy() -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, LocalSettings(every=2, overlap=1, fragments=2), rounds=rounds)
        for step in range(5):
            train_step(model, optimizer, "a", step)
        state = handle.state_dict()
        before = copy.deepcopy(state)
        for step in range(5, 9):
            train_step(model, optimizer, "a", step)
        assert equal_bits(state, before)
        assert not equal_bits(handle.state_dict(), before)

    SimulatedSites(["a"]).run(run)


def test_error_feedback_keeps_what_int4_loses() -> None:
    """The sum of what was sent tends to the sum of what was learned; without feedback small changes are lost."""

    def run(rounds: Rounds, decay: float) -> tuple[torch.Tensor, torch.Tensor]:
        model = nn.Linear(64, 64, bias=False)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        handle = local_steps(
            model,
            optimizer,
            LocalSettings(every=1, overlap=0, outer=Nesterov(1.0, 0.0), exact_below=0, decay=decay),
            rounds=rounds,
        )
        generator = torch.Generator().manual_seed(5)
        change = torch.randn(64, 64, generator=generator) ** 3
        for _ in range(40):
            model.weight.grad = -change
            optimizer.step()
        return anchor_of(handle, model), 40 * change.reshape(-1)

    (kept, expected), _ = SimulatedSites(SITES).run(lambda rounds: run(rounds, 1.0))
    (lost, _), _ = SimulatedSites(SITES).run(lambda rounds: run(rounds, 0.0))
    assert (kept - expected).norm() < 0.05 * expected.norm()
    assert (lost - expected).norm() > 2 * (kept - expected).norm()


@pytest.mark.parametrize("merge", [0, 0.5, "carry"])
def test_merge_is_applied_at_the_step_of_the_overlap(merge: float | str) -> None:
    """Weights fall by 1 a step at one site and by 3 at the other, so that every number is known."""

    def run(rounds: Rounds) -> list[float]:
        model = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        local_steps(
            model,
            optimizer,
            LocalSettings(every=4, overlap=2, merge=merge, codec="none", outer=Nesterov(1.0, 0.0)),
            rounds=rounds,
        )
        seen = []
        for _ in range(6):
            model.weight.grad = torch.tensor([[1.0 if rounds.site == "a" else 3.0]])
            optimizer.step()
            seen.append(model.weight.item())
        return seen

    one, other = SimulatedSites(SITES).run(run)
    assert one[:5] == [-1, -2, -3, -4, -5]
    assert other[:5] == [-3, -6, -9, -12, -15]
    assert (one[5], other[5]) == {0: (-8, -8), 0.5: (-7, -13), "carry": (-10, -14)}[merge]


def test_weights_are_the_tokens_that_the_sites_counted() -> None:
    def run(rounds: Rounds) -> float:
        model = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        handle = local_steps(
            model,
            optimizer,
            LocalSettings(every=2, overlap=0, codec="none", outer=Nesterov(1.0, 0.0), weights="tokens"),
            rounds=rounds,
        )
        for _ in range(2):
            model.weight.grad = torch.tensor([[1.0 if rounds.site == "a" else 5.0]])
            handle.count_tokens(300 if rounds.site == "a" else 100)
            optimizer.step()
        return model.weight.item()

    assert SimulatedSites(SITES).run(run) == [-4.0, -4.0]


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_site_that_is_not_finite_does_not_count_and_takes_over_the_anchor(bad: float, overlap: int) -> None:
    def run(rounds: Rounds) -> tuple[torch.Tensor, dict[str, Any]]:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = local_steps(model, optimizer, LocalSettings(every=3, overlap=overlap, exact_below=100), rounds=rounds)
        for step in range(3 + overlap):
            train_step(model, optimizer, rounds.site, step)
            if rounds.site == "b" and step == 1:
                with torch.no_grad():
                    model[2].weight[0, 0] = bad
        assert values(model).isfinite().all()
        handle.finish()
        return values(model), handle.stats()

    simulation = SimulatedSites(SITES)
    (one, stats), (other, other_stats) = simulation.run(run)
    assert equal_bits(one, other)
    assert simulation.committed[0].weights == (3, 0)
    assert stats["rounds_not_finite"] == 0
    assert other_stats["rounds_not_finite"] == 1


def test_round_in_which_nobody_is_finite_is_void() -> None:
    def run(rounds: Rounds) -> tuple[torch.Tensor, dict[str, Any]]:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=float("inf"))
        handle = local_steps(model, optimizer, LocalSettings(every=1, overlap=0), rounds=rounds)
        train_step(model, optimizer, rounds.site, 0)
        return values(model), handle.stats()

    for found, stats in SimulatedSites(SITES).run(run):
        assert equal_bits(found, values(make_model()))
        assert stats["rounds_void"] == 1


def test_steps_that_a_grad_scaler_skips_do_not_count() -> None:
    def run(rounds: Rounds) -> list[int]:
        counts = []
        for fused in (False, True):
            model = make_model()
            optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
            handle = local_steps(model, optimizer, LocalSettings(every=100), rounds=rounds)
            scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
            for scale in (1.0, float("inf"), 1.0):
                optimizer.zero_grad()
                inputs, targets = batch("a", 0)
                loss = nn.functional.cross_entropy(model(inputs), targets) * scale
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            counts.append(handle.stats()["steps"])
        return counts

    assert SimulatedSites(["a"]).run(run) == [[2, 2]]


def test_anchor_gives_back_the_local_weights_and_refuses_steps() -> None:
    def run(rounds: Rounds) -> None:
        model, handle = train(rounds, 3, every=2, overlap=0)
        local = values(model)
        optimizer = adamw(model)
        with handle.anchor():
            assert not torch.equal(values(model), local)
            with pytest.raises(InvalidArgumentError, match="anchor"), handle.anchor():
                pass
        assert equal_bits(values(model), local)
        handle.finish()
        optimizer.step()

    SimulatedSites(SITES).run(run)


def test_finished_run_leaves_an_ordinary_optimizer() -> None:
    def run(rounds: Rounds) -> None:
        model = make_model()
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, LocalSettings(every=2), rounds=rounds)
        train_step(model, optimizer, "a", 0)
        handle.finish()
        for step in range(5):
            train_step(model, optimizer, "a", step)
        assert handle.stats()["steps"] == 1
        with pytest.raises(InvalidArgumentError, match="has ended"):
            handle.finish()

    SimulatedSites(["a"]).run(run)


def test_wire_bytes_are_those_of_the_frames() -> None:
    def run(rounds: Rounds) -> dict[str, Any]:
        model = nn.Linear(256, 256, bias=False)
        with torch.no_grad():
            model.weight.fill_(0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = local_steps(model, optimizer, LocalSettings(every=2, overlap=1, codec="int4"), rounds=rounds)
        for _ in range(4):
            model.weight.grad = torch.randn(256, 256, generator=torch.Generator().manual_seed(1))
            optimizer.step()
        handle.finish()
        return handle.stats()

    stats = SimulatedSites(SITES).run(run)[0]
    assert stats["rounds"] == 3
    in_last_round = 4 * 256 * 256  # exact
    assert 2 * 256 * 256 / 2 < stats["wire_bytes"] - in_last_round < 2 * 256 * 256 * 0.54


def test_sites_with_other_numbers_of_steps_count_by_them() -> None:
    def run(rounds: Rounds) -> torch.Tensor:
        model, handle = train(rounds, 3 if rounds.site == "a" else 4, every=100)
        handle.finish()
        return values(model)

    sites = SimulatedSites(SITES)
    first, second = sites.run(run)
    assert equal_bits(first, second)
    (entry,) = sites.committed
    assert entry.steps == entry.weights == (3, 4)


def test_what_is_not_averaged_is_named_with_the_reason() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(30, 8)
            self.head = nn.Linear(8, 30, bias=False)
            self.head.weight = self.embed.weight
            self.scale = nn.Parameter(torch.ones(3), requires_grad=False)
            self.steps = nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)
            self.register_buffer("mask", torch.ones(2, dtype=torch.bool))

    def run(rounds: Rounds) -> dict[str, Any]:
        model = Tied()
        return local_steps(model, adamw(model), rounds=rounds).stats()

    (stats,) = SimulatedSites(["a"]).run(run)
    assert stats["elements"] == 240
    assert stats["left_out"] == {
        "scale": "frozen",
        "steps": "frozen",
        "head.weight": "the same as embed.weight",
        "mask": "a buffer",
    }


def test_parameters_in_another_memory_order_are_averaged_too() -> None:
    def run(rounds: Rounds) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Conv2d(4, 6, 3, bias=False).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        handle = local_steps(
            model, optimizer, LocalSettings(every=1, overlap=0, codec="none", outer=Nesterov(1.0, 0.0)), rounds=rounds
        )
        before = model.weight.detach().clone()
        change = torch.arange(216.0).view(6, 4, 3, 3)
        model.weight.grad = change * (1 if rounds.site == "a" else 3)
        optimizer.step()
        handle.finish()
        torch.testing.assert_close(before - model.weight.detach(), 2 * change)
        return model.weight.detach()

    one, other = SimulatedSites(SITES).run(run)
    assert torch.equal(one, other)


def test_public_name_is_the_function() -> None:
    assert geocomm.local_steps is local_steps


@pytest.mark.parametrize(("fragments", "most"), [(5, 2), (13, 4)])
def test_results_that_come_together_are_merged_in_several_steps(
    monkeypatch: pytest.MonkeyPatch, fragments: int, most: int
) -> None:
    """One more than begin in a step, so that the site catches up and no step takes long."""
    down = True
    monkeypatch.setattr(SimulatedReduction, "is_done", lambda _: not down)

    def run(rounds: Rounds) -> None:
        nonlocal down
        model = nn.ParameterList([torch.zeros(8) for _ in range(20)])
        optimizer = adamw(model)
        handle = local_steps(model, optimizer, LocalSettings(every=5, overlap=1, fragments=fragments), rounds=rounds)

        def merged_in_a_step() -> int:
            before = handle.stats()["rounds"]
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            return handle.stats()["rounds"] - before

        assert [merged_in_a_step() for _ in range(12)] == [0] * 12
        assert handle.stats()["in_flight"] == fragments
        assert handle.stats()["held_back"] > 0
        down = False
        merged = [merged_in_a_step() for _ in range(40)]
        assert max(merged) == merged[0] == most
        assert handle.stats()["in_flight"] <= most
        handle.finish()

    SimulatedSites(["a"]).run(run)


@pytest.mark.parametrize("sites", ["ab", "abc"])
def test_more_than_two_sites_are_told_of_the_learning_rate(caplog: pytest.LogCaptureFixture, sites: str) -> None:
    with caplog.at_level(logging.INFO, "geocomm"):
        SimulatedSites(sites).run(lambda rounds: train(rounds, 1, every=1, codec="none")[1].finish())
    told = [message for message in caplog.messages if "learning rate" in message]
    assert bool(told) == (len(sites) > 2)
