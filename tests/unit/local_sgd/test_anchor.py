"""The outer state of a fragment, and what is made of it."""

from __future__ import annotations

import math

import pytest
import torch

from geocomm.local_sgd.anchor import digest, take_delta


@pytest.mark.parametrize("numel", [0, 1, 65536, 3 * 65536 + 5])
def test_delta_takes_the_place_of_the_weights(numel: int) -> None:
    generator = torch.Generator().manual_seed(1)
    anchor, local = (torch.randn(numel, generator=generator) for _ in range(2))
    expected = anchor - local
    assert take_delta(anchor, local)
    assert torch.equal(local, expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 70000, 199999])
def test_delta_that_is_not_finite_is_noticed(value: float, place: int) -> None:
    local = torch.zeros(200000)
    local[place] = value
    assert not take_delta(torch.ones(200000), local)


def test_digest_is_that_of_values_and_text() -> None:
    values = torch.arange(1000, dtype=torch.float32)
    other = values.clone()
    other[999] = 998.5
    assert digest([values], "1") == digest([values.clone()], "1")
    assert len({digest([values], "1"), digest([values], "2"), digest([other], "1"), digest([values, values], "1")}) == 4
