"""Averages of deltas, and merges of anchors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.model.fragments import Fragment, Tensor, make_fragments
from geocomm.sync.local_steps.outer.anchor import merge_local
from geocomm.sync.local_steps.outer.averaging import average_deltas, radial_directional


def fragment_of(*tensors: Tensor) -> Fragment:
    (fragment,) = make_fragments(tensors, 1)
    return fragment


def deltas_of(sites: int, numel: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sites)
    return [torch.randn(numel, generator=generator) for _ in range(sites)]


@given(weights=st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any))
def test_mean_is_weighted_as_in_double_precision(weights: list[int]) -> None:
    deltas = deltas_of(len(weights), 50)
    found = average_deltas("mean", fragment_of(Tensor("a", 50)), deltas, weights)
    expected = sum(delta.double() * weight for delta, weight in zip(deltas, weights, strict=True)) / sum(weights)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_mean_has_the_bits_of_its_scalar_definition() -> None:
    deltas, weights = deltas_of(3, 101), [3, 5, 9]
    found = average_deltas("mean", fragment_of(Tensor("a", 101)), deltas, weights)
    shares = [np.float32(weight / 17) for weight in weights]
    for index in range(101):
        total = deltas[0].numpy()[index] * shares[0]
        for delta, share in zip(deltas[1:], shares[1:], strict=True):
            total = np.float32(total + np.float32(delta.numpy()[index] * share))
        assert found[index].numpy() == total


def test_radial_average_has_the_mean_length_where_the_mean_is_shorter() -> None:
    deltas = deltas_of(8, 4096)
    found = average_deltas("radial", fragment_of(Tensor("a", 4096)), deltas, [1] * 8)
    mean = sum(deltas) / 8
    torch.testing.assert_close(found.norm(), sum(delta.norm() for delta in deltas) / 8)
    assert float(mean.norm()) < 0.5 * float(found.norm())
    assert torch.nn.functional.cosine_similarity(found, mean, dim=0) > 0.99


def test_radial_average_of_equal_deltas_is_that_delta() -> None:
    (delta,) = deltas_of(1, 33)
    torch.testing.assert_close(radial_directional([(delta, 0.25)] * 4), delta)


def test_radial_average_takes_tables_as_a_plain_mean_and_tensors_apart() -> None:
    fragment = fragment_of(Tensor("table", 60, row_numel=6, table=True), Tensor("a", 40), Tensor("b", 20))
    deltas = deltas_of(6, 120)
    found = average_deltas("radial", fragment, deltas, [1] * 6)
    for part, span in fragment.spans():
        if part.table:
            torch.testing.assert_close(found[span], sum(delta[span] for delta in deltas) / 6)
        else:
            torch.testing.assert_close(found[span].norm(), sum(delta[span].norm() for delta in deltas) / 6)


def test_automatic_average_of_many_sites_is_the_mean() -> None:
    fragment = fragment_of(Tensor("a", 64))
    deltas = deltas_of(8, 64)
    found = average_deltas("auto", fragment, deltas, [1] * 8)
    assert torch.equal(found, average_deltas("mean", fragment, deltas, [1] * 8))


@pytest.mark.parametrize("sites", [1, 3])
def test_radial_average_of_zeros_is_zero(sites: int) -> None:
    assert not radial_directional([(torch.zeros(5), 1 / sites)] * sites).any()


def test_site_of_weight_zero_has_no_part() -> None:
    fragment = fragment_of(Tensor("a", 20))
    one, other = deltas_of(2, 20)
    for how in ("mean", "radial"):
        torch.testing.assert_close(average_deltas(how, fragment, [one, other * torch.nan], [2, 0]), one)


def test_merge_weighs_local_and_anchor() -> None:
    generator = torch.Generator().manual_seed(1)
    local, anchor = (torch.randn(3 * 65536 + 1, generator=generator) for _ in range(2))
    for weight in (0.25, 0.5, 0):
        merged = local.clone()
        merge_local(weight, merged, anchor, None)
        assert torch.equal(merged, weight * local + (1 - weight) * anchor)


def test_carry_adds_the_steps_of_the_overlap_to_the_anchor() -> None:
    merged = torch.tensor([1.5])
    merge_local("carry", merged, torch.tensor([3.0]), torch.tensor([1.0]))
    assert merged.tolist() == [3.5]
    with pytest.raises(InvalidArgumentError, match="when the round began"):
        merge_local("carry", torch.tensor([1.5]), torch.tensor([3.0]), None)
