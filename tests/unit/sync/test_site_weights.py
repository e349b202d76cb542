"""The weights of a fragment, where they lie or copied, and the delta that is made of them."""

from __future__ import annotations

import math

import pytest
import torch

from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedRounds, SimulatedSites
from geocomm.sync.local_steps.model.fragments import make_fragments
from geocomm.sync.local_steps.model.parameter_views_torch import PlainParameters
from geocomm.sync.local_steps.model.site_group import SiteGroup
from geocomm.sync.local_steps.outer.site_weights import SiteWeights, take_delta, weights_of
from geocomm.sync.local_steps.settings.local_settings import LocalSettings


def weights(numel: int, *, of_model: bool) -> SiteWeights:
    """Three pieces of the model, or one copy."""
    values = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    return SiteWeights(list(values.tensor_split(3)) if of_model else [values], of_model)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("of_model", [False, True])
@pytest.mark.parametrize("numel", [0, 1, 31, 4099, 3 * 65536 + 5])
def test_delta_is_anchor_minus_weights(numel: int, of_model: bool, keep: bool) -> None:
    local = weights(numel, of_model=of_model)
    before = torch.cat(list(local.pieces))
    anchor = torch.randn(numel, generator=torch.Generator().manual_seed(1))
    delta = take_delta(anchor, local, keep=keep)
    assert torch.equal(delta.values, anchor - before)
    assert delta.squared_norm == pytest.approx(float((anchor - before).double().square().sum()))
    assert (delta.local is not None) == keep
    if delta.local is not None:
        assert torch.equal(delta.local, before)
        assert numel == 0 or delta.local.data_ptr() != delta.values.data_ptr()
    if of_model:
        assert torch.equal(torch.cat(list(local.pieces)), before)
    # What the caller does with the one changes neither the other nor the model.
    delta.values.fill_(7)
    assert delta.local is None or torch.equal(delta.local, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 70000, 199999])
def test_delta_that_is_not_finite_has_no_norm(value: float, place: int) -> None:
    local = torch.zeros(200000)
    local[place] = value
    assert take_delta(torch.ones(200000), SiteWeights([local], of_model=False), keep=False).squared_norm is None


def test_norm_of_finite_values_whose_squares_are_too_large_for_float32() -> None:
    local = SiteWeights([torch.full((64,), -1e30)], of_model=False)
    assert take_delta(torch.zeros(64), local, keep=False).squared_norm == pytest.approx(64e60)


def test_weights_of_a_plain_model_are_its_own_memory() -> None:
    """Those that do not lie one after the other in memory are copied, with all of the fragment."""
    first = torch.nn.Linear(7, 5)
    model = torch.nn.Sequential(first, torch.nn.Linear(5, 3))
    rounds = SimulatedRounds(SimulatedSites(["a"]), "a")
    view = PlainParameters(model, rounds, LocalSettings(exact=(), exact_below=0))
    (fragment,) = make_fragments(view.tensors, 1)
    found = weights_of(SiteGroup(), view, fragment)
    assert found is not None
    assert found.of_model
    found.pieces[0].fill_(9)
    assert any(bool((parameter == 9).all()) for parameter in model.parameters())
    first.weight.data = first.weight.detach().t().contiguous().t()
    copied = weights_of(SiteGroup(), view, fragment)
    assert copied is not None
    assert not copied.of_model
    assert copied.pieces[0].numel() == fragment.numel
