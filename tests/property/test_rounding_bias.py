"""Stochastic rounding is unbiased: over all of a large tensor the errors cancel.

By Hoeffding's inequality, n independent errors of mean zero, each in an interval of one step, have a mean beyond
step * sqrt(ln(2 / p) / (2 n)) with probability p at most. Each test makes fewer than 40 such comparisons with p = 1e-9:
were the seeds random, a right implementation would fail with a probability below 1e-7. Seeds are fixed: it never does.
"""

from __future__ import annotations

import math

import pytest
import torch

import geocomm
from support.codec_oracle import LARGEST_CODE, LARGEST_SCALE_BITS, BlockCodec, scale_of_blocks

FALSE_ALARM = 1e-9
ELEMENTS = 1 << 20


def largest_mean(step: float, count: int) -> float:
    return step * math.sqrt(math.log(2 / FALSE_ALARM) / (2 * count))


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("place", [0.01, 0.25, 0.5, 0.75, 0.99, -0.4])
def test_mean_of_equal_elements_is_their_value(name: str, place: float) -> None:
    """Elements that all lie at one place between two codes; the first of each block sets the scale."""
    codec = BlockCodec(name, 256, "stochastic")
    tensor = torch.zeros(ELEMENTS)
    tensor[::256] = LARGEST_CODE[name]  # the scale is 1
    assert LARGEST_SCALE_BITS[name] > 0x3F80
    inner = torch.ones(ELEMENTS, dtype=torch.bool)
    inner[::256] = False
    tensor[inner] = 2 + place
    assert (scale_of_blocks(codec, tensor) == 1).all()
    for seed in range(3):
        decoded = geocomm.decompress(geocomm.compress(tensor, str(codec), seed=seed))
        lost = (decoded - tensor).double()[inner]
        assert lost.abs().max() <= 1
        assert abs(lost.mean().item()) <= largest_mean(1.0, len(lost))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_mean_error_of_normal_numbers_vanishes_where_nearest_is_biased(name: str) -> None:
    tensor = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    codec = BlockCodec(name, 256, "stochastic")
    steps = scale_of_blocks(codec, tensor).repeat_interleave(256).double()
    # Small positive numbers: to nearest they would all become 0.
    small = (tensor > 0) & (tensor < 0.5 * steps)
    decoded = geocomm.decompress(geocomm.compress(tensor, str(codec), seed=3))
    lost = ((decoded - tensor).double() / steps)[small]
    assert abs(lost.mean().item()) <= largest_mean(1.0, len(lost))
    nearest = geocomm.decompress(geocomm.compress(tensor, name))
    assert ((nearest - tensor).double() / steps)[small].mean() < -0.1


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_errors_of_two_seeds_and_of_neighbours_are_uncorrelated(name: str) -> None:
    """The products of two independent errors have mean zero and lie in an interval of two squared steps."""
    tensor = torch.full((ELEMENTS,), 2.5)
    tensor[::256] = LARGEST_CODE[name]
    errors = []
    for seed in (1, 2):
        decoded = geocomm.decompress(geocomm.compress(tensor, f"{name}:round=stochastic", seed=seed))
        errors.append((decoded - tensor).double())
    inner = torch.ones(ELEMENTS, dtype=torch.bool)
    inner[::256] = False
    products = (errors[0] * errors[1])[inner]
    assert abs(products.mean().item()) <= largest_mean(2.0, len(products))
    # Halves of the neighbours, so that the products are independent.
    pairs = (errors[0][2::4] * errors[0][3::4])[inner[2::4]]
    assert abs(pairs.mean().item()) <= largest_mean(2.0, len(pairs))
